"""Tokens, the node a token is bound to, and TLS. test_matrix.py tries every route with every kind of token."""
import hashlib
import http.client
import json
import socket
import ssl
import subprocess

import wsclient
from harness import SLOW, Client, Listener, Node, Server, WsNode, berth, eventually, patient
from test_agent import Agent, AgentCase

# name: (scopes, the node it is bound to)
TOKENS = {"reader-5c1a": (["read"], None), "sender-77d0": (["submit"], None), "worker-us-91e4": (["node"], "us"),
          "worker-any-03bb": (["node"], None), "operator-e2f6": (["operate"], None), "deployer-40aa": (["deploy"], None), "admin-8ab9": (["admin"], None)}
ADMIN = "admin-8ab9"
# Which tokens may use a route of each scope; the admin token may use all.
GRANTS = {"READ": {"reader-5c1a", "operator-e2f6", "deployer-40aa"}, "DEPLOY": {"deployer-40aa"}, "SUBMIT": {"sender-77d0", "operator-e2f6"},
          "NODE": {"worker-us-91e4", "worker-any-03bb"}, "OPERATE": {"operator-e2f6"}, "NONE": set(TOKENS)}

def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def bearer(token):
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


class GuardedServer(Server):
    """A server that is called with a token, and over TLS if `ca` is given."""

    def __init__(self, *args, ca=None, **settings):
        self.ca = ca
        super().__init__(*args, **settings)

    def client(self):
        client = Client(self.port)
        if self.ca:
            context = ssl.create_default_context(cafile=self.ca)
            client.connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=30 * SLOW)
        return client

    def call(self, method, path, body=None, headers=None):
        headers = headers if headers is not None and "Authorization" in headers else {**(headers or {}), **bearer(ADMIN)}
        return super().call(method, path, body, {name: value for name, value in headers.items() if value is not None})


class AuthCase(AgentCase):
    def setUp(self):
        super().setUp()
        tokens = [{"name": token.rsplit("-", 1)[0], "sha256": digest(token), "scopes": scopes, "format": 2,
                   **({"node_id": node} if node else {})} for token, (scopes, node) in TOKENS.items()]
        self.config = self.dir / "server.yaml"
        self.config.write_text(json.dumps({"tokens": tokens}))

    def guarded(self, ca=None, data_dir="data", **settings):
        settings = patient({"config": self.config, "login_failures_max": 0, **settings})
        server = GuardedServer(self.dir / data_dir, self.dir, ca=ca, log_level="debug", **settings)
        server.secrets = [*TOKENS, *map(digest, TOKENS)]
        self.servers.append(server)
        return server


