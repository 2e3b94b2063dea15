"""Tokens and certificates that change while the server runs, the limit on wrong tokens, and the audit."""
import json
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

from harness import BINARY, SLOW, Case, WsNode, berth, clean_env, eventually, in_parallel, tags
from test_auth import bearer, digest


class TokenCase(Case):
    def cli(self, server, *args, token=None, code=0):
        env = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}", **({"BERTH_TOKEN": token} if token else {})}
        done = berth(*args, env=env)
        self.assertEqual(done.returncode, code, f"berth {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
        return done.stdout.strip() if not code else done.stderr

    def status(self, server, token, path="/v1/jobs"):
        return server.call("GET", path, headers=bearer(token)).status

    def guarded(self, **settings):
        """A server with an admin token."""
        server = self.start(**settings)
        server.token = self.cli(server, "token", "create", "root", "--scope", "admin")
        return server, server.token


@tags("threads")
class Made(TokenCase):
    def test_from_none_to_revoked(self):
        server = self.start()
        self.assertIn("must have the scope admin", self.cli(server, "token", "create", "ci", "--scope", "submit", code=4))
        self.ok(server.get("/v1/jobs"))
        server.token = root = self.cli(server, "token", "create", "root", "--scope", "admin")
        self.assertEqual(self.status(server, None), 401, "from its first token on the server requires one")
        reader = self.cli(server, "token", "create", "reader", "--scope", "read", token=root)
        self.assertEqual((self.status(server, reader), self.status(server, root)), (200, 200))
        self.cli(server, "token", "create", "reader", "--scope", "read", token=root, code=4)
        self.cli(server, "token", "create", "other", "--scope", "admin", token=reader, code=1)
        listed = json.loads(self.cli(server, "token", "ls", "-o", "json", token=root))["tokens"]
        self.assertEqual([(row["name"], row["scopes"], row["source"]) for row in listed],
                         [("root", ["admin"], "file"), ("reader", ["read"], "file")])
        self.cli(server, "token", "revoke", "reader", token=root)
        self.assertEqual(self.status(server, reader), 401)
        self.cli(server, "token", "revoke", "reader", token=root, code=3)
        self.assertIn("the last one", self.cli(server, "token", "revoke", "root", token=root, code=4))
        for place in (server.log, (server.data_dir / "tokens.yaml").read_text(), (server.data_dir / "audit.jsonl").read_text()):
            for secret in (root, reader):
                self.assertNotIn(secret, place)
        self.assertNotIn(digest(root), server.log)
        self.assertEqual((server.data_dir / "tokens.yaml").stat().st_mode & 0o777, 0o600)

    def test_they_outlive_the_server(self):
        server, root = self.guarded()
        server.kill()
        again = self.start()
        again.token = root
        self.assertEqual((self.status(again, root), self.status(again, None)), (200, 401))

    def test_the_first_token_of_a_server_that_others_shall_reach(self):
        path = self.dir / "tokens.yaml"
        done = berth("server", "--listen", "0.0.0.0:0", "--data-dir", self.dir / "none", "--tokens-file", path)
        self.assertEqual(done.returncode, 2)
        self.assertIn("berth token create", done.stderr)
        made = berth("token", "create", "root", "--scope", "admin", "--file", path)
        self.assertEqual(made.returncode, 0, made.stderr)
        server = self.start(listen="0.0.0.0:0", tokens_file=path)
        server.token = made.stdout.strip()
        self.assertEqual((self.status(server, made.stdout.strip()), self.status(server, None)), (200, 401))
        self.assertEqual(berth("token", "create", "root", "--scope", "read", "--file", path).returncode, 4)
        self.assertEqual(berth("token", "revoke", "nobody", "--file", path).returncode, 3)
        path.write_text("- nonsense\n")
        self.assertEqual(berth("token", "create", "x", "--scope", "read", "--file", path).returncode, 1)
        self.assertEqual(path.read_text(), "- nonsense\n", "a file that cannot be read must not be overwritten")

    def test_what_cannot_be_a_token(self):
        server, root = self.guarded()
        for args in (("x",), ("x", "--scope", "root"), ("a b", "--scope", "read"), ("x", "--scope", "node", "--node-id", "u s"),
                     ("x" * 65, "--scope", "read"), ("x", "--scope", "read", "--expires", "0")):
            self.cli(server, "token", "create", *args, token=root, code=2)
        for body in ({}, {"name": "x"}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["read"], "sha256": "abc"},
                     {"name": "x", "scopes": ["node"], "node_id": 5}, {"name": "x", "scopes": ["read"], "expires_in_ms": -1},
                     {"name": 5, "scopes": ["read"]}, {"name": "x\n", "scopes": ["read"]}):
            self.problem(server.post("/v1/tokens", body, bearer(root)), 400, "BAD_FIELD")
        for name in ("a/b", "a b", ".", "a%2Fb", "ä", "x" * 65):  # such a name could not be used in a path, or typed
            answer = server.post("/v1/tokens", {"name": name, "scopes": ["read"]}, bearer(root))
            self.assertEqual(self.problem(answer, 400, "BAD_FIELD")["field"], "name")
        self.ok(server.post("/v1/tokens", {"name": "-x", "scopes": ["read"]}, bearer(root)), 201)
        self.cli(server, "token", "revoke", "--", "-x", token=root)  # a name that looks like a flag can be typed, too
        made = server.post("/v1/tokens", {"name": "x", "scopes": ["read"]}, bearer(root))
        self.assertEqual(made.status, 201)
        self.assertEqual(self.status(server, made["token"]), 200)

    def test_many_at_once(self):
        server, root = self.guarded()
        made = in_parallel(12, lambda i: server.post("/v1/tokens", {"name": f"t{i % 6}", "scopes": ["read"]}, bearer(root)))
        self.assertEqual(sorted(answer.status for answer in made), [201] * 6 + [409] * 6)
        for answer in made:
            if answer.status == 201:
                self.assertEqual(self.status(server, answer["token"]), 200)

    def test_expiry(self):
        server, root = self.guarded()
        node = self.cli(server, "token", "create", "us", "--scope", "node", "--node-id", "us", "--expires", "8s", token=root)
        link = WsNode(server, "us", headers=bearer(node))
        self.assertEqual(link.closed(), 4003)
        self.assertIn("expired", server.call("GET", "/v1/node/jobs?node_id=us", headers=bearer(node))["detail"])
        row = json.loads(self.cli(server, "token", "ls", "-o", "json", token=root))["tokens"][1]
        self.assertEqual((row["name"], row["expired"]), ("us", True))

    def test_revoking_ends_what_it_had_opened(self):
        server, root = self.guarded()
        node = self.cli(server, "token", "create", "us", "--scope", "node", "--node-id", "us", token=root)
        reader = self.cli(server, "token", "create", "reader", "--scope", "read", token=root)
        kept = self.cli(server, "token", "create", "hk", "--scope", "node", token=root)
        link, other = WsNode(server, "us", headers=bearer(node)), WsNode(server, "hk", headers=bearer(kept))
        events = subprocess.Popen([BINARY, "events"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**clean_env(), "BERTH_ADDR": f"127.0.0.1:{server.port}", "BERTH_TOKEN": reader})
        self.addCleanup(events.kill)  # it waits for the stopped server
        self.assertIn("hello", events.stdout.readline())
        self.cli(server, "token", "revoke", "us", token=root)
        self.assertEqual(link.closed(), 4003)
        self.cli(server, "token", "revoke", "reader", token=root)
        said = events.communicate(timeout=30 * SLOW)[1]
        self.assertEqual((events.returncode, "UNAUTHORIZED" in said), (1, True), said)
        self.assertNotIn("status", other.ask("heartbeat"), "other tokens' connections must stay")
        other.close()


    def test_revoking_ends_what_waits(self):
        """Long polls and `?wait=` on any loop: no job goes to a revoked token."""
        server, root = self.guarded(loops=3)
        nodes = [self.cli(server, "token", "create", f"us-{i}", "--scope", "node", token=root) for i in range(4)]
        reader = self.cli(server, "token", "create", "reader", "--scope", "read", token=root)
        facts = {"max_concurrent_jobs": 4, "health": "ready", "allowed_types": ["dev"]}
        for i, node in enumerate(nodes):
            self.ok(server.post("/v1/node/register", {"node_id": f"us-{i}", **facts}, bearer(node)))
        self.ok(server.post("/v1/node/register", {"node_id": "hk", **facts, "allowed_types": ["other"]}, bearer(root)))
        job = self.ok(server.post("/v1/dispatch/task", {"type": "other", "payload": {"secret": 1}}, bearer(root)))["job_id"]
        paths = [(f"/v1/node/jobs?node_id=us-{i}&wait=60s", node) for i, node in enumerate(nodes)]
        paths += [(f"/v1/jobs/{job}?wait=60s", reader)] * 4
        links = []
        for path, token in paths:
            link = socket.create_connection(("127.0.0.1", server.port), 60 * SLOW)
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            links.append(link)
        for name in ("us-0", "us-1", "us-2", "us-3", "reader"):
            self.cli(server, "token", "revoke", name, token=root)
        answers = [link.recv(65536) for link in links]
        for link in links:
            link.close()
        self.ok(server.post(f"/v1/jobs/{job}/cancel", {}, bearer(root)))
        for answer in answers:
            self.assertNotIn(b"secret", answer)
            self.assertTrue(answer.startswith(b"HTTP/1.1 401 ") or answer.endswith(b'{"jobs":[]}'), answer)


