"""Why a job went to its node: every node has a reason, asking changes nothing, and the text is readable."""
from harness import Case, Node, berth, eventually
from redis import Redis


class Explain(Case):
    def why(self, server, job_id, **query):
        text = "&".join(f"{name}={value}" for name, value in query.items())
        answer = self.ok(server.get(f"/v1/jobs/{job_id}/explain?{text}"))
        for decision in answer["decisions"] + ([answer["now"]] if answer["now"] else []):
            self.adds_up(decision)
        return answer

    def adds_up(self, decision):
        self.assertEqual(sum(decision["reasons"].values()), decision["nodes_total"], decision)
        self.assertEqual(len(decision["nodes"]) + decision["nodes_left_out"], decision["nodes_total"])
        names = [node["node_id"] for node in decision["nodes"]]
        self.assertEqual(len(set(names)), len(names), "a node is listed twice")
        for node in decision["nodes"]:
            self.assertIn(node["reason"], decision["reasons"])
            self.assertTrue(node["detail"].endswith("."), node)

    def reasons(self, decision):
        return {node["node_id"]: node["reason"] for node in decision["nodes"]}

    def dry(self, server, body, kind="task"):
        answer = self.ok(server.post(f"/v1/dispatch/{kind}?dry_run=1", body))
        self.assertIs(answer["dry_run"], True)
        self.adds_up(answer["now"])
        return answer

    def fleet(self, server):
        Node(server, "idle", allowed_types=["dev"], max_concurrent_jobs=1)
        Node(server, "busy", allowed_types=["dev"], max_concurrent_jobs=0)
        Node(server, "drained", allowed_types=["dev"])
        self.ok(server.post("/v1/nodes/drained/drain"))
        Node(server, "french", semantic_langs=["fr"], nmt_pairs=[["fr", "en"]])

    def test_of_a_placed_and_of_a_refused_job(self):
        server = self.start()
        self.fleet(server)
        job = self.ok(self.task(server))
        found = self.why(server, job["job_id"])
        self.assertEqual(found["state"], "DISPATCHED")
        self.assertEqual(len(found["decisions"]), 1)
        decision = found["decisions"][0]
        self.assertEqual((decision["outcome"], decision["node_id"], decision["pool_id"]),
                         ("PLACED", "idle", "type:dev"))
        self.assertEqual(self.reasons(decision)["idle"], "CHOSEN")
        self.assertEqual({node.get("health_score") for node in decision["nodes"]}, {None},
                         "there is no score unless the policy uses it")
        self.assertEqual(self.reasons(decision)["drained"], "NOT_READY")
        self.assertEqual(self.reasons(decision)["french"], "NOT_CAPABLE")
        refused = self.problem(self.task(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(refused["explain"], f"/v1/jobs/{refused['job_id']}/explain")
        found = self.why(server, refused["job_id"])
        self.assertIsNone(found["state"])
        decision = found["decisions"][0]
        self.assertEqual(self.reasons(decision), {"idle": "FULL", "busy": "NO_CAPACITY",
                                                  "drained": "NOT_READY", "french": "NOT_CAPABLE"})
        by_id = {node["node_id"]: node for node in decision["nodes"]}
        self.assertEqual((by_id["idle"]["load"], by_id["idle"]["max"]), (1, 1))
        self.assertIn("operator drained", by_id["drained"]["detail"])
        self.assertIn("type(dev)", by_id["french"]["detail"])
        self.assertEqual((by_id["french"]["missing"], by_id["drained"]["admin"]), ("type(dev)", "draining"))
        refused = self.problem(self.dispatch(server, src="zh", tgt="fr"), 422, "NO_CAPABLE_NODE")
        decision = self.why(server, refused["job_id"])["decisions"][0]
        self.assertEqual(decision["reasons"], {"NOT_CAPABLE": 4})
        self.problem(server.get("/v1/jobs/j0000000000000/explain"), 404, "NOT_FOUND")
        self.problem(server.get("/v1/jobs/nonsense/explain"), 404, "NOT_FOUND")

    def test_of_a_retried_and_of_a_waiting_job(self):
        server = self.start(reservation_ttl_ms=8000)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        job = self.ok(self.task(server, queue_ms=60000, max_attempts=3))
        waits = self.task(server, queue_ms=60000)
        self.assertEqual(waits.status, 202, str(waits))
        eventually("a decision about the waiting job is recorded",
                   lambda: self.why(server, waits["job_id"])["decisions"])
        found = self.why(server, waits["job_id"])
        self.assertEqual(self.reasons(found["now"]), {"n1": "FULL"})
        self.assertTrue(found["decisions"][-1]["waits"])
        # The attempt is in the store a moment before its decision is recorded.
        eventually("a decision of attempt 2 is recorded", lambda: 2 in [
            decision["attempt_id"] for decision in self.why(server, job["job_id"])["decisions"]], 60)
        found = self.why(server, job["job_id"])
        self.assertEqual(found["attempts"][0]["reason"], "ACK_TIMEOUT")

    def test_a_dry_run_changes_nothing(self):
        server = self.start()
        self.fleet(server)
        before = server.metrics()
        would = self.dry(server, {"type": "dev"})
        self.assertEqual((would["status"], would["outcome"], would["node_id"]), (200, "PLACED", "idle"))
        would = self.dry(server, {"src_lang": "en", "tgt_lang": "ja"}, "f2f")
        self.assertEqual((would["status"], would["outcome"]), (422, "NO_CAPABLE_NODE"))
        self.assertEqual(would["detail"], "No node supports semantic(en) + nmt(en->ja).")
        self.problem(server.post("/v1/dispatch/task?dry_run=1", {"priority": 3}), 400, "BAD_FIELD")
        self.problem(server.post("/v1/dispatch/task?dry_run=maybe", {"type": "dev"}), 400, "BAD_FIELD")
        self.problem(server.post("/v1/dispatch/batch?dry_run=1", {"jobs": [{"type": "dev"}]}), 400,
                     "BAD_FIELD")
        self.assertEqual(server.all_jobs(), [])
        self.assertSlots(server, "idle", 0, 0)
        for name, value in server.metrics().items():
            if "reserve" in name or "dispatch" in name or "jobs" in name:
                self.assertEqual(value, before.get(name, 0), name)
        self.ok(self.task(server))
        would = self.dry(server, {"type": "dev", "queue_ms": 5000})
        self.assertEqual((would["status"], would["outcome"], would["node_id"]), (202, "WAITS", None))
        would = self.dry(server, {"type": "dev"})
        self.assertEqual((would["status"], would["outcome"]), (503, "ALL_CANDIDATES_FULL_OR_FAILED"))

    def test_what_is_foreseen_happens(self):
        """Nodes in many states: a dry run and the dispatch right after it agree."""
        server = self.start()
        for number in range(8):
            Node(server, f"n{number}", allowed_types=["dev"], max_concurrent_jobs=number % 3,
                 labels={"zone": "eu" if number % 2 else "us"}, health="degraded" if number == 4 else "ready")
        for body in [{"type": "dev"}, {"type": "dev", "requires": "zone=eu"}, {"type": "dev", "requires": "zone=mars"},
                     {"type": "talk"}] * 4:
            would = self.dry(server, body)
            answer = server.post("/v1/dispatch/task", body)
            self.assertEqual(answer.status, would["status"], (body, str(answer)))
            if answer.status != 200:
                self.assertEqual(answer["error"], would["outcome"])
                self.assertEqual(answer["detail"], would["detail"])

    def test_breakers_count_and_a_node_tells_them(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=5)
        for _ in range(3):
            job = self.ok(self.task(server, max_attempts=1))
            node.poll()
            self.ok(node.ack(job))
            self.ok(node.fail(job, "EXIT_1"))
        self.ok(self.task(server))  # the probe
        would = self.dry(server, {"type": "dev"})
        self.assertEqual(self.reasons(would["now"]), {"n1": "BREAKER_OPEN"})
        self.assertIn("failed 3 such jobs", would["now"]["nodes"][0]["detail"])
        self.assertEqual(would["now"]["nodes"][0]["breaker"]["failures"], 3)
        refused = self.problem(self.task(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        node = self.why(server, refused["job_id"])["decisions"][0]["nodes"][0]
        self.assertEqual((node["reason"], node["breaker"]["state"]), ("BREAKER_OPEN", "HALF_OPEN"))
        shown = server.node("n1")
        self.assertEqual([(b["type"], b["state"]) for b in shown["breakers"]], [("dev", "HALF_OPEN")])
        self.assertIs(shown["takes_work"], True)

    def test_a_node_says_why_it_takes_no_work(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000)
        node = Node(server, "n1", max_concurrent_jobs=1)
        self.assertEqual((server.node("n1")["takes_work"], server.node("n1")["why_not"]), (True, None))
        self.placed(server)
        self.assertEqual(server.node("n1")["why_not"]["reason"], "FULL")
        for health, words in (("degraded", "degraded"), ("ready", "slots")):
            node.register(health=health)
            self.assertIn(words, server.node("n1")["why_not"]["detail"])
        self.ok(server.post("/v1/nodes/n1/cordon"))
        self.assertIn("cordoned", server.node("n1")["why_not"]["detail"])
        self.ok(server.post("/v1/nodes/n1/undrain"))
        self.ok(node.heartbeat(max=5, level="danger", max_concurrent_jobs=9))
        self.assertEqual(server.node("n1")["why_not"]["reason"], "LEVEL")
        listed = server.get("/v1/nodes").json["nodes"][0]
        self.assertEqual(listed["why_not"]["reason"], "LEVEL")
        eventually("the node is stale",
                   lambda: server.node("n1")["why_not"]["reason"] in ("STALE", "NOT_READY"))

    def test_nothing_is_promised_while_the_store_is_away(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url)
        Node(server, "n1", allowed_types=["dev"])
        self.assertEqual(self.dry(server, {"type": "dev"})["outcome"], "PLACED")
        redis.pause()
        under_way = self.task(server)  # unless the server had noticed before this call
        if under_way.status == 504:
            self.problem(under_way, 504, "OUTCOME_UNKNOWN")
        else:
            self.problem(under_way, 503, "SCHEDULER_DEPENDENCY_DOWN")
        self.problem(self.task(server), 503, "SCHEDULER_DEPENDENCY_DOWN")
        self.problem(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev"}), 503, "SCHEDULER_DEPENDENCY_DOWN")
        redis.go_on()
        eventually("the server is ready again", lambda: server.get("/readyz").status == 200)
        self.assertEqual(self.dry(server, {"type": "dev"})["outcome"], "PLACED")

    def test_a_score_is_the_nodes_own(self):
        server = self.start(policy="health")
        node = Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server, max_attempts=1))
        self.ok(node.ack(job))
        self.ok(node.fail(job))

        def scores():
            looks = self.dry(server, {"type": "dev"})["now"]["nodes"]
            return [look["health_score"] for look in looks] == [server.node("n1")["health_score"]]

        self.assertLess(server.node("n1")["health_score"], 100)
        eventually("explain shows the node's score", scores)

    def test_the_command_line_tells_what_became_of_attempts(self):
        server = self.start()
        env = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}", "NO_COLOR": "1"}
        node = Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server))
        self.ok(node.ack(job))
        self.ok(server.post("/v1/nodes/n1/drain"))
        self.ok(node.fail(job, reason="EXIT_3"))
        eventually("the job failed", lambda: server.job(job["job_id"])["state"] == "FAILED")
        self.assertEqual(server.job(job["job_id"])["reason"], "ALL_CANDIDATES_FULL_OR_FAILED")
        said = berth("job", "explain", job["job_id"], env=env)
        self.assertIn(f"{job['job_id']} FAILED: ALL_CANDIDATES_FULL_OR_FAILED\n"
                      "attempt 1 on n1: fail, EXIT_3\n", said.stdout)
        said = berth("job", "wait", job["job_id"], env=env)
        self.assertEqual(said.returncode, 7)
        self.assertIn("failed: ALL_CANDIDATES_FULL_OR_FAILED; attempt 1 on n1: fail, EXIT_3\n", said.stderr)

    def test_warm_and_cold(self):
        server = self.start()
        for number in range(3):
            Node(server, f"n{number}", allowed_types=["dev"], max_concurrent_jobs=4, loaded=["whisper-v3", "llama"] if number == 1 else None)
        self.assertEqual(server.node("n1")["loaded"], ["whisper-v3", "llama"])
        self.assertEqual(server.node("n0")["loaded"], [])
        now = self.dry(server, {"type": "dev", "prefers": ["whisper-v3"]})["now"]
        self.assertEqual(now["node_id"], "n1")
        self.assertEqual({node["node_id"]: node["warm"] for node in now["nodes"]}, {"n0": "cold", "n1": "warm", "n2": "cold"})
        job = self.ok(self.task(server, prefers=["whisper-v3"]))
        self.assertEqual(job["node_id"], "n1")
        decision = self.why(server, job["job_id"])["decisions"][0]
        chosen = [node for node in decision["nodes"] if node["reason"] == "CHOSEN"]
        self.assertEqual([node["warm"] for node in chosen], ["warm"])
        self.assertIn("(0 of 4 taken, warm)", chosen[0]["detail"])
        plain = self.dry(server, {"type": "dev"})["now"]
        self.assertFalse([node for node in plain["nodes"] if "warm" in node], "only jobs with preferences show warm or cold")
        counted = server.metrics()
        self.assertEqual((counted['berth_dispatch_warm_total{result="warm"}'], counted['berth_dispatch_warm_total{result="cold"}']), (1, 0))
        env = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}", "NO_COLOR": "1"}
        self.assertRegex(berth("node", "ls", "-o", "wide", env=env).stdout, r"n1 .*whisper-v3")
        self.assertRegex(berth("node", "show", "n1", env=env).stdout, r"loaded.*whisper-v3")
        said = berth("explain", "--type", "dev", "--prefers", "whisper-v3", env=env)
        self.assertRegex(said.stdout, r"n1 .*taken, warm\)")
        self.assertRegex(said.stdout, r"n2 .*taken, cold\)")
        submitted = berth("job", "submit", "--src", "en", "--tgt", "zh", "--prefers", "llama,x", env=env).stdout.strip()
        self.assertEqual(server.job(submitted)["prefers"], ["llama", "x"])
        for wrong in ("whisper-v3", [7], ["a b"], [""], ["x" * 65], [f"m{i}" for i in range(9)]):
            self.problem(self.task(server, prefers=wrong), 400, "BAD_FIELD")
        for wrong in ("whisper-v3", [7], ["a b"], [f"m{i}" for i in range(65)], [f"{i:064}" for i in range(64)]):
            self.problem(server.post("/v1/node/heartbeat", {"node_id": "n1", "loaded": wrong}), 400, "BAD_FIELD")
        self.assertEqual(server.node("n1")["loaded"], ["whisper-v3", "llama"])

    def test_the_command_line(self):
        server = self.start()
        self.fleet(server)
        env = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}", "NO_COLOR": "1"}
        said = berth("explain", "--type", "dev", "--priority", "3", env=env)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("now: PLACED on idle", said.stdout)
        self.assertRegex(said.stdout, r"drained +NOT_READY .*an operator drained it")
        self.assertEqual(server.all_jobs(), [])
        job = self.ok(self.task(server))
        said = berth("job", "explain", job["job_id"], env=env)
        self.assertIn("attempt 1: PLACED on idle", said.stdout)
        self.assertRegex(said.stdout, r"french +NOT_CAPABLE .*type\(dev\)")
        said = berth("explain", "--type", "dev", "--queue", "10s", env=env)
        self.assertIn("It would wait", said.stdout)
        refused = self.task(server).json
        said = berth("job", "explain", refused["job_id"], env=env)
        self.assertIn("was refused", said.stdout)
        self.assertIn("1 of its 1 slots for such work are taken.", said.stdout)
        said = berth("explain", "--src", "en", env=env)
        self.assertEqual(said.returncode, 2)
        self.assertIn("needs --src and --tgt", said.stderr)
        self.assertEqual(berth("job", "explain", "j0000000000000", env=env).returncode, 3)