class OldRows(AuthCase):
    """`deploy` is a scope of its own. Tokens from before that keep the right to deploy that `operate` included, and the server logs
    that."""

    def put(self, server, token):
        return server.call("PUT", "/v1/deployments/web", {"command": "true"}, bearer(token)).status

    def test_operate_alone_deploys_nothing(self):
        server = self.guarded()
        self.assertEqual(self.put(server, "operator-e2f6"), 403)
        self.assertEqual(self.put(server, "deployer-40aa"), 201)
        self.problem(server.call("POST", "/v1/nodes/us/drain", {}, bearer("deployer-40aa")), 403, "FORBIDDEN")
        self.assertNotIn("tokens.operate_deploys", server.log)

    def test_rows_from_before(self):
        rows = json.loads(self.config.read_text())["tokens"]
        for row in rows:
            row.pop("format")
        self.config.write_text(json.dumps({"tokens": rows}))
        server = self.guarded()
        self.assertEqual(self.put(server, "operator-e2f6"), 201)
        self.assertEqual(self.put(server, "reader-5c1a"), 403)
        self.assertRegex(server.log, r"event=tokens\.operate_deploys tokens=1 names=operator ")

    def test_a_file_that_is_written_again_says_it(self):
        """A command that writes the file adds the new scope: the old token may still deploy, and the new one may not."""
        file = self.dir / "tokens.yaml"
        file.write_text("".join(f"- {{name: {name}, sha256: {digest(name)}, scopes: [{scope}]}}\n"
                                for name, scope in (("old", "operate"), (ADMIN, "admin"))))
        done = berth("token", "create", "new", "--scope", "operate", "--file", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.config.write_text(json.dumps({"tokens_file": str(file)}))
        server = self.guarded()
        self.assertEqual(self.put(server, "old"), 201)
        self.assertEqual(self.put(server, done.stdout.strip()), 403)
        self.assertNotIn("tokens.operate_deploys", server.log)
        listed = {row["name"]: row["scopes"] for row in self.ok(server.get("/v1/tokens"))["tokens"]}
        self.assertEqual(listed, {"old": ["deploy", "operate"], ADMIN: ["admin"], "new": ["operate"]})


class Answers(AuthCase):
    def test_answers_say_what_is_missing(self):
        server = self.guarded()
        answer = server.get("/v1/jobs", Authorization=None)
        self.problem(answer, 401, "UNAUTHORIZED")
        self.assertEqual(answer.headers["WWW-Authenticate"], "Bearer")
        body = self.problem(server.get("/v1/jobs", **bearer("sender-77d0")), 403, "FORBIDDEN")
        self.assertIn("read", body["detail"])
        self.assertNotIn("sender-77d0", body["detail"])


class Strangers(AuthCase):
    def test_what_a_stranger_is_told(self):
        """A load balancer must learn whether the server is ready. Its version and the state of its store are only for callers who may
        read."""
        server = self.guarded(login_failures_max=5)
        for token in (None, "sender-77d0", "worker-us-91e4", "nobody-0000"):
            self.assertEqual(self.ok(server.get("/readyz", **(bearer(token) or {"Authorization": None}))), {"ready": True}, token)
        for token in ("reader-5c1a", ADMIN):
            self.assertEqual(self.ok(server.get("/readyz", **bearer(token)))["store_mode"], "NORMAL")
        refused = server.metrics()
        for number in range(20):
            self.assertEqual(server.get("/readyz", **bearer(f"nobody-{number}")).status, 200, "a load balancer is never refused")
        counts = {name: value - refused.get(name, 0) for name, value in server.metrics().items() if name.startswith("berth_logins_failed")}
        self.assertEqual(sum(counts.values()), 20, "wrong tokens count on this route too")


class InTheClear(AuthCase):
    """Server, agent and commands warn if others could read a token on the network, or in its file."""

    def secret(self, mode, token=ADMIN):
        path = self.dir / f"{token}-{mode:o}"
        path.write_text(token + "\n")
        path.chmod(mode)
        return path

    def test_on_the_way(self):
        ca, key = self.dir / "c.pem", self.dir / "k.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=x", "-addext", "subjectAltName=IP:0.0.0.0,DNS:localhost", "-keyout", key, "-out", ca], check=True, capture_output=True)
        for tls, listen, warned in ((False, "0.0.0.0:0", True), (True, "0.0.0.0:0", False), (False, "127.0.0.1:0", False)):
            server = self.guarded(ca=ca if tls else None, listen=listen, hosts="0.0.0.0", **({"tls_cert": ca, "tls_key": key} if tls else {}))
            url = f"{'https' if tls else 'http'}://{listen.split(':')[0]}:{server.port}"
            self.assertEqual("server.in_the_clear" in server.log, warned, url)
            for token, said in ((True, warned), (False, False)):
                how = ("--token-file", self.secret(0o600)) if token else ()
                done = berth("health", "--addr", url, "--ca-file", ca, *how)
                self.assertEqual((done.returncode, "unencrypted" in done.stderr), (0, said), (url, done.stderr))
            agent = Agent(self, url, "us", token_file=self.secret(0o600, "worker-us-91e4"), ca_file=ca)
            self.agents.append(agent)
            agent.connected()
            self.assertEqual(len(agent.events("agent.in_the_clear")), warned)
            agent.stop()
            server.stop()

    def test_where_it_lies(self):
        server = self.guarded()
        for mode, warned in ((0o600, False), (0o640, False), (0o644, True)):
            done = berth("health", "--addr", f"http://127.0.0.1:{server.port}", "--token-file", self.secret(mode))
            self.assertEqual((done.returncode, "chmod 600" in done.stderr), (0, warned), done.stderr)
            agent = Agent(self, f"http://127.0.0.1:{server.port}", "us", token_file=self.secret(mode, "worker-us-91e4"))
            self.agents.append(agent)
            agent.connected()
            self.assertEqual(len(agent.events("agent.secret_readable")), warned)
            agent.stop()

    def test_a_new_token_goes_into_a_file_of_its_own(self):
        server, out = self.guarded(), self.dir / "ops.token"
        how = ("--addr", f"http://127.0.0.1:{server.port}", "--token-file", self.secret(0o600), "--scope", "read", "--out", out)
        done = berth("token", "create", "new", *how)
        self.assertEqual((done.returncode, out.stat().st_mode & 0o777), (0, 0o600), done.stderr)
        token = out.read_text().strip()
        self.assertNotIn(token, done.stdout + done.stderr)
        self.ok(server.get("/v1/jobs", **bearer(token)))
        self.assertEqual(berth("token", "create", "other", *how).returncode, 4, "what is there stays")
        self.assertEqual(out.read_text().strip(), token)
        out.unlink()
        self.assertEqual(berth("token", "create", "new", *how).returncode, 4, "the name is taken")
        self.assertFalse(out.exists())

    def test_a_password_in_the_flags(self):
        """Every user can read flags in ps, so the server warns about the password there; the environment is not visible to others."""
        url = "postgresql://berth:hush-hush@127.0.0.1:1/berth"
        for where, warned in (({"database": url}, True), ({"env": {"BERTH_DATABASE": url}}, False)):
            server = GuardedServer(self.dir / "data", self.dir, config=self.config, **where)
            self.assertEqual("server.password_in_flags" in server.log, warned)
            self.assertNotIn("hush-hush", server.log)
            server.kill()