class Files(TokenCase):
    def line(self, name, token, *scopes):
        return f"- {{name: {name}, sha256: {digest(token)}, scopes: [{', '.join(scopes)}]}}\n"

    def test_a_file_that_changes(self):
        path = self.dir / "tokens.yaml"
        path.write_text(self.line("a", "one-11112222", "admin"))
        server = self.start(tokens_file=path)
        self.assertEqual((self.status(server, "one-11112222"), self.status(server, "two-11112222")), (200, 401))
        # Rotation without a restart: the new token is added, then the old one is removed.
        path.write_text(self.line("a", "one-11112222", "admin") + self.line("b", "two-11112222", "admin"))
        eventually("the new token is accepted", lambda: self.status(server, "two-11112222") == 200)
        self.assertEqual(self.status(server, "one-11112222"), 200)
        server.token = "two-11112222"
        path.write_text(self.line("b", "two-11112222", "admin"))
        eventually("the old token is refused", lambda: self.status(server, "one-11112222") == 401)

    def test_a_mistake_changes_nothing(self):
        path = self.dir / "tokens.yaml"
        path.write_text(self.line("a", "one-11112222", "admin"))
        server = self.start(tokens_file=path)
        for count, text in enumerate(("- {name: a}\n", "nonsense", "[]", "", self.line("a", "x", "root")), 1):
            path.write_text(text)
            eventually("the file is refused", lambda: server.log.count("event=tokens.refused") == count)
            self.assertEqual((self.status(server, "one-11112222"), self.status(server, None)), (200, 401), text)
        path.unlink()
        eventually("the missing file is refused", lambda: server.log.count("event=tokens.refused") == 6)
        self.assertEqual((self.status(server, "one-11112222"), self.status(server, None)), (200, 401))
        server.token = "two-11112222"
        path.write_text(self.line("b", "two-11112222", "admin"))
        eventually("the new token is accepted", lambda: self.status(server, "two-11112222") == 200)

    def test_names_of_before_can_be_revoked(self):
        path = self.dir / "tokens.yaml"
        names = ["a/b", "a%2Fb", "x y", "ä/.."]
        path.write_text(self.line("root", "one-11112222", "admin") +
                        "".join(self.line(json.dumps(name), f"old-{i}", "read") for i, name in enumerate(names)))
        server = self.start(tokens_file=path)
        server.token = "one-11112222"
        for i, name in enumerate(names):
            self.assertEqual(self.status(server, f"old-{i}"), 200)
            self.cli(server, "token", "revoke", name, token="one-11112222")
            self.assertEqual(self.status(server, f"old-{i}"), 401, name)

    def test_a_signal_reads_both_places(self):
        config, path = self.dir / "server.yaml", self.dir / "tokens.yaml"
        config.write_text(json.dumps({"tokens": [{"name": "c", "sha256": digest("conf-1111"), "scopes": ["read"]}]}))
        path.write_text(self.line("a", "one-11112222", "admin"))
        server = self.start(config=config, tokens_file=path)
        server.token = "one-11112222"
        self.assertEqual((self.status(server, "conf-1111"), self.status(server, "one-11112222")), (200, 200))
        problem = server.call("DELETE", "/v1/tokens/c", headers=bearer("one-11112222"))
        self.assertIn("configuration", self.problem(problem, 409, "CONFLICT")["detail"])
        config.write_text(json.dumps({"tokens": [{"name": "c", "sha256": digest("conf-2222"), "scopes": ["read"]}]}))
        server.process.send_signal(signal.SIGHUP)
        eventually("the new token is accepted", lambda: self.status(server, "conf-2222") == 200)
        eventually("every loop refuses the old token", lambda: all(self.status(server, "conf-1111") == 401 for _ in range(8)))
        self.assertEqual(self.status(server, "one-11112222"), 200)
        config.write_text("tokens: []\n")
        path.write_text("[]\n")
        server.process.send_signal(signal.SIGHUP)
        eventually("the reload is refused", lambda: "event=server.reload_refused" in server.log)
        self.assertEqual(self.status(server, None), 401)


