"""What can be observed: lists, pools, sessions, health, metrics, events."""
import re

from harness import SLOW, Case, Events, Node, WsNode, eventually, tags


class Lists(Case):
    def test_nodes_are_sorted_and_stable(self):
        server = self.start()
        for name in ("n3", "n1", "n2", "a"):
            Node(server, name)
        body = server.get("/v1/nodes").json
        self.assertEqual([node["node_id"] for node in body["nodes"]], ["a", "n1", "n2", "n3"])
        self.assertIsNone(body["next_cursor"])

    def test_nodes_page_by_page(self):
        server = self.start()
        names = [f"n{i:02}" for i in range(25)]
        for name in names:
            Node(server, name)
        seen, cursor = [], None
        while True:
            page = server.get("/v1/nodes?limit=10" + (f"&cursor={cursor}" if cursor else "")).json
            self.assertLessEqual(len(page["nodes"]), 10)
            seen += [node["node_id"] for node in page["nodes"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        self.assertEqual(seen, names)

    def test_jobs_newest_first_and_page_by_page(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=50)
        placed = [self.placed(server)["job_id"] for _ in range(25)]
        self.assertEqual([job["job_id"] for job in server.get("/v1/jobs").json["jobs"]], placed[::-1])
        seen, cursor = [], None
        while True:
            page = server.get("/v1/jobs?limit=7" + (f"&cursor={cursor}" if cursor else "")).json
            self.assertLessEqual(len(page["jobs"]), 7)
            seen += [job["job_id"] for job in page["jobs"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        self.assertEqual(seen, placed[::-1])

    def test_jobs_filtered(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=50)
        a = self.placed(server, session="s1")
        b = self.placed(server, session="s2")
        c = self.ok(self.task(server))
        self.ok(node.done(a))
        rows = [("state=DONE", {a["job_id"]}), ("state=DISPATCHED", {b["job_id"], c["job_id"]}),
                ("session_id=s2", {b["job_id"]}), ("type=dev", {c["job_id"]}), ("type=f2f", {a["job_id"], b["job_id"]}),
                ("node_id=n1&state=DISPATCHED&type=f2f", {b["job_id"]}), ("node_id=n2", set())]
        for query, expected in rows:
            found = {job["job_id"] for job in self.ok(server.get("/v1/jobs?" + query))["jobs"]}
            self.assertEqual(found, expected, query)
        for query in ("state=SLEEPING", "limit=0", "limit=x", "cursor=nonsense!"):
            self.assertEqual(server.get("/v1/jobs?" + query).status, 400, query)

    def test_pools(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"])
        Node(server, "n2", health="draining")
        body = server.get("/v1/pools").json
        self.assertIsNone(body["next_cursor"])
        pools = {pool["pool_id"]: pool for pool in body["pools"]}
        for name in ("pool_id", "src", "tgt", "members", "ready", "version"):
            self.assertIn(name, pools["en:zh"])
        self.assertTrue({"en:zh", "zh:en", "type:dev"} <= set(pools))
        pool = pools["en:zh"]
        count = lambda value: value if isinstance(value, int) else len(value)
        self.assertEqual((pool["src"], pool["tgt"], count(pool["members"]), count(pool["ready"])), ("en", "zh", 2, 1))
        self.assertEqual([pool["pool_id"] for pool in body["pools"]], sorted(pools))

    def test_a_session(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=9)
        self.placed(server, session="room-1")
        first = self.ok(server.get("/v1/sessions/room-1"))
        self.assertEqual((first["session_id"], first["preferred_pool"], first["lang_pair"]),
                         ("room-1", "en:zh", "en->zh"))
        self.placed(server, session="room-1", src="zh", tgt="en")
        second = self.ok(server.get("/v1/sessions/room-1"))
        self.assertEqual((second["preferred_pool"], second["lang_pair"]), ("zh:en", "zh->en"))
        self.assertGreater(second["version"], first["version"])
        self.problem(server.get("/v1/sessions/room-2"), 404, "NOT_FOUND")

    def test_unknown_ids_are_404(self):
        server = self.start()
        for path in ("/v1/nodes/ghost", "/v1/jobs/j0000000000001", "/v1/jobs/nonsense", "/v1/sessions/none"):
            self.problem(server.get(path), 404, "NOT_FOUND")

    def test_a_job_of_two_attempts_shows_its_history(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.fail(job, reason="FIRST_TRY"))
        eventually("attempt 2 begins", lambda: server.job(job["job_id"])["attempt_id"] == 2)
        self.assertIn(b"FIRST_TRY", server.get(f"/v1/jobs/{job['job_id']}").body)


class Health(Case):
    def test_healthz_and_readyz(self):
        server = self.start()
        self.ok(server.get("/healthz"))
        ready = self.ok(server.get("/readyz"))
        self.assertIn("NORMAL", str(ready))

    def test_security_headers(self):
        answer = self.start().get("/healthz")
        self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
        page = self.servers[-1].get("/").headers
        self.assertEqual(page["Cross-Origin-Resource-Policy"], "same-origin")
        self.assertIn("camera=()", page["Permissions-Policy"])


class Metrics(Case):
    KINDS = {
        "berth_reserve_total": "counter", "berth_dispatch_total": "counter", "berth_dispatch_seconds": "histogram",
        "berth_pool_empty_total": "counter", "berth_ack_timeout_total": "counter",
        "berth_node_overload_total": "counter", "berth_cache_requests_total": "counter",
        "berth_store_calls_total": "counter", "berth_pool_consistency_delay_seconds": "histogram",
        "berth_instance_version_lag": "gauge", "berth_instance_version": "gauge", "berth_audit_repairs_total": "counter", "berth_lost_lease_total": "counter",
        "berth_invariant_violations_total": "counter", "berth_queue_depth": "gauge", "berth_nodes": "gauge",
        "berth_build_info": "gauge", "berth_leases": "gauge", "berth_lease_expired_total": "counter",
        "berth_slots": "gauge", "berth_nodes_at_level": "gauge", "berth_queue_oldest_seconds": "gauge",
        "berth_kills_total": "counter", "berth_snapshot_age_seconds": "gauge", "berth_store_errors_total": "counter",
        "berth_store_mode": "gauge", "berth_breakers_open": "gauge", "berth_breaker_state": "gauge",
        "berth_node_slots": "gauge", "berth_node_level": "gauge"}

    def test_text_and_names(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.done(job))
        answer = server.get("/metrics")
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain"))
        values = server.metrics()
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", answer.body.decode(), re.M))
        for name, kind in self.KINDS.items():
            self.assertEqual(typed.get(name), kind, name)
        self.assertNotIn(job["job_id"], answer.body.decode(), "a job id is in the metrics")
        self.assertEqual(sum(value for name, value in values.items()
                             if name.startswith("berth_invariant_violations_total")), 0)

    def test_counters_count(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=1)
        job = self.placed(server)
        self.dispatch(server)
        self.dispatch(server, src="xx")
        self.ok(node.done(job))
        values = server.metrics()
        self.assertEqual(values['berth_dispatch_total{outcome="PLACED"}'], 1)
        self.assertEqual(values['berth_dispatch_total{outcome="ALL_CANDIDATES_FULL_OR_FAILED"}'], 1)
        self.assertEqual(values['berth_dispatch_total{outcome="NO_CAPABLE_NODE"}'], 1)
        self.assertEqual(values["berth_pool_empty_total"], 1)
        self.assertEqual(values['berth_jobs_total{state="DONE"}'], 1)
        for outcome in ("PLACED", "ALL_CANDIDATES_FULL_OR_FAILED", "NO_CAPABLE_NODE"):
            self.assertEqual(values[f'berth_dispatch_seconds_count{{outcome="{outcome}"}}'], 1)
        self.assertGreaterEqual(values["berth_store_commit_seconds_count"], 2)  # the dispatch and the end, each on disk
        eventually("the ready node is counted", lambda: server.metrics().get('berth_nodes{health="ready"}') == 1)

    def test_histogram_is_cumulative(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=50)
        for _ in range(20):
            self.placed(server)
        values = server.metrics()
        buckets = [(float(re.search(r'le="([^"]+)"', name).group(1).replace("+Inf", "inf")), value)
                   for name, value in values.items() if name.startswith("berth_dispatch_seconds_bucket")]
        buckets.sort()
        counts = [value for _, value in buckets]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(buckets[-1], (float("inf"), values['berth_dispatch_seconds_count{outcome="PLACED"}']))


class Tags(Case):
    def test_a_job_that_did_not_change_is_not_sent_again(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        path = f"/v1/jobs/{job['job_id']}"
        first = server.get(path)
        tag = first.headers["ETag"]
        again = server.call("GET", path, headers={"If-None-Match": tag})
        self.assertEqual((again.status, again.body, again.headers["ETag"]), (304, b"", tag))
        self.assertEqual(server.call("GET", path, headers={"If-None-Match": f'"x", W/{tag}'}).status, 304)
        self.assertEqual(server.call("GET", path, headers={"If-None-Match": '"x"'}).status, 200)
        self.ok(node.ack(job))
        changed = server.call("GET", path, headers={"If-None-Match": tag})
        self.assertEqual((changed.status, changed["state"]), (200, "ACKED"))
        self.assertNotEqual(changed.headers["ETag"], tag)

    def test_a_word_about_a_node_as_it_was_seen(self):
        server = self.start()
        node = Node(server, "n1")
        tag = server.get("/v1/nodes/n1").headers["ETag"]
        self.ok(node.heartbeat(current_load={"cpu": 0.5}))
        self.assertEqual(server.get("/v1/nodes/n1").headers["ETag"], tag, "a heartbeat changes no ETag")
        self.ok(server.post("/v1/nodes/n1/cordon", headers={"If-Match": tag}))
        problem = self.problem(server.post("/v1/nodes/n1/undrain", headers={"If-Match": tag}), 412,
                               "PRECONDITION_FAILED")
        now = server.get("/v1/nodes/n1")
        self.assertEqual(now["admin"], "cordoned")
        self.assertIn(now.headers["ETag"], problem["detail"])
        self.problem(server.call("DELETE", "/v1/nodes/n1", headers={"If-Match": tag}), 412, "PRECONDITION_FAILED")
        self.ok(server.post("/v1/nodes/n1/undrain", headers={"If-Match": f'"other", {now.headers["ETag"]}'}))
        self.ok(node.register(labels={"zone": "eu"}))
        self.problem(server.post("/v1/nodes/n1/drain", headers={"If-Match": now.headers["ETag"]}), 412,
                     "PRECONDITION_FAILED")
        self.ok(server.post("/v1/nodes/n1/drain", headers={"If-Match": "*"}))
        self.problem(server.post("/v1/nodes/nobody/drain", headers={"If-Match": "*"}), 404, "NOT_FOUND")


class EventStream(Case):
    def follow(self, server):
        events = Events(server)
        self.assertEqual(events.reply.status, 200)
        self.assertTrue(events.reply.headers["Content-Type"].startswith("text/event-stream"))
        return events

    def states(self, events, job):
        return [data["state"] for _, data in events.seen if data.get("job_id") == job["job_id"] and "state" in data]

    @tags("threads")
    def test_a_jobs_life(self):
        server = self.start(loops=2)
        node = Node(server, "n1")
        events = self.follow(server)
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.done(job))
        eventually("an event with DONE arrives", lambda: "DONE" in self.states(events, job))
        states = self.states(events, job)
        self.assertEqual([state for state in states if state in ("DISPATCHED", "ACKED", "DONE")],
                         ["DISPATCHED", "ACKED", "DONE"])
        events.close()

    def test_nodes_come_and_go(self):
        server = self.start()
        events = self.follow(server)
        Node(server, "n1")
        server.post("/v1/node/deregister", {"node_id": "n1"})
        eventually("both events of the node arrive", lambda: len([1 for _, data in events.seen
                                                                  if data.get("node_id") == "n1" and "job_id" not in data]) >= 2)
        events.close()

    def test_a_reader_that_left_harms_nobody(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=50)
        for _ in range(5):
            self.follow(server).close()
        for _ in range(5):
            self.ok(node.done(self.placed(server)))
        self.ok(server.get("/healthz"))

    def test_head_of_a_stream(self):
        server = self.start()
        self.assertIn(server.call("HEAD", "/v1/events").status, (200, 405))


class Lost(Case):
    def test_a_node_that_is_silent_loses_its_jobs_to_another(self):
        """A silent node is lost after view_drop_ms and lost_grace_ms. It may still run its job, so the job is retried elsewhere only when
        its lease has ended. A late DONE changes nothing."""
        lease_ms = int(8000 * SLOW)
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000, view_drop_ms=3000, lost_grace_ms=1000,
                            f2f_lease_ms=lease_ms)
        quiet = Node(server, "quiet")
        job = self.placed(server)
        self.ok(quiet.ack(job))
        alive = WsNode(server, "alive")

        def moved():
            alive.send("heartbeat", health="ready")
            shown = server.job(job["job_id"])
            return shown if shown["node_id"] == "alive" else None

        shown = eventually("the job is placed on the other node", moved, 60)
        self.assertEqual(shown["attempt_id"], 2)
        self.assertGreaterEqual(shown["attempts"][0]["ended_ms"] - shown["attempts"][0]["acked_ms"], lease_ms)
        eventually("the silent node is offline", lambda: server.node("quiet")["health"] == "offline")
        self.assertSlots(server, "quiet", 0, 0)
        self.problem(quiet.done(job), 409, "STALE_ATTEMPT")
        again = alive.expect("job")
        self.assertTrue(alive.report("ack", again)["ok"])
        self.assertTrue(alive.report("done", again, status="ok")["ok"])
        # After a heartbeat the node is usable at once.
        self.ok(quiet.heartbeat())
        self.assertEqual(server.node("quiet")["health"], "ready")
        alive.close()


class Queued(Case):
    def test_what_waits_is_not_refused(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=0)
        self.ok(self.task(server, queue_ms=60000), 202)
        values = server.metrics()
        self.assertEqual(values['berth_dispatch_total{outcome="WAITS"}'], 1)
        self.assertEqual(values['berth_dispatch_total{outcome="ALL_CANDIDATES_FULL_OR_FAILED"}'], 0)
        eventually("the age of the waiting job is in the metrics", lambda: server.metrics()["berth_queue_oldest_seconds"] > 0)
