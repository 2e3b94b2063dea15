"""The oldest routes, with exactly the fields that their clients send and expect."""
from harness import Case, Node, eventually


class SeedRoutes(Case):
    def test_register_answers_ok_true_and_nothing_else(self):
        server = self.start()
        self.assertEqual(self.ok(Node(server, "node-123", register=False).register()), {"ok": True})

    def test_heartbeat_answers_ok_true(self):
        node = Node(self.start(), "node-123")
        answer = node.heartbeat(current_load={"gpu": 0.52, "cpu": 0.33})
        self.assertEqual(self.ok(answer), {"ok": True})
        shown = node.server.node("node-123")
        self.assertEqual(shown["current_load"]["gpu"], 0.52)
        self.assertEqual(shown["current_load"]["cpu"], 0.33)

    def test_a_job_from_dispatch_to_done(self):
        server = self.start()
        node = Node(server, "node-123")
        job = self.placed(server)
        self.assertEqual(set(job) & {"job_id", "node_id", "attempt_id"}, {"job_id", "node_id", "attempt_id"})
        self.assertEqual((job["node_id"], job["attempt_id"]), ("node-123", 1))
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["status"]), ("DISPATCHED", "Dispatched"))
        self.assertSlots(server, "node-123", 1, 0)

        self.assertEqual(self.ok(node.ack(job)), {"ok": True})
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["status"]), ("ACKED", "Running"))
        self.assertSlots(server, "node-123", 0, 1)

        self.assertEqual(self.ok(node.done(job)), {"ok": True})
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["status"]), ("DONE", "Finished"))
        self.assertSlots(server, "node-123", 0, 0)

    def test_a_job_shows_every_field(self):
        server = self.start()
        Node(server, "n1")
        job = server.job(self.placed(server, session="room-1")["job_id"])
        for name in ("job_id state status attempt_id node_id session_id src tgt audio_ref type title "
                     "priority reason created_ms updated_ms result").split():
            self.assertIn(name, job)
        self.assertEqual((job["session_id"], job["src"], job["tgt"], job["audio_ref"]),
                         ("room-1", "en", "zh", "blob://a"))
        self.assertEqual((job["type"], job["priority"]), ("f2f", 7))

    def test_a_node_shows_every_field(self):
        server = self.start()
        Node(server, "n1", labels={"zone": "a"})
        node = server.node("n1")
        for name in ("node_id health max running reserved last_heartbeat_ms level labels semantic_langs "
                     "nmt_pairs tts_langs capabilities max_concurrent_jobs current_load health_score "
                     "agent_version version").split():
            self.assertIn(name, node)
        self.assertEqual(node["health"], "ready")
        self.assertEqual((node["max"], node["running"], node["reserved"]), (2, 0, 0))
        self.assertEqual(node["semantic_langs"], ["en", "zh"])
        self.assertEqual(sorted(node["nmt_pairs"]), [["en", "zh"], ["zh", "en"]])
        self.assertEqual(node["labels"], {"zone": "a"})
        self.assertIsNone(node["level"], "a node without an agent has no level")
        # Derived from the lists; asr and tone are false.
        self.assertEqual(node["capabilities"], {"asr": False, "nmt": True, "tts": True, "tone": False,
                                                "semantic": True})

    def test_unknown_pair_is_422_with_the_seeds_sentence(self):
        server = self.start()
        Node(server, "n1", semantic_langs=["fr"], nmt_pairs=[["fr", "de"]], tts_langs=[])
        body = self.problem(self.dispatch(server), 422, "NO_CAPABLE_NODE")
        self.assertEqual(body["detail"], "No node supports semantic(en) + nmt(en->zh).")
        self.assertGreaterEqual(server.metrics()["berth_pool_empty_total"], 1)

    def test_no_node_with_tts_says_so(self):
        server = self.start()
        Node(server, "n1", tts_langs=["en"])
        body = self.problem(self.dispatch(server, require_tts=True), 422, "NO_CAPABLE_NODE")
        self.assertEqual(body["detail"], "No node supports semantic(en) + nmt(en->zh) + tts(zh).")
        self.placed(server, require_tts=False)

    def test_full_node_is_503_with_counts(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=1)
        Node(server, "n2", max_concurrent_jobs=1)
        Node(server, "n3", health="draining")
        self.placed(server)
        self.placed(server)
        answer = self.dispatch(server)
        body = self.problem(answer, 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertEqual(body["reasons"], {"FULL": 2, "NOT_READY": 1})

    def test_a_node_without_slots_is_counted_as_such(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=0)
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"NO_CAPACITY": 1})

    def test_fail_of_the_last_attempt_fails_the_job(self):
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.assertEqual(self.ok(node.fail(job)), {"ok": True})
        shown = self.state_of(server, job, "FAILED")
        self.assertEqual((shown["status"], shown["reason"]), ("Failed", "MODEL_LOAD_FAILED"))
        self.assertSlots(server, "n1", 0, 0)

    def test_done_with_another_status_is_a_fail(self):
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.done(job, status="error"))
        self.state_of(server, job, "FAILED")
        self.assertSlots(server, "n1", 0, 0)

    def test_done_without_an_ack_counts(self):
        """The ACK was lost: DONE ends the job and returns the reserved slot."""
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.done(job, result={"text": "x"}))
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")
        self.assertSlots(server, "n1", 0, 0)

    def test_reads_after_a_register_see_it_at_once(self):
        server = self.start(loops=2)
        for number in range(30):
            Node(server, f"n{number}", semantic_langs=[f"l{number}"], nmt_pairs=[[f"l{number}", "zh"]])
            self.placed(server, src=f"l{number}")
            self.assertEqual(server.node(f"n{number}")["node_id"], f"n{number}")

    def test_wrong_bodies_name_the_field(self):
        server = self.start()
        good = {"node_id": "n1", "health": "ready", "semantic_langs": ["en"], "nmt_pairs": [["en", "zh"]],
                "tts_langs": [], "max_concurrent_jobs": 2}
        rows = [
            ("/v1/node/register", {**good, "node_id": None}, "node_id"),
            ("/v1/node/register", {**good, "node_id": ""}, "node_id"),
            ("/v1/node/register", {**good, "node_id": "a b/../c"}, "node_id"),
            ("/v1/node/register", {**good, "node_id": 7}, "node_id"),
            ("/v1/node/register", {**good, "node_id": "x" * 129}, "node_id"),
            ("/v1/node/register", {**good, "max_concurrent_jobs": -1}, "max_concurrent_jobs"),
            ("/v1/node/register", {**good, "max_concurrent_jobs": "two"}, "max_concurrent_jobs"),
            ("/v1/node/register", {**good, "max_concurrent_jobs": 1.5}, "max_concurrent_jobs"),
            ("/v1/node/register", {**good, "health": "great"}, "health"),
            ("/v1/node/register", {**good, "semantic_langs": "en"}, "semantic_langs"),
            ("/v1/node/register", {**good, "nmt_pairs": [["en"]]}, "nmt_pairs"),
            ("/v1/node/register", {**good, "nmt_pairs": "some"}, "nmt_pairs"),
            ("/v1/dispatch/f2f", {"session_id": "s", "tgt_lang": "zh"}, "src_lang"),
            ("/v1/dispatch/f2f", {"session_id": "s", "src_lang": "en"}, "tgt_lang"),
            ("/v1/dispatch/f2f", {"session_id": "s", "src_lang": "en", "tgt_lang": "zh",
                                  "options": {"require_tts": "yes"}}, "require_tts"),
            ("/v1/dispatch/task", {"payload": {}}, "type"),
            ("/v1/dispatch/task", {"type": "dev", "priority": 10}, "priority"),
            ("/v1/dispatch/task", {"type": "dev", "max_attempts": 0}, "max_attempts"),
            ("/v1/dispatch/task", {"type": "dev", "queue_ms": -5}, "queue_ms"),
            ("/v1/job/ack", {"attempt_id": 1, "node_id": "n1"}, "job_id"),
            ("/v1/job/ack", {"job_id": "j0000000000001", "node_id": "n1"}, "attempt_id"),
            ("/v1/job/done", {"job_id": "j0000000000001", "attempt_id": 1, "status": "ok"}, "node_id"),
        ]
        for path, body, field in rows:
            with self.subTest(path=path, body=body):
                answer = self.problem(server.post(path, body), 400, "BAD_FIELD")
                self.assertIn(field, answer["detail"])
        self.assertEqual(server.get("/v1/nodes").json["nodes"], [], "a wrong body registered a node")

    def test_null_is_absent_and_unknown_fields_are_ignored(self):
        server = self.start()
        Node(server, "n1", labels=None, colour="blue", nested={"deep": [1, 2, {"x": None}]})
        self.ok(server.post("/v1/dispatch/f2f", {"session_id": None, "src_lang": "en", "tgt_lang": "zh",
                                                 "audio_ref": None, "options": None, "mood": "good"}))

    def test_languages_are_told_apart_whatever_their_case(self):
        server = self.start()
        Node(server, "n1", semantic_langs=["EN"], nmt_pairs=[["En", " zh "]], tts_langs=[])
        self.placed(server, src="en", tgt="ZH")

    def test_a_second_register_keeps_the_slots(self):
        """A node that registers again while it works keeps its taken slots."""
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=2)
        running, reserved = self.placed(server), None
        self.ok(node.ack(running))
        reserved = self.placed(server)
        self.ok(node.register())
        self.assertSlots(server, "n1", 1, 1)
        self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        for job in (running, reserved):
            self.ok(node.done(job))
        self.assertSlots(server, "n1", 0, 0)

    def test_max_lowered_below_the_load_kills_nothing(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=3)
        jobs = [self.placed(server) for _ in range(3)]
        for job in jobs:
            self.ok(node.ack(job))
        node.facts["max_concurrent_jobs"] = 1
        self.ok(node.heartbeat())
        eventually("the server shows the new max", lambda: server.node("n1")["max"] == 1)
        self.assertSlots(server, "n1", 0, 3)
        self.ok(node.done(jobs[0]))
        self.ok(node.done(jobs[1]))
        self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.ok(node.done(jobs[2]))
        self.placed(server)