class Limit(TokenCase):
    def test_wrong_tokens(self):
        server, root = self.guarded(loops=1, login_failures_max=5)
        good = self.cli(server, "token", "create", "good", "--scope", "read", token=root)
        self.assertEqual([self.status(server, f"wrong-{i}") for i in range(5)], [401] * 5)
        answer = server.call("GET", "/v1/jobs", headers=bearer("wrong-6"))
        self.problem(answer, 429, "RATE_LIMITED")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertEqual(self.status(server, good), 200, "a right token from that address must be accepted")
        self.assertEqual(self.status(server, root), 200, "a token that was used before must be accepted")
        self.assertEqual(self.status(server, "wrong-7"), 429, "a right token must not reset the limit")
        self.assertEqual(self.status(server, None), 401, "a call without a token is not limited")
        self.assertEqual(server.log.count("event=login.limited"), 1)
        self.assertEqual(server.call("GET", "/healthz").status, 200)
        metrics = server.call("GET", "/metrics", headers=bearer(root)).body.decode()
        self.assertIn('berth_logins_failed_total{reason="limited"} 2', metrics)

    def test_no_limit(self):
        server, _ = self.guarded(loops=1, login_failures_max=0)
        self.assertEqual([self.status(server, f"wrong-{i}") for i in range(200)], [401] * 200)