class Urls(AuthCase):
    """Callers with a token may be on other machines; they must not make the server call services of its machine."""

    def answers(self, server, url):
        """The replies to a node that gives this URL as its endpoint, over HTTP and over a WebSocket, and to a job that gives it as its
        callback."""
        node = {"node_id": "us", "max_concurrent_jobs": 1, "allowed_types": ["dev"], "endpoint": url}
        registered = server.post("/v1/node/register", node, bearer("worker-us-91e4"))
        socket = WsNode(server, "us", hello=False, headers=bearer("worker-us-91e4"))
        socket.send("hello", protocol=1, **node)
        hello = socket.expect("welcome" if registered.status == 200 else "reply")
        socket.close()
        sent = server.post("/v1/dispatch/task", {"type": "dev", "callback_url": url}, bearer("sender-77d0"))
        return registered, hello, sent

    def allowed(self, server, url):
        registered, _, sent = self.answers(server, url)
        return registered.status == 200, sent.json.get("field") != "callback_url"

    def test_with_tokens_there_are_none(self):
        server = self.guarded()
        registered, hello, sent = self.answers(server, "http://127.0.0.1:9/admin/shutdown?now=1")
        self.assertIn("endpoint_urls", self.problem(registered, 400, "BAD_FIELD")["detail"])
        self.assertIn("endpoint_urls", hello["detail"])
        self.assertIn("callback_urls", self.problem(sent, 400, "BAD_FIELD")["detail"])

    def test_each_has_a_list(self):
        url = "http://127.0.0.1:9/x"
        for settings, wanted in (({"allow_urls": "loopback"}, (True, True)),
                                 ({"endpoint_urls": "http://127.0.0.1:9/"}, (True, False)),
                                 ({"callback_urls": "http://127.0.0.1:9/"}, (False, True)),
                                 ({"allow_urls": "loopback", "callback_urls": "none"}, (True, False))):
            server = self.guarded(**settings)
            self.assertEqual(self.allowed(server, url), wanted, settings)
            server.stop()

    def test_a_first_token_ends_what_was_allowed_without(self):
        """A callback that was accepted while there were no tokens, and so only local callers, is not sent later."""
        server = GuardedServer(self.dir / "data", self.dir, log_level="debug")
        self.servers.append(server)
        node = Node(server, "n1", allowed_types=["dev"])
        listener = Listener()
        job = self.ok(self.task(server, callback_url=listener.url))
        self.ok(node.ack(job))
        (self.dir / "data/tokens.yaml").write_text(json.dumps([{"name": "ops", "sha256": digest(ADMIN), "scopes": ["admin"]}]))
        eventually("the server requires a token", lambda: server.get("/v1/jobs", Authorization=None).status == 401)
        self.ok(node.done(job))
        eventually("the callback is refused", lambda: "callback.failed" in server.log)
        self.assertEqual(listener.requests, [])
        listener.close()


