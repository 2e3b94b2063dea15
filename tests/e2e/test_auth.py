"""Tokens, the node a token is bound to, and TLS. Every route with every kind of token: test_matrix.py."""
import hashlib
import http.client
import json
import socket
import ssl
import subprocess

import wsclient
from harness import ROOT, SLOW, Client, Server, WsNode, berth, eventually
from test_agent import Agent, AgentCase

# name: (scopes, the node it is bound to)
TOKENS = {"reader-5c1a": (["read"], None), "sender-77d0": (["submit"], None), "worker-us-91e4": (["node"], "us"),
          "worker-any-03bb": (["node"], None), "operator-e2f6": (["operate"], None), "admin-8ab9": (["admin"], None)}
ADMIN = "admin-8ab9"
# Which scope of a route each may use; an admin all.
GRANTS = {"READ": {"reader-5c1a", "operator-e2f6"}, "SUBMIT": {"sender-77d0", "operator-e2f6"},
          "NODE": {"worker-us-91e4", "worker-any-03bb"}, "OPERATE": {"operator-e2f6"}, "NONE": set(TOKENS)}

def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def bearer(token):
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


class GuardedServer(Server):
    """A server that must be asked with a token, and with `ca` over TLS."""

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
        tokens = [{"name": token.rsplit("-", 1)[0], "sha256": digest(token), "scopes": scopes,
                   **({"node_id": node} if node else {})} for token, (scopes, node) in TOKENS.items()]
        self.config = self.dir / "server.yaml"
        self.config.write_text(json.dumps({"tokens": tokens}))

    def guarded(self, ca=None, **settings):
        server = GuardedServer(self.dir / "data", self.dir, ca=ca, config=self.config, log_level="debug",
                               **{"login_failures_max": 0, **settings})
        server.secrets = [*TOKENS, *map(digest, TOKENS)]
        self.servers.append(server)
        return server


class Answers(AuthCase):
    def test_answers_say_what_is_missing(self):
        server = self.guarded()
        answer = server.get("/v1/jobs", Authorization=None)
        self.problem(answer, 401, "UNAUTHORIZED")
        self.assertEqual(answer.headers["WWW-Authenticate"], "Bearer")
        body = self.problem(server.get("/v1/jobs", **bearer("sender-77d0")), 403, "FORBIDDEN")
        self.assertIn("read", body["detail"])
        self.assertNotIn("sender-77d0", body["detail"])


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
        """Read as no binding at all, it would let one node speak for every other."""
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
        """A certificate for localhost that vouches for itself; its path."""
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
            line = eventually(f"{node} is not let in", lambda: agent.events("agent.connect_failed"))[0]
            self.assertIn(words, line)
            self.assertNotIn(token, agent.log)
        self.assertEqual(self.ok(server.get("/v1/nodes"))["nodes"], [])

    def test_clients_of_a_tls_server(self):
        server = self.tls_server()
        self.ok(server.get("/v1/jobs"))
        stranger = Client(server.port)
        stranger.connection = http.client.HTTPSConnection("localhost", server.port, timeout=10 * SLOW,
                                                          context=ssl.create_default_context(cafile=self.certificate("other")))
        with self.assertRaises(ssl.SSLCertVerificationError):
            stranger.get("/healthz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", server.port), 10 * SLOW) as plain, self.assertRaises((ssl.SSLError, OSError)):
            old.wrap_socket(plain)
        with self.assertRaises((http.client.HTTPException, OSError)):
            Client(server.port).get("/healthz") # without TLS there is no answer
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
        self.assertNotEqual(done.returncode, 0, "nobody vouches for that certificate")
        self.assertNotIn("reader-5c1a", done.stdout + done.stderr)