@tags("threads")
class Audit(TokenCase):
    def test_who_did_what(self):
        server, root = self.guarded()
        ops = self.cli(server, "token", "create", "ops", "--scope", "operate", token=root)
        reader = self.cli(server, "token", "create", "reader", "--scope", "read", token=root)
        node = WsNode(server, "us", headers=bearer(root))
        self.cli(server, "node", "drain", "us", token=ops)
        self.cli(server, "node", "drain", "us", token=reader, code=1)
        self.cli(server, "node", "drain", "nobody", token=ops, code=3)
        server.call("POST", "/v1/nodes/us/undrain", {}, {**bearer(ops), "X-Request-Id": "change-4711"})
        server.call("POST", "/v1/breakers/reset", {"node_id": "us", "type": "x"}, bearer(ops))
        server.call("POST", "/v1/nodes/us/cordon", {}, bearer("wrong"))  # an unknown token
        server.call("GET", "/v1/jobs", headers=bearer("wrong"))
        server.call("GET", "/v1/jobs")
        entries = json.loads(self.cli(server, "audit", "-o", "json", token=root))["audit"]
        self.assertEqual([(row["who"], row["action"], row["target"], row["result"]) for row in entries],
                         [(None, "jobs.read", None, "UNAUTHORIZED"), (None, "nodes.cordon", "us", "UNAUTHORIZED"),
                          ("ops", "breakers.reset", "us", "NOT_FOUND"), ("ops", "nodes.undrain", "us", "ok"),
                          ("ops", "nodes.drain", "nobody", "NOT_FOUND"), ("reader", "nodes.drain", "us", "FORBIDDEN"),
                          ("ops", "nodes.drain", "us", "ok"), ("root", "tokens.create", "reader", "ok"),
                          ("root", "tokens.create", "ops", "ok"), (None, "tokens.create", "root", "ok")])
        self.assertEqual(entries[3]["request_id"], "change-4711")
        self.assertTrue(all(row["request_id"] and row["peer"] and row["at_ms"] and row["count"] == 1 for row in entries))
        self.assertTrue(all((row["kind"] == "change") == (row["result"] == "ok") for row in entries))
        for kind in ("change", "refused"):
            listed = json.loads(self.cli(server, "audit", "--kind", kind, "-o", "json", token=root))["audit"]
            self.assertEqual(listed, [row for row in entries if row["kind"] == kind])
        self.cli(server, "audit", "--kind", "both", token=root, code=2)
        self.assertIn("event=audit who=ops action=nodes.undrain target=us result=ok status=200 request_id=change-4711", server.log)
        self.assertIn("nodes.undrain", self.cli(server, "audit", "--action", "nodes.undrain", token=root))
        self.assertNotIn("tokens.create", self.cli(server, "audit", "--who", "ops", token=root))
        self.cli(server, "audit", token=ops, code=1)
        node.close()
        server.kill()
        again = self.start()
        again.token = root
        after = json.loads(self.cli(again, "audit", "-o", "json", token=root))["audit"]
        self.assertEqual(after, entries, "entries must survive a kill")
        page = json.loads(self.cli(again, "audit", "--limit", "2", "-o", "json", token=root))
        self.assertEqual([row["id"] for row in page["audit"]], [10, 9])
        rest = json.loads(self.cli(again, "audit", "--limit", "9", "--cursor", page["next_cursor"], "-o", "json", token=root))
        self.assertEqual([row["id"] for row in rest["audit"]], [8, 7, 6, 5, 4, 3, 2, 1])

    def test_who_alters_it_is_noticed(self):
        server, root = self.guarded()
        for name in ("a", "b", "c"):
            self.cli(server, "token", "create", name, "--scope", "read", token=root)
        self.cli(server, "node", "drain", "nobody", token=root, code=3)  # refused calls are not signed
        chain = json.loads(self.cli(server, "audit", "verify", "-o", "json", token=root))
        self.assertEqual((chain["entries"], chain["newest_id"], chain["broken_id"]), (4, 4, None))
        rows = json.loads(self.cli(server, "audit", "-o", "json", token=root))["audit"]
        self.assertEqual([bool(row["mac"]) for row in rows], [False, True, True, True, True])
        self.assertEqual(rows[1]["mac"], chain["newest_mac"])
        self.assertIn(f"4 changes fit together; the newest is entry 4, MAC {chain['newest_mac']}", self.cli(server, "audit", "verify", token=root))
        self.assertEqual((server.data_dir / "audit.key").stat().st_mode & 0o777, 0o600)
        server.stop()
        file = server.data_dir / "audit.jsonl"
        file.write_text(file.read_text().replace('"target":"b"', '"target":"x"'))
        again = self.start()
        again.token = root
        self.assertRegex(again.log, r"event=audit.broken id=3 ")
        self.assertEqual(self.ok(again.get("/v1/audit", **bearer(root)))["chain"]["broken_id"], 3)
        self.cli(again, "audit", "verify", token=root, code=1)
        self.problem(again.get("/v1/audit?verify=x", **bearer(root)), 400, "BAD_FIELD")

    def test_a_disk_that_refuses_it(self):
        spec = {"type": "daemon", "command": ["sleep", "1"]}
        blocked = self.dir / "data" / "audit.jsonl"
        blocked.mkdir(parents=True)
        server = self.start(audit="required")
        detail = self.problem(server.call("PUT", "/v1/deployments/d1", spec), 503, "AUDIT_NOT_WRITTEN")["detail"]
        self.assertIn("Is a directory", detail)
        self.assertEqual(server.get("/v1/deployments/d1").status, 404, "the change must not be made")
        self.assertEqual(server.post("/v1/node/register", {"node_id": "n1"}).status, 200, "calls of nodes are not audited")
        blocked.rmdir()
        self.ok(server.call("PUT", "/v1/deployments/d1", spec), 201)
        self.problem(server.call("PUT", "/v1/deployments/d2", {}), 400, "BAD_FIELD")
        entries = server.get("/v1/audit").json["audit"]
        self.assertEqual([(row["target"], row["result"], row["kind"]) for row in entries],
                         [("d2", "BAD_FIELD", "refused"), ("d2", "asked", "change"), ("d1", "ok", "change"), ("d1", "asked", "change"),
                          ("d1", "AUDIT_NOT_WRITTEN", "refused"), ("d1", "asked", "change")])
        self.assertEqual(entries[2]["request_id"], entries[3]["request_id"])
        self.assertEqual(entries[3]["body_sha256"], digest(json.dumps(spec)))
        lines = [json.loads(line) for line in blocked.read_text().splitlines()]
        self.assertEqual([(line["target"], line["result"]) for line in lines], [("d1", "asked"), ("d1", "ok"), ("d2", "asked")])

    def test_what_a_change_brought(self):
        server = self.start()
        spec = json.dumps({"type": "daemon", "command": ["sleep", "1"]})
        self.ok(server.call("PUT", "/v1/deployments/d1", spec), 201)
        self.problem(server.call("PUT", "/v1/deployments/d1", '{"type": "none"}'), 400, "BAD_FIELD")
        self.ok(server.call("DELETE", "/v1/deployments/d1"))
        self.assertEqual([(row["action"], row["body_sha256"]) for row in server.get("/v1/audit").json["audit"]],
                         [("deployments.delete", None), ("deployments.put", None), ("deployments.put", digest(spec))])

    def test_without_tokens_and_with_bad_words(self):
        server = self.start()
        server.call("POST", "/v1/nodes/a%0Ab/drain", {}, {"X-Request-Id": "x" * 500})
        server.call("POST", "/v1/nodes/" + "n" * 600 + "/drain", {}, {"X-Request-Id": "two words"})
        entries = server.get("/v1/audit").json["audit"]
        self.assertEqual([row["result"] for row in entries], ["NOT_FOUND"] * 2)
        self.assertEqual((entries[1]["target"], entries[0]["target"]), ("a", "n" * 127))
        self.assertTrue(all(row["request_id"].startswith("r") for row in entries))
        self.problem(server.get("/v1/audit?limit=0"), 400, "BAD_FIELD")
        self.problem(server.get("/v1/audit?cursor=x"), 400, "BAD_FIELD")