class Sockets(AuthCase):
    def test_the_handshake_needs_a_node_token(self):
        server = self.guarded()
        for token, status in ((None, 401), ("nobody-0000", 401), ("reader-5c1a", 403), ("operator-e2f6", 403)):
            with self.assertRaises(wsclient.Refused) as refused:
                WsNode(server, "us", headers=bearer(token))
            self.assertEqual(refused.exception.status, status, token)

    def test_hello_is_bound_to_the_tokens_node(self):
        server = self.guarded()
        stranger = WsNode(server, "hk", hello=False, headers=bearer("worker-us-91e4"))
        stranger.hello()
        self.assertEqual(stranger.closed(), 1008)
        self.assertEqual(server.get("/v1/nodes/hk").status, 404)
        node = WsNode(server, "us", headers=bearer("worker-us-91e4"))
        self.assertEqual(node.welcome["node_id"], "us")
        node.send("heartbeat", id=77, node_id="hk", max_concurrent_jobs=5)
        self.assertEqual(node.expect("reply", re=77)["status"], 403)
        self.assertEqual(server.get("/v1/nodes/hk").status, 404)
        free = WsNode(server, "hk", headers=bearer("worker-any-03bb"))
        self.assertEqual(free.welcome["node_id"], "hk")
        node.close()
        free.close()

    def test_a_node_cannot_end_the_job_of_another(self):
        server = self.guarded()
        node = WsNode(server, "us", headers=bearer("worker-us-91e4"))
        other = WsNode(server, "hk", headers=bearer("worker-any-03bb"), semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        job = self.placed(server)
        self.assertEqual(job["node_id"], "us")
        node.expect("job")
        self.assertEqual(other.report("done", job, status="ok")["status"], 409)
        answer = server.post("/v1/job/done", {**job, "node_id": "hk", "status": "ok"}, bearer("worker-any-03bb"))
        self.assertEqual(answer.status, 409, str(answer))
        self.assertNotEqual(server.job(job["job_id"])["state"], "DONE")
        self.assertTrue(node.report("ack", job)["ok"])
        self.assertTrue(node.report("done", job, status="ok")["ok"])
        node.close()
        other.close()


class Configured(AuthCase):
    def test_another_address_only_with_tokens(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            done = berth("server", "--listen", address, "--data-dir", self.dir / "none")
            self.assertNotEqual(done.returncode, 0, address)
            self.assertIn("token", done.stderr)
        (self.dir / "empty.yaml").write_text("tokens: []\n")
        done = berth("server", "--listen", "0.0.0.0:0", "--data-dir", self.dir / "none", "--config", self.dir / "empty.yaml")
        self.assertNotEqual(done.returncode, 0, "an empty list is no token")
        server = self.guarded(listen="0.0.0.0:0")
        self.assertEqual(server.get("/v1/jobs", Authorization=None).status, 401)
        self.ok(server.get("/v1/jobs"))

    def test_config_show_keeps_secrets(self):
        for more in ([], ["-o", "json"]):
            done = berth("config", "show", "--config", self.config, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("tokens", done.stdout)
            for token in TOKENS:
                self.assertNotIn(token, done.stdout)
                self.assertNotIn(digest(token), done.stdout)

    def refused(self, *tokens):
        self.config.write_text(json.dumps({"tokens": list(tokens)}))
        done = berth("config", "show", "--config", self.config)
        self.assertEqual(done.returncode, 2, f"{tokens}: {done.stdout[:200]}")
        self.assertIn("tokens", done.stderr)
        self.assertNotIn(digest("x"), done.stderr)

    def test_tokens_that_are_no_tokens(self):
        good = {"name": "a", "sha256": digest("x"), "scopes": ["read"]}
        for field, values in {"name": ["", None, 5], "sha256": ["", "abc", digest("x").upper(), digest("x") + "0", None],
                              "scopes": [[], ["root"], ["read", "root"], "read", None, [5]]}.items():
            for value in values:
                self.refused({**good, field: value})
        self.refused("a")

    def test_a_binding_that_is_none_is_refused(self):
        """If it was taken for no binding at all, the node could speak for every other one."""
        good = {"name": "a", "sha256": digest("x"), "scopes": ["node"]}
        for value in (5, True, ["us"], {"id": "us"}, "", "u s", "x" * 200):
            self.refused({**good, "node_id": value})
        self.refused({**good, "node": "us"})
        self.refused({**good, "nodeid": "us"})

    def test_scopes_that_overlap(self):
        for scopes in (["admin", "node"], ["operate", "submit"], ["read", "read"], ["submit", "operate", "read"]):
            self.config.write_text(json.dumps({"tokens": [{"name": "a", "sha256": digest("x"), "scopes": scopes}]}))
            done = berth("config", "show", "--config", self.config)
            self.assertEqual(done.returncode, 0, f"{scopes}: {done.stderr}")


class Encrypted(AuthCase):
    def certificate(self, name="server"):
        """The path of a new self-signed certificate for localhost."""
        cert = self.dir / f"{name}.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", self.dir / f"{name}.key", "-out", cert], check=True, capture_output=True)
        return cert

    def tls_server(self):
        cert = self.certificate()
        return self.guarded(ca=cert, tls_cert=cert, tls_key=self.dir / "server.key")

    def secret(self, token):
        path = self.dir / f"secret-{TOKENS[token][0][0]}"
        path.write_text(token + "\n")
        return path

    def test_an_agent_over_wss_runs_a_job(self):
        server = self.tls_server()
        agent = Agent(self, f"wss://localhost:{server.port}", "us", token_file=self.secret("worker-us-91e4"), ca_file=server.ca)
        self.agents.append(agent)
        agent.connected()
        job = self.run_task(server, "env; echo $PPID; tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline")
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["node_id"]), ("DONE", "us"), found)
        for place in (found["result"]["tail"], agent.log):
            self.assertNotIn("worker-us-91e4", place)
            self.assertNotIn(digest("worker-us-91e4"), place)

    def test_an_agent_that_may_not_does_not_get_in(self):
        server = self.tls_server()
        other = self.certificate("other")
        for node, token, ca, words in (("us", "reader-5c1a", server.ca, "token"), ("hk", "worker-us-91e4", server.ca, "us"),
                                       ("us2", "worker-any-03bb", other, "certificate")):
            agent = Agent(self, f"https://localhost:{server.port}", node, token_file=self.secret(token), ca_file=ca)
            self.agents.append(agent)
            line = eventually(f"the agent {node} fails to connect", lambda: agent.events("agent.connect_failed"))[0]
            self.assertIn(words, line)
            self.assertNotIn(token, agent.log)
        self.assertEqual(self.ok(server.get("/v1/nodes"))["nodes"], [])

    def test_clients_of_a_tls_server(self):
        server = self.tls_server()
        self.ok(server.get("/v1/jobs"))
        stranger = Client(server.port)
        stranger.connection = http.client.HTTPSConnection("localhost", server.port, timeout=30 * SLOW,
                                                          context=ssl.create_default_context(cafile=self.certificate("other")))
        with self.assertRaises(ssl.SSLCertVerificationError):
            stranger.get("/healthz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", server.port), 30 * SLOW) as plain, self.assertRaises((ssl.SSLError, OSError)):
            old.wrap_socket(plain)
        with self.assertRaises((http.client.HTTPException, OSError)):
            Client(server.port).get("/healthz")  # without TLS there is no answer
        self.ok(server.get("/healthz"))

    def test_the_command_line_over_https(self):
        server = self.tls_server()
        url = f"https://localhost:{server.port}"
        args = ("--addr", url, "--ca-file", server.ca)
        done = berth("job", "ls", *args, "--token-file", self.secret("reader-5c1a"))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = berth("job", "ls", *args)
        self.assertNotEqual(done.returncode, 0)
        done = berth("job", "ls", "--addr", url, "--token-file", self.secret("reader-5c1a"))
        self.assertNotEqual(done.returncode, 0, "the command must not trust an unknown certificate")
        self.assertNotIn("reader-5c1a", done.stdout + done.stderr)
