"""Which node gets the work: capabilities, health, staleness, drain and cordon, preference."""
import collections
import time

from harness import Case, Node, eventually, tags


class Capability(Case):
    def test_capability_by_type_false_excludes(self):
        rows = [
            ({"semantic": False}, {}, "No node supports semantic(en) + nmt(en->zh)."),
            ({"nmt": False}, {}, "No node supports semantic(en) + nmt(en->zh)."),
            ({"tts": False}, {"require_tts": True}, "No node supports semantic(en) + nmt(en->zh) + tts(zh)."),
        ]
        for capabilities, options, sentence in rows:
            with self.subTest(capabilities=capabilities):
                server = self.start(data_dir="-".join(capabilities))
                node = Node(server, "n1", capability_by_type=capabilities)
                body = self.problem(self.dispatch(server, **options), 422, "NO_CAPABLE_NODE")
                self.assertEqual(body["detail"], sentence)
                # The next heartbeat declares the capability again.
                node.facts["capability_by_type"] = {name: True for name in capabilities}
                self.ok(node.heartbeat())
                self.placed(server, **options)

    def test_asr_counts_only_when_asked_for(self):
        server = self.start()
        Node(server, "n1")
        self.placed(server)
        self.problem(self.dispatch(server, require_asr=True), 422, "NO_CAPABLE_NODE")
        Node(server, "n2", capability_by_type={"asr": True})
        self.assertEqual(self.placed(server, require_asr=True)["node_id"], "n2")

    def test_require_tts_picks_among_members(self):
        server = self.start()
        Node(server, "mute", tts_langs=["en"], max_concurrent_jobs=50)
        Node(server, "speaker", max_concurrent_jobs=50)
        for _ in range(20):
            self.assertEqual(self.placed(server, require_tts=True)["node_id"], "speaker")

    def test_nmt_any_joins_pools_others_declare_also_later(self):
        server = self.start()
        Node(server, "anything", nmt_pairs="any", semantic_langs=["en", "fr"], max_concurrent_jobs=50)
        self.problem(self.dispatch(server), 422, "NO_CAPABLE_NODE")
        Node(server, "n1", max_concurrent_jobs=1)
        seen = {self.placed(server)["node_id"] for _ in range(10)}
        self.assertEqual(seen, {"anything", "n1"})

    def test_nmt_any_joins_pools_of_the_configuration(self):
        server = self.start(pools="en:zh")
        Node(server, "anything", nmt_pairs="any", semantic_langs=["en"])
        self.assertEqual(self.placed(server)["node_id"], "anything")
        # Semantic repair stays a requirement, and the node has no zh.
        self.problem(self.dispatch(server, src="zh", tgt="en"), 422, "NO_CAPABLE_NODE")

    def test_pools_are_directed(self):
        server = self.start()
        Node(server, "n1", nmt_pairs=[["en", "zh"]])
        self.placed(server)
        self.problem(self.dispatch(server, src="zh", tgt="en"), 422, "NO_CAPABLE_NODE")

    def test_a_heartbeat_changes_the_pools(self):
        server = self.start()
        node = Node(server, "n1", semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        self.problem(self.dispatch(server), 422, "NO_CAPABLE_NODE")
        node.facts.update(semantic_langs=["en"], nmt_pairs=[["en", "zh"]])
        self.ok(node.heartbeat())
        self.placed(server)
        self.problem(self.dispatch(server, src="fr", tgt="de"), 422, "NO_CAPABLE_NODE")

    def test_a_heartbeat_without_the_lists_changes_no_pool(self):
        server = self.start()
        Node(server, "n1")
        self.ok(server.post("/v1/node/heartbeat", {"node_id": "n1", "health": "ready"}))
        self.placed(server)
        self.assertEqual(server.node("n1")["max"], 2)

    def test_task_pools(self):
        """A node registered over HTTP without allowed_types is in no task pool."""
        server = self.start()
        Node(server, "plain")
        self.problem(self.task(server), 422, "NO_CAPABLE_NODE")
        Node(server, "dev", allowed_types=["dev"])
        self.assertEqual(self.ok(self.task(server))["node_id"], "dev")
        self.problem(self.task(server, type="talk"), 422, "NO_CAPABLE_NODE")
        Node(server, "all", allowed_types=["*"])
        self.assertEqual(self.ok(self.task(server, type="talk"))["node_id"], "all")

    def test_requires_is_a_selector_over_labels(self):
        server = self.start()
        Node(server, "small", allowed_types=["dev"], labels={"size": "s"}, max_concurrent_jobs=50)
        Node(server, "large", allowed_types=["dev"], labels={"size": "l"}, max_concurrent_jobs=50)
        for _ in range(10):
            self.assertEqual(self.ok(self.task(server, requires="size=l"))["node_id"], "large")
        # As with require_tts: if no node can ever do it the answer is 422, not that the pool is full.
        self.problem(self.task(server, requires="size=xl"), 422, "NO_CAPABLE_NODE")
        self.problem(self.task(server, requires="=="), 400, "BAD_FIELD")


class Health(Case):
    def test_only_ready_nodes_are_chosen(self):
        server = self.start()
        for health in ("degraded", "draining", "offline"):
            Node(server, health, health=health, max_concurrent_jobs=50)
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"NOT_READY": 3})
        Node(server, "good", max_concurrent_jobs=50)
        for _ in range(20):
            self.assertEqual(self.placed(server)["node_id"], "good")

    def test_health_of_a_heartbeat_acts_at_once_and_pools_stay(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=50)
        for health, status in (("degraded", 503), ("ready", 200), ("draining", 503), ("ready", 200),
                               ("offline", 503), ("ready", 200)):
            node.facts["health"] = health
            self.ok(node.heartbeat())
            self.assertEqual(self.dispatch(server).status, status, health)
            self.assertEqual(server.node("n1")["health"], health)
            pool = next(p for p in server.get("/v1/pools").json["pools"] if p["pool_id"] == "en:zh")
            self.assertEqual(pool["members"], 1 if isinstance(pool["members"], int) else ["n1"])

    def test_a_stale_node_is_not_chosen_and_comes_back(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000)
        node = Node(server, "n1", max_concurrent_jobs=5000)
        eventually("the node is stale", lambda: self.dispatch(server).status == 503, 20)
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"STALE": 1})
        eventually("the node gets work again", lambda: node.heartbeat().status == 200 and self.dispatch(server).status == 200)

    def test_staleness_can_be_off(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms="off")
        Node(server, "n1")
        begun = server.node("n1")["last_heartbeat_ms"]
        eventually("three heartbeats are overdue", lambda: time.time() * 1000 - begun > 3100)
        self.placed(server)
        self.assertLess(server.node("n1")["last_heartbeat_ms"] - begun, 1000, "a dispatch must not count as a heartbeat")

    def test_deregister(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(server.post("/v1/node/deregister", {"node_id": "n1"}))
        self.problem(server.get("/v1/nodes/n1"), 404, "NOT_FOUND")
        self.problem(self.dispatch(server), 422, "NO_CAPABLE_NODE")
        self.problem(server.post("/v1/node/deregister", {"node_id": "n1"}), 404, "NOT_FOUND")

    def test_a_silent_node_is_forgotten(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000, view_drop_ms=3000,
                            lost_grace_ms=1000, forget_ms=5000)
        Node(server, "n1")
        eventually("the node is removed", lambda: server.get("/v1/nodes/n1").status == 404, 30)
        self.problem(self.dispatch(server), 422, "NO_CAPABLE_NODE")

    def test_a_heartbeat_of_an_unknown_node_that_says_nothing_is_404(self):
        server = self.start()
        self.problem(server.post("/v1/node/heartbeat", {"node_id": "ghost", "health": "ready"}), 404,
                     "NOT_FOUND")

    def test_drain_cordon_undrain(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=50)
        running = self.placed(server)
        self.ok(node.ack(running))
        for verb in ("drain", "cordon"):
            self.ok(server.post(f"/v1/nodes/n1/{verb}"))
            self.assertEqual(server.node("n1")["health"], "draining", verb)
            self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
            # A report of the node does not lift the operator's drain.
            self.ok(node.heartbeat())
            self.ok(node.register())
            self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
            self.ok(server.post("/v1/nodes/n1/undrain"))
            self.assertEqual(server.node("n1")["health"], "ready", verb)
            self.placed(server)
        self.ok(node.done(running))
        self.problem(server.post("/v1/nodes/ghost/drain"), 404, "NOT_FOUND")

    def test_drain_survives_a_restart(self):
        server = self.start()
        Node(server, "n1")
        self.ok(server.post("/v1/nodes/n1/drain"))
        server.kill()
        server = self.start()
        self.assertEqual(server.node("n1")["health"], "draining")


class Preferred(Case):
    def test_is_taken(self):
        server = self.start()
        for name in ("n1", "n2", "n3"):
            Node(server, name, max_concurrent_jobs=50)
        for _ in range(20):
            self.assertEqual(self.placed(server, preferred_node_id="n2")["node_id"], "n2")

    def test_falls_back_unless_strict(self):
        server = self.start()
        for name in ("n1", "n2"):
            Node(server, name, max_concurrent_jobs=1)
        self.placed(server, preferred_node_id="n2")
        answer = self.dispatch(server, preferred_node_id="n2", strict=True)
        self.problem(answer, 503, "PREFERRED_NODE_UNAVAILABLE")
        self.assertSlots(server, "n1", 0, 0)
        self.assertEqual(self.placed(server, preferred_node_id="n2")["node_id"], "n1")

    def test_not_ready_falls_back_unless_strict(self):
        server = self.start()
        Node(server, "n1")
        Node(server, "n2", health="draining")
        self.problem(self.dispatch(server, preferred_node_id="n2", strict=True), 503,
                     "PREFERRED_NODE_UNAVAILABLE")
        self.assertEqual(self.placed(server, preferred_node_id="n2")["node_id"], "n1")

    def test_not_capable_is_422(self):
        server = self.start()
        Node(server, "n1")
        Node(server, "french", semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        for preferred in ("french", "ghost"):
            for strict in (False, True):
                self.problem(self.dispatch(server, preferred_node_id=preferred, strict=strict), 422,
                             "PREFERRED_NODE_NOT_CAPABLE")

    def test_without_tts_is_not_capable_of_tts(self):
        server = self.start()
        Node(server, "n1")
        Node(server, "mute", tts_langs=[])
        self.problem(self.dispatch(server, preferred_node_id="mute", require_tts=True), 422,
                     "PREFERRED_NODE_NOT_CAPABLE")
        self.assertEqual(self.placed(server, preferred_node_id="mute")["node_id"], "mute")

    def test_the_last_one_full_is_all_full(self):
        """There is no other node to fall back to, so the pool is full."""
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=1)
        self.placed(server)
        self.problem(self.dispatch(server, preferred_node_id="n1"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")


class Spread(Case):
    def spread(self, **settings):
        server = self.start(heartbeat_stale_ms="off", **settings)  # the nodes send no heartbeats
        nodes = {f"n{i}": Node(server, f"n{i}") for i in range(10)}
        order = []
        with server.client() as client:
            for _ in range(1000):
                job = client.post("/v1/dispatch/f2f", {"session_id": "room-888", "src_lang": "en",
                                                       "tgt_lang": "zh", "audio_ref": "blob://a"}).json
                order.append(job["node_id"])
                done = client.post("/v1/job/done", {**job, "status": "ok"})
                self.assertEqual(done.status, 200, str(done))
        counts = collections.Counter(order)
        self.assertEqual(set(counts), set(nodes))
        for name, count in counts.items():
            self.assertTrue(50 <= count <= 150, f"{name} got {count} of 1000: {counts}")
        same = sum(a == b for a, b in zip(order, order[1:]))
        self.assertLessEqual(same / 999, 0.20, "the same node twice running")

    @tags("load")
    def test_a_session_never_settles_on_a_node(self):
        self.spread()

    @tags("load")
    def test_a_session_never_settles_on_a_node_with_policy_random(self):
        self.spread(policy="random")

    @tags("load")
    def test_a_session_never_settles_on_a_node_with_policy_health(self):
        """All nodes are equal. The duration of jobs is part of the score, so the target is set too high to matter."""
        self.spread(policy="health", latency_target_ms=3600000)

    def test_least_loaded_fills_evenly(self):
        server = self.start(policy="least_loaded")
        for i in range(5):
            Node(server, f"n{i}", max_concurrent_jobs=10)
        for _ in range(20):
            self.placed(server)
        loads = [node["reserved"] for node in server.get("/v1/nodes").json["nodes"]]
        self.assertEqual(loads, [4, 4, 4, 4, 4])

    def test_every_candidate_is_tried(self):
        """The sample has all 20 nodes, so the last free slot is always found, although one call of the store tries only four of them."""
        server = self.start(sample_k=20, policy="random")
        for i in range(20):
            Node(server, f"n{i}", max_concurrent_jobs=1)
        nodes = {self.placed(server)["node_id"] for _ in range(20)}
        self.assertEqual(len(nodes), 20)
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"FULL": 20})