class Flood:
    """Calls one route with one token as fast as it can over a few connections, and counts the answers by status."""
    CONNECTIONS, AT_ONCE = 4, 64

    def __init__(self, server, token):
        self.address = ("127.0.0.1", server.port)
        request = (f"POST /v1/nodes/us/cordon HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
                   "Content-Length: 2\r\n\r\n{}")
        self.requests = request.encode() * self.AT_ONCE
        self.answered = {}
        self.lock, self.over = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.CONNECTIONS)]
        for thread in self.threads:
            thread.start()

    def _round(self, link):
        """True if all requests were answered."""
        left, kept = self.AT_ONCE, b""
        link.sendall(self.requests)
        while left > 0:
            got = link.recv(1 << 20)
            heads = re.findall(rb"HTTP/1\.1 (\d+) ", kept + got)
            kept = (kept + got)[-12:] if not heads else re.split(rb"HTTP/1\.1 \d+ ", kept + got)[-1][-12:]
            left -= len(heads)
            with self.lock:
                for status in map(int, heads):
                    self.answered[status] = self.answered.get(status, 0) + 1
            if not got:
                return False
        return True

    def _run(self):
        while not self.over.is_set():
            try:
                with socket.create_connection(self.address, 30 * SLOW) as link:
                    while not self.over.is_set() and self._round(link):
                        pass
            except OSError:  # the server closed the connection; if it was stopped, end() is called soon
                self.over.wait(0.01)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


