"""/v1/openapi.json is true: every route is called, and every answer and every error is checked against the document.

A new route needs a row in CALLS: (method, path) -> a function that calls it well at least once."""
import re
import hashlib
import threading

import schemacheck
import test_agent
from harness import ROOT, Case, Node, WsNode, eventually

# Errors that a client cannot provoke at will, or that other cases provoke (raw bytes, a store that is away).
ELSEWHERE = {"BAD_CONFIG", "REQUEST_TIMEOUT", "URI_TOO_LONG", "EXPECTATION_FAILED",
             "HEADERS_TOO_LARGE", "INTERNAL", "NOT_IMPLEMENTED", "SCHEDULER_DEPENDENCY_DOWN", "SCHEDULER_BUSY",
             "STORE_FULL", "AUDIT_NOT_WRITTEN",
             "DEPLOYMENTS_NEED_SHARED_DATABASE", "HTTP_VERSION_NOT_SUPPORTED", "RATE_LIMITED", "TIMEOUT",
             "PRECONDITION_FAILED", "OUTCOME_UNKNOWN", "LIMITED"}


class Calls:
    """One well-formed call of each route, on a server that has some of everything."""

    def __init__(self, case, server):
        self.case = case
        self.server = server

    def call(self, method, path, body=None, route=None, headers=None):
        answer = self.server.call(method, path, body, headers)
        self.case.judge(method, route or path, answer)
        self.case.assertLess(answer.status, 400, f"{method} {path}: {answer}")
        return answer

    def example(self, name):
        return self.case.doc["components"]["schemas"][name]["examples"][0]

    def fleet(self):
        for path in ("register", "heartbeat"):
            self.call("POST", f"/v1/node/{path}", self.example("NodeReport"))
        self.call("POST", "/v1/node/register", {"node_id": "n1", "semantic_langs": ["en"], "nmt_pairs": [["en", "zh"]],
                                                "allowed_types": ["*"], "max_concurrent_jobs": 20,
                                                "labels": {"zone": "us"}})
        self.call("POST", "/v1/node/register", {"node_id": "any", "semantic_langs": ["en"], "nmt_pairs": "any",
                                                "max_concurrent_jobs": 0})
        self.call("POST", "/v1/node/deregister", self.example("NodeName"))

    def f2f(self):
        self.call("POST", "/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh", "session_id": "room-1"})
        self.call("POST", "/v1/dispatch/f2f?dry_run=1", self.example("F2f"), "/v1/dispatch/f2f")

    def task(self):
        body = {**self.example("Task"), "interactive": True, "max_attempts": 2, "timeout_ms": "1m",
                "callback_url": "http://127.0.0.1:9/", "requires": "zone=us", "command": ["true"]}
        placed = self.call("POST", "/v1/dispatch/task", body, headers={
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Idempotency-Key": "k1"}).json
        self.call("POST", "/v1/dispatch/task", body, headers={"Idempotency-Key": "k1"})
        self.call("POST", "/v1/dispatch/task?dry_run=1&limit=1", self.example("Task"), "/v1/dispatch/task")
        return placed

    def batch(self):
        self.call("POST", "/v1/dispatch/batch", self.example("Batch"))
        self.call("POST", "/v1/dispatch/batch", {"jobs": [{"type": "f2f"}, {"type": "dev", "requires": "zone=mars"}]})

    def life(self):
        """A job from dispatch to its end, from its node's point of view."""
        self.task()
        jobs = self.call("GET", "/v1/node/jobs?node_id=n1&wait=1s", route="/v1/node/jobs").json["jobs"]
        for number, job in enumerate(jobs):
            word = {"job_id": job["job_id"], "attempt_id": job["attempt_id"], "node_id": "n1"}
            for _ in range(2):
                self.call("POST", "/v1/job/ack", word)
            if number % 2:
                self.call("POST", "/v1/job/fail", {**word, "status": "error", "reason": "EXIT_1"})
            else:
                self.call("POST", "/v1/job/done", {**word, "status": "ok", "result": {"text": "x", "tail": "y"}})

    def jobs(self):
        listed = self.call("GET", "/v1/jobs?limit=5", route="/v1/jobs").json["jobs"]
        self.call("GET", "/v1/jobs?state=DONE,FAILED&node_id=n1&type=dev", route="/v1/jobs")
        for job in listed:
            self.call("GET", f"/v1/jobs/{job['job_id']}?wait=1ms", route="/v1/jobs/{id}")
            self.call("GET", f"/v1/jobs/{job['job_id']}/explain", route="/v1/jobs/{id}/explain")

    def ends(self):
        job = self.task()
        self.call("POST", f"/v1/jobs/{job['job_id']}/cancel", {}, "/v1/jobs/{id}/cancel")
        again = self.call("POST", f"/v1/jobs/{job['job_id']}/retry", {}, "/v1/jobs/{id}/retry").json
        self.call("POST", f"/v1/jobs/{again['job_id']}/cancel", None, "/v1/jobs/{id}/cancel")

    def logs(self):
        agent = test_agent.Agent(self.case, self.server, "a1")
        self.case.addCleanup(agent.process.kill)
        eventually("the agent has registered", lambda: self.server.get("/v1/nodes/a1").status == 200)
        self.call("POST", "/v1/nodes/n1/cordon", {}, "/v1/nodes/{id}/cordon")
        job = self.server.post("/v1/dispatch/task", {"type": "sh", "command": "echo hello", "queue_ms": "20s"}).json
        eventually("the job is done", lambda: self.server.job(job["job_id"])["state"] == "DONE", 30)
        for path in ("/v1/jobs/{id}/logs", "/v1/jobs/{id}", "/v1/jobs/{id}/explain"):
            self.call("GET", path.replace("{id}", job["job_id"]), route=path)
        self.call("POST", "/v1/nodes/a1/rpc/Job/Logs", {"job_id": job["job_id"], "attempt_id": 1},
                  "/v1/nodes/{id}/rpc/{service}/{method}")

    def nodes(self):
        for path in ("/v1/nodes?limit=1", "/v1/nodes?health=ready&selector=zone=us", "/v1/nodes"):
            self.call("GET", path, route="/v1/nodes")
        for word in ("drain", "undrain", "cordon", "undrain"):
            self.call("POST", f"/v1/nodes/n1/{word}", {"reason": "a test"}, f"/v1/nodes/{{id}}/{word}")
            self.call("GET", "/v1/nodes/n1", route="/v1/nodes/{id}")
        self.call("POST", "/v1/node/register", {"node_id": "gone"})
        self.call("DELETE", "/v1/nodes/gone", route="/v1/nodes/{id}")

    def breakers(self):
        self.call("GET", "/v1/breakers?limit=1", route="/v1/breakers")
        self.call("POST", "/v1/breakers/reset", {"node_id": "n1", "type": "dev"})

    def limits(self):
        one = "/v1/limits/{key}"
        self.call("PUT", "/v1/limits/account:api-1", {"concurrency": 3, "rate": "60/1m", "queue": 10, "weight": 2}, one)
        self.call("PUT", "/v1/limits/tenant:*", {"concurrency": 50}, one)
        self.call("POST", "/v1/limits/account:api-1/hold", {"for_ms": 60000, "reason": "a test"}, one + "/hold")
        for path in ("/v1/limits?limit=1", "/v1/limits?prefix=account:", "/v1/limits"):
            self.call("GET", path, route="/v1/limits")
        self.call("GET", "/v1/limits/account:api-1", route=one)
        self.call("POST", "/v1/limits/account:api-1/release", {}, one + "/release")
        self.call("DELETE", "/v1/limits/tenant:*", route=one)

    def deployments(self):
        one = "/v1/deployments/{id}"
        self.call("PUT", "/v1/deployments/web", {**self.example("DeploymentSpec"), "stop_grace_ms": "2s", "restart": {"max_ms": 9},
                                                 "health": {"command": "true", "failures": 2}}, one)
        self.call("PUT", "/v1/deployments/web", self.example("DeploymentSpec"), one)
        self.call("PUT", "/v1/deployments/each", {"type": "daemon", "command": ["a", "b"]}, one)
        self.call("PATCH", "/v1/deployments/web", self.example("Enabled"), one)
        self.call("PATCH", "/v1/deployments/web", {"enabled": True}, one)
        self.call("POST", "/v1/deployments/web/restart", {}, one + "/restart")
        self.call("POST", "/v1/deployments/web/scale", self.example("Scale"), one + "/scale")
        self.call("GET", "/v1/deployments/web", route=one)
        self.call("GET", "/v1/deployments")
        self.call("POST", "/v1/deployments/web/rollback", self.example("Rollback"), one + "/rollback")
        self.call("GET", "/v1/deployments/web", route=one)
        self.call("POST", "/v1/deployments/web/rollback", {"to_version": 5}, one + "/rollback")
        self.call("POST", "/v1/deployments/web/scale", {"count": 1}, one + "/scale")
        for name in ("renew", "view"):
            self.call("POST", f"/v1/deployments/{name}", self.example("DeployLook"))
        self.call("POST", "/v1/deployments/services", self.example("ServicesLook"))
        self.call("GET", "/v1/services/web", route="/v1/services/{name}")
        claimed = self.call("POST", "/v1/deployments/claim", self.example("DeployClaim")).json
        self.call("POST", "/v1/deployments/claim", self.example("DeployClaim"))
        self.call("POST", "/v1/deployments/status", self.example("DeployStatus"))
        self.call("POST", "/v1/deployments/renew", {"node_id": "n1"})
        for path in ("/v1/deployments?limit=1", "/v1/deployments?type=daemon&enabled=true&address="):
            self.call("GET", path, route="/v1/deployments")
        self.call("GET", "/v1/deployments/web", route=one)
        self.call("GET", "/v1/deployments/web/history?limit=2", route=one + "/history")
        self.call("GET", "/v1/deployments/web/explain?limit=2", route=one + "/explain")
        self.call("POST", "/v1/deployments/release", self.example("Release"))
        self.call("POST", "/v1/deployments/approve", self.example("Approve"))
        self.call("POST", "/v1/deployments/yield", {**self.example("DeployClaim"), "generation": claimed["generation"]})
        self.case.seen.add(("post", "/v1/deployments/lost"))  # only with claim_mode seed: see test_deploy.py
        self.deployment_logs()
        self.call("DELETE", "/v1/deployments/web", route=one)

    def deployment_logs(self):
        """Answered by the node that runs the deployment."""
        node = WsNode(self.server, "keeper", labels={"zone": "us"})
        node.ask("call", path="/v1/deployments/renew")
        row = node.ask("call", path="/v1/deployments/view")["body"]["rows"][-1]
        eventually("the node can claim the deployment", lambda: node.ask("call", path="/v1/deployments/claim", body={
            "id": "web", "generation": row["generation"]})["ok"])

        def answer():
            asked = node.expect("rpc", method="Deployment/Logs")
            node.send("rpc_reply", re=asked["id"], result={"offset": 0, "next": 2, "total": 2, "text": "x\n", "ended": False})

        thread = threading.Thread(target=answer)
        thread.start()
        self.call("GET", "/v1/deployments/web/logs?max=9", route="/v1/deployments/{id}/logs")
        thread.join()
        node.close()

    def terminals(self):
        node = WsNode(self.server, "unit", tags={"node_unit": "true", "node_unit_address": "unit"})
        eventually("the node is a member", lambda: any(t["terminal_id"] == "unit"
                                                       for t in self.server.get("/v1/terminals").json["terminals"]))
        listed = self.call("GET", "/v1/terminals?limit=1", route="/v1/terminals").json
        self.call("POST", "/v1/terminals/sync", self.example("TerminalSync"))
        self.call("POST", "/v1/terminals/unit", self.example("TerminalUpdate"), "/v1/terminals/{id}")
        self.call("POST", "/v1/terminals/unit", {"tags": {"a": "b", "c": None}}, "/v1/terminals/{id}")
        eventually("sync returns the change", lambda: self.call("POST", "/v1/terminals/sync", {
            "node_id": "unit", "source": listed["source"], "seq": listed["seq"]}).json["changes"])
        self.call("POST", "/v1/terminals/usage", self.example("UsageAsk"))
        node.close()

    def status(self):
        for path in ("/api/brain/cluster/status", "/v1/cluster/status"):
            self.call("GET", path)

    def info(self):
        for path in ("/v1/pools", "/healthz", "/readyz", "/metrics", "/v1/stats", "/v1/report", "/v1/report/usage", "/v1/report/usage.csv", "/v1/debug", "/v1/openapi.json", "/"):
            self.call("GET", path)
        page = self.server.get("/").body.decode()
        names = re.findall(r"/?page/([A-Za-z0-9._-]+)", page)
        for name in names[:1]:
            self.call("GET", f"/page/{name}", route="/page/{name}")
        if not names:
            self.case.seen.add(("get", "/page/{name}"))  # a binary without the page
        self.call("GET", "/v1/sessions/room-1", route="/v1/sessions/{id}")

    def streams(self):
        """Routes that do not answer with JSON are opened and closed."""
        self.case.seen |= {("get", "/v1/events"), ("get", "/v1/node/connect"), ("get", "/v1/submit/connect"),
                           ("get", "/v1/terminals/events")}
        WsNode(self.server, "ws1").close()
        for path in ("/v1/events", "/v1/terminals/events"):
            with self.server.client() as client:
                client.connection.request("GET", path)
                reply = client.connection.getresponse()
                self.case.assertEqual((reply.status, reply.headers.get_content_type()), (200, "text/event-stream"))


    def tokens(self):
        """Runs last: once there is a token, the server requires one with every call."""
        self.server.token = self.call("POST", "/v1/tokens", {"name": "root", "scopes": ["admin"]}).json["token"]
        headers = {"Authorization": f"Bearer {self.server.token}"}
        self.call("POST", "/v1/tokens", self.example("NewToken"), headers=headers)
        self.call("GET", "/v1/tokens?limit=1", route="/v1/tokens", headers=headers)
        self.call("GET", "/v1/tokens", headers=headers)
        self.call("DELETE", "/v1/tokens/ci", route="/v1/tokens/{name}", headers=headers)
        self.call("GET", "/v1/audit?limit=1&who=root", route="/v1/audit", headers=headers)
        self.call("GET", "/v1/audit", headers=headers)


ORDER = [Calls.fleet, Calls.f2f, Calls.batch, Calls.life, Calls.jobs, Calls.ends, Calls.nodes, Calls.status, Calls.info,
         Calls.streams, Calls.breakers, Calls.limits, Calls.deployments, Calls.terminals, Calls.logs,
         Calls.tokens]


class OpenApi(Case):
    def load(self, server, headers=None):
        self.doc = self.ok(server.call("GET", "/v1/openapi.json", headers=headers))
        self.checker = schemacheck.Checker(self.doc["components"]["schemas"])
        self.seen, self.errors = set(), set()

    def judge(self, method, route, answer):
        """Checks an answer against the document's description of it."""
        operation = self.doc["paths"][route][method.lower()]
        known = operation["responses"].get(str(answer.status))
        response = known or operation["responses"]["default"]
        media, content = next(iter(response["content"].items()))
        where = f"{method} {route} {answer.status}"
        if media != "*/*":
            self.assertEqual(answer.headers.get_content_type(), media, f"{where}: {answer}")
        if "json" in media:
            try:
                self.checker.check(answer.json, content["schema"])
            except schemacheck.Wrong as why:
                self.fail(f"{where}: {why}")
        if known:
            self.seen.add((method.lower(), route))
        else:
            self.assertGreaterEqual(answer.status, 400, f"{where}: {answer}")
            self.assertEqual(answer["status"], answer.status)
            self.errors.add(answer["error"])
        return answer

    def routes(self):
        return {(method, path) for path, operations in self.doc["paths"].items() for method in operations}

    def test_every_route_answers_as_described(self):
        server = self.start(allow_urls="loopback")
        self.load(server)
        calls = Calls(self, server)
        for step in ORDER:
            step(calls)
        self.assertEqual(self.routes() - self.seen, set(), "routes without a successful call: add one above")
        self.assertEqual(self.seen - self.routes(), set())

    def test_every_error_is_described(self):
        server = self.start(queue_max=1)
        self.load(server)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=0)

        def bad(method, path, body=None, route=None, headers=None):
            answer = server.call(method, path, body, headers)
            return self.judge(method, route or path, answer)

        bad("POST", "/v1/dispatch/f2f", "{")
        bad("POST", "/v1/dispatch/f2f", {"src_lang": "en"})
        bad("POST", "/v1/dispatch/f2f", {"src_lang": "fr", "tgt_lang": "ja"})
        bad("POST", "/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh"})
        options = {"src_lang": "en", "tgt_lang": "zh", "options": {"preferred_node_id": "n1", "strict": True}}
        bad("POST", "/v1/dispatch/f2f", options)
        bad("POST", "/v1/dispatch/f2f", {**options, "options": {"preferred_node_id": "nobody"}})
        for _ in range(2):
            server.post("/v1/dispatch/task", {"type": "dev", "queue_ms": 60000})
        bad("POST", "/v1/dispatch/task", {"type": "dev", "queue_ms": 60000})
        bad("POST", "/v1/dispatch/task", {"type": "dev", "payload": "x" * 5000000})
        for path in ("/v1/jobs/{id}", "/v1/jobs/{id}/explain", "/v1/jobs/{id}/logs", "/v1/nodes/{id}",
                     "/v1/sessions/{id}"):
            bad("GET", path.replace("{id}", "nobody"), route=path)
        bad("GET", "/v1/jobs?limit=0", route="/v1/jobs")
        bad("GET", "/v1/node/connect")
        bad("GET", "/v1/submit/connect")
        bad("POST", "/v1/nodes/n1/rpc/A/B", {}, "/v1/nodes/{id}/rpc/{service}/{method}")
        bad("GET", "/v1/nodes", headers={"Host": "evil.example"})
        bad("POST", "/v1/job/ack", {"job_id": "j0000000000000", "attempt_id": 1, "node_id": "n1"})
        node = Node(server, "n2", allowed_types=["work"])
        self.ok(server.post("/v1/limits/account:api-1/hold", {"for_ms": 60000}))
        bad("POST", "/v1/dispatch/task", {"type": "work", "keys": ["account:api-1"]})
        job = server.post("/v1/dispatch/task", {"type": "work"}, headers={"Idempotency-Key": "k"}).json
        bad("POST", "/v1/dispatch/task", {"type": "work", "title": "other"}, headers={"Idempotency-Key": "k"})
        self.ok(node.ack(job))
        bad("POST", "/v1/job/done", {"job_id": job["job_id"], "attempt_id": 2, "node_id": "n2"})
        bad("POST", f"/v1/jobs/{job['job_id']}/retry", {}, "/v1/jobs/{id}/retry")
        # An unknown path, and a method that a path does not support, have no operation of their own.
        for method, path in (("GET", "/v1/nothing"), ("PUT", "/v1/jobs")):
            answer = server.call(method, path)
            self.checker.check(answer.json, self.doc["components"]["schemas"]["Problem"])
            self.errors.add(answer["error"])
        server.token = self.ok(server.post("/v1/tokens", {"name": "root", "scopes": ["admin"], "quota": "rate=1/h"}), 201)["token"]
        for _ in range(2):
            bad("POST", "/v1/dispatch/task", {"type": "nobody"}, headers={"Authorization": f"Bearer {server.token}"})
        names = set(self.doc["components"]["schemas"]["ErrorName"]["enum"])
        self.assertEqual(self.errors - names, set())
        self.assertEqual(names - self.errors - ELSEWHERE, {"UNAUTHORIZED", "BAD_REQUEST"} - self.errors)

    def test_with_tokens_every_route_refuses_in_the_described_way(self):
        digest = hashlib.sha256(b"reader").hexdigest()
        config = self.dir / "tokens.yaml"
        config.write_text(f"tokens:\n  - {{name: r, sha256: {digest}, scopes: [read]}}\n")
        server = self.start(config=str(config))
        token = {"Authorization": "Bearer reader"}
        self.load(server, token)
        for method, path in sorted(self.routes()):
            operation = self.doc["paths"][path][method]
            there = re.sub(r"\{\w+\}", "x", path)
            if operation["x-scope"] == "none":
                continue
            answer = server.call(method.upper(), there, {} if method == "post" else None)
            self.assertEqual(answer.status, 401, f"{method} {path}: {answer}")
            self.judge(method.upper(), path, answer)
            if operation["x-scope"] != "read":
                answer = server.call(method.upper(), there, {} if method == "post" else None, token)
                self.assertEqual(answer.status, 403, f"{method} {path}: {answer}")
                self.judge(method.upper(), path, answer)
        self.assertEqual(server.stop(), 0)

    def test_what_handlers_read_by_hand_is_described(self):
        """Bodies that are read by rows are described by the same rows; for other bodies each name that a handler reads must be
        described."""
        server = self.start()
        self.load(server)
        bodies = [operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                  for operations in self.doc["paths"].values() for operation in operations.values() if "requestBody" in operation]
        described = {name for body in bodies for name in self.doc["components"]["schemas"][body].get("properties", ())}
        asked = {}
        for path in sorted((ROOT / "src/server").glob("*.c")):
            if path.name == "hub_ws.c":
                continue  # frames have members in addition to those of their body
            for name in re.findall(r'(?:json_get\(call->body|body_int\(call), "(\w+)"', path.read_text()):
                asked.setdefault(name, path.name)
        self.assertGreater(len(asked), 15)
        self.assertEqual({name: file for name, file in asked.items() if name not in described}, {})

    def test_the_document_itself(self):
        server = self.start()
        self.load(server)
        self.assertEqual(self.doc["openapi"], "3.1.0")
        ids, used = [], set()

        def refs(value):
            if isinstance(value, dict):
                if "$ref" in value:
                    used.add(value["$ref"].rsplit("/", 1)[1])
                for item in value.values():
                    refs(item)
            elif isinstance(value, list):
                for item in value:
                    refs(item)

        refs(self.doc)
        self.assertEqual(used, set(self.doc["components"]["schemas"]), "schemas that are missing or unused")
        for method, path in self.routes():
            operation = self.doc["paths"][path][method]
            ids.append(operation["operationId"])
            names = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
            self.assertEqual(names, re.findall(r"\{(\w+)\}", path))
            self.assertTrue(operation["summary"])
        self.assertEqual(len(ids), len(set(ids)))
        for name, schema in self.doc["components"]["schemas"].items():
            for example in schema.get("examples", []):
                self.checker.check(example, schema, name)