@tags("threads")
class Flooded(TokenCase):
    CALLS = 200000
    STRANGERS = 200  # more than get an entry of their own; each refused call ends its connection
    PROMPT_S = 10  # how much longer something may take than without the flood

    def took(self, act):
        begun = time.monotonic()
        act()
        return time.monotonic() - begun

    def rss_kb(self, server):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.pid}/status").read_text()).group(1))

    def flood(self, server, token):
        flood = Flood(server, token)
        self.addCleanup(flood.end)
        return flood

    def reload(self, server):
        before = server.log.count("event=server.reloaded")
        server.process.send_signal(signal.SIGHUP)
        eventually("the server has reloaded its settings", lambda: server.log.count("event=server.reloaded") > before, 60)

    def audit(self, server, root, **filters):
        query = "".join(f"&{name}={value}" for name, value in filters.items())
        return self.ok(server.call("GET", f"/v1/audit?limit=1000{query}", headers=bearer(root)))["audit"]

    def test_a_reader_is_refused_as_fast_as_it_can(self):
        server, root = self.guarded()
        reader, other = (self.cli(server, "token", "create", name, "--scope", "read", token=root) for name in ("reader", "other"))
        node = WsNode(server, "us", headers=bearer(root))
        self.cli(server, "node", "drain", "us", token=root)
        calm = [self.took(lambda: self.reload(server)), self.took(lambda: self.cli(server, "token", "revoke", "other", token=root))]
        changes, small_kb = self.audit(server, root, kind="change"), self.rss_kb(server)
        flood = self.flood(server, reader)
        eventually(f"{self.CALLS} calls were refused", lambda: flood.answered.get(403, 0) >= self.CALLS, 120)
        flooded = [self.took(lambda: self.reload(server)), self.took(lambda: self.cli(server, "token", "revoke", "reader", token=root))]
        grown_kb = self.rss_kb(server)
        for before, after in zip(calm, flooded):
            self.assertLess(after, before + self.PROMPT_S * SLOW, (calm, flooded))
        if SLOW == 1:  # a sanitiser keeps freed memory
            self.assertLess(grown_kb, 2 * small_kb)
        eventually("the revoked token is refused", lambda: flood.answered.get(401, 0) + flood.answered.get(429, 0) > self.STRANGERS, 120)
        flood.end()
        # Every call was counted, most of them in one entry for many.
        refused = lambda: self.audit(server, root, kind="refused", who="reader")
        eventually("the audit has counted all refused calls", lambda: sum(row["count"] for row in refused()) >= flood.answered[403])
        self.assertEqual(sum(row["count"] for row in refused()), flood.answered[403])
        self.assertLess(len(refused()), flood.answered[403] / 100)
        strangers = lambda: [row for row in self.audit(server, root, kind="refused") if not row["who"] and row["peer"]]
        eventually("the audit counts calls without a valid token together", lambda: strangers()[0]["count"] > 1)
        self.assertEqual({row["result"] for row in strangers()} - {"RATE_LIMITED"}, {"UNAUTHORIZED"})
        self.assertEqual(self.audit(server, root, kind="change")[1:], changes, "entries of earlier changes must be kept")
        node.close()

    def test_it_ends_when_it_is_told_to(self):
        server, root = self.guarded()
        calm_s = self.took(lambda: self.assertEqual(server.stop(60), 0))
        server = self.start()
        server.token = root
        reader = self.cli(server, "token", "create", "reader", "--scope", "read", token=root)
        flood = self.flood(server, reader)
        eventually(f"{self.CALLS} calls were refused", lambda: flood.answered.get(403, 0) >= self.CALLS, 120)
        flooded_s = self.took(lambda: self.assertEqual(server.stop(120), 0))
        flood.end()
        self.assertLess(flooded_s, calm_s + self.PROMPT_S * SLOW)
        lines = [json.loads(line) for line in (server.data_dir / "audit-refused.jsonl").read_text().splitlines()]
        self.assertGreaterEqual(sum(line["count"] for line in lines if line["who"] == "reader"), flood.answered[403])


class Dev(TokenCase):
    def test_its_agent_is_let_in(self):
        server = self.start(verb="dev")
        eventually("the agent of berth dev has registered", lambda: server.get("/v1/nodes").json["nodes"])
        server.token = root = self.cli(server, "token", "create", "root", "--scope", "admin")
        eventually("the agent has connected again, with a token of its own", lambda: server.log.count("event=agent.connected") == 2)
        self.assertEqual(len(json.loads(self.cli(server, "node", "ls", "-o", "json", token=root))["nodes"]), 1)
        self.assertEqual(server.get("/v1/nodes").status, 401)
