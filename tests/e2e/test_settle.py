"""Late, repeated, foreign and outdated messages; retries, refusals, cancels. Counters stay exact."""
from harness import Case, Node, WsNode, eventually, tags


class Messages(Case):
    def two_attempts(self, **settings):
        """A job whose attempt 1 failed and whose attempt 2 is placed on the other node:
        (server, first node, second node, attempt 1, attempt 2)."""
        server = self.start(**settings)
        nodes = {name: Node(server, name) for name in ("n1", "n2")}
        one = self.placed(server)
        first = nodes.pop(one["node_id"])
        second = nodes.popitem()[1]
        self.ok(first.ack(one))
        self.ok(first.fail(one))
        two = eventually("attempt 2 is placed", lambda: self.is_attempt(server, one, 2))
        self.assertEqual(two["node_id"], second.id, "a retry goes to another node")
        return server, first, second, one, two

    @staticmethod
    def is_attempt(server, job, attempt):
        shown = server.job(job["job_id"])
        return shown if shown["attempt_id"] == attempt and shown["state"] == "DISPATCHED" else None

    def test_done_twice_is_a_duplicate_and_frees_one_slot(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=3)
        jobs = [self.placed(server) for _ in range(3)]
        for job in jobs:
            self.ok(node.ack(job))
        self.assertEqual(self.ok(node.done(jobs[0])), {"ok": True})
        again = self.ok(node.done(jobs[0]))
        self.assertEqual((again["ok"], again["duplicate"]), (True, True))
        self.assertSlots(server, "n1", 0, 2)

    def test_ack_twice_is_a_duplicate(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.assertTrue(self.ok(node.ack(job))["duplicate"])
        self.assertSlots(server, "n1", 0, 1)

    def test_fail_twice_makes_one_retry(self):
        server, first, second, one, two = self.two_attempts()
        self.assertTrue(self.ok(first.fail(one))["duplicate"])
        self.assertSlots(server, first.id, 0, 0)
        self.assertSlots(server, second.id, 1, 0)
        self.assertEqual(server.job(one["job_id"])["attempt_id"], 2)

    def test_an_outcome_that_contradicts_the_first_is_409(self):
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.done(job))
        body = self.problem(node.fail(job), 409, "STALE_ATTEMPT")
        self.assertEqual(body["attempt_id"], 1)
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")

    def test_a_late_ack_is_409_and_moves_nothing(self):
        server = self.start(reservation_ttl_ms=300, max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        shown = self.state_of(server, job, "FAILED")
        self.assertEqual(shown["reason"], "ACK_TIMEOUT")
        self.assertSlots(server, "n1", 0, 0)
        body = self.problem(node.ack(job), 409, "STALE_ATTEMPT")
        self.assertEqual(body["attempt_id"], 1)
        self.assertSlots(server, "n1", 0, 0)
        self.problem(node.done(job), 409, "STALE_ATTEMPT")
        self.assertEqual(server.job(job["job_id"])["state"], "FAILED")
        eventually("the ACK timeout is counted", lambda: server.metrics()["berth_ack_timeout_total"] == 1)

    def test_an_ack_from_another_node_is_409(self):
        server = self.start()
        nodes = {name: Node(server, name) for name in ("n1", "n2")}
        job = self.placed(server)
        owner = nodes.pop(job["node_id"])
        other = nodes.popitem()[1]
        for report in (other.ack, other.done, other.fail):
            body = self.problem(report(job), 409, "STALE_ATTEMPT")
            self.assertEqual(body["attempt_id"], 1)
        self.assertSlots(server, other.id, 0, 0)
        self.assertSlots(server, owner.id, 1, 0)
        self.ok(owner.ack(job))

    def test_done_of_attempt_1_after_attempt_2_started(self):
        server, first, second, one, two = self.two_attempts()
        body = self.problem(first.done(one), 409, "STALE_ATTEMPT")
        self.assertEqual(body["attempt_id"], 2)
        self.assertSlots(server, first.id, 0, 0)
        self.assertSlots(server, second.id, 1, 0)
        self.ok(second.ack(two))
        self.problem(first.done(one), 409, "STALE_ATTEMPT")
        self.problem(first.ack(one), 409, "STALE_ATTEMPT")
        self.assertSlots(server, second.id, 0, 1)
        self.ok(second.done(two, result={"from": 2}))
        self.problem(first.done(one, result={"from": 1}), 409, "STALE_ATTEMPT")
        shown = server.job(one["job_id"])
        self.assertEqual((shown["state"], shown["result"]), ("DONE", {"from": 2}))
        self.assertSlots(server, first.id, 0, 0)
        self.assertSlots(server, second.id, 0, 0)

    def test_ack_timeout_goes_to_another_node_as_attempt_2(self):
        server = self.start(reservation_ttl_ms=3000)
        for name in ("n1", "n2"):
            Node(server, name)
        one = self.placed(server)
        # No ACK is sent for attempt 2 either, so it may have ended before it is seen.
        two = eventually("attempt 2 is placed", lambda: (shown := server.job(one["job_id"]))["attempt_id"] == 2 and
                         shown["state"] in ("DISPATCHED", "FAILED") and shown)
        self.assertNotEqual(two["node_id"], one["node_id"])
        self.assertSlots(server, one["node_id"], 0, 0)

    def test_a_retry_goes_to_the_same_node_when_there_is_no_other(self):
        server = self.start()
        node = Node(server, "n1")
        one = self.placed(server)
        self.ok(node.ack(one))
        self.ok(node.fail(one))
        two = eventually("attempt 2 is placed", lambda: self.is_attempt(server, one, 2))
        self.assertEqual(two["node_id"], "n1")
        self.assertSlots(server, "n1", 1, 0)

    def test_at_most_two_attempts(self):
        server, first, second, one, two = self.two_attempts()
        self.ok(second.ack(two))
        self.ok(second.fail(two, reason="OUT_OF_LUCK"))
        shown = self.state_of(server, one, "FAILED")
        self.assertEqual((shown["attempt_id"], shown["reason"]), (2, "OUT_OF_LUCK"))
        for node in (first, second):
            self.assertSlots(server, node.id, 0, 0)

    def test_a_retry_that_finds_nobody_fails_the_f2f_job(self):
        """A face-to-face job is retried at once, or fails."""
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=1)
        one = self.placed(server)
        self.ok(node.ack(one))
        node.facts["health"] = "draining"
        self.ok(node.heartbeat())
        self.ok(node.fail(one))
        self.state_of(server, one, "FAILED")
        self.assertSlots(server, "n1", 0, 0)

    def test_a_refusal_costs_no_attempt(self):
        server = self.start()
        nodes = {name: Node(server, name) for name in ("n1", "n2")}
        job = self.placed(server)
        refuser = nodes.pop(job["node_id"])
        other = nodes.popitem()[1]
        self.ok(refuser.fail(job, reason="NODE_OVERLOADED"))

        def moved():
            shown = server.job(job["job_id"])
            return shown if shown["node_id"] == other.id else None

        shown = eventually("the job is on the other node", moved)
        self.assertEqual((shown["attempt_id"], shown["state"]), (1, "DISPATCHED"))
        self.assertSlots(server, refuser.id, 0, 0)
        self.assertSlots(server, other.id, 1, 0)
        self.problem(refuser.ack(job), 409, "STALE_ATTEMPT")
        self.ok(other.ack(job))
        self.ok(other.done(job))
        self.assertEqual(server.metrics()["berth_node_overload_total"], 1)

    def test_refused_by_all_fails(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.fail(job, reason="NODE_OVERLOADED"))
        shown = self.state_of(server, job, "FAILED")
        self.assertEqual(shown["attempt_id"], 1)
        self.assertSlots(server, "n1", 0, 0)

    def test_overload_after_the_ack_is_a_failure(self):
        """NODE_OVERLOADED is a refusal only before the ACK; afterwards it ends the attempt."""
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.fail(job, reason="NODE_OVERLOADED"))
        self.state_of(server, job, "FAILED")

    def test_unknown_job_is_404(self):
        server = self.start()
        node = Node(server, "n1")
        for report in (node.ack, node.done, node.fail):
            self.problem(report({"job_id": "j0000000000001", "attempt_id": 1}), 404, "NOT_FOUND")

    def test_an_attempt_that_does_not_exist_is_409(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        body = self.problem(node.ack({**job, "attempt_id": 2}), 409, "STALE_ATTEMPT")
        self.assertEqual(body["attempt_id"], 1)
        self.assertSlots(server, "n1", 1, 0)

    def test_a_running_lease_runs_out_when_its_node_is_silent(self):
        server = self.start(running_lease_ms=1000, f2f_lease_ms=1000, max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.state_of(server, job, "FAILED")
        self.assertSlots(server, "n1", 0, 0)

    def test_a_heartbeat_keeps_a_long_job_alive(self):
        server = self.start(running_lease_ms=8000, f2f_lease_ms=8000, max_retry=1)
        nodes = [Node(server, name, max_concurrent_jobs=1) for name in ("kept", "silent")]
        jobs = {}
        for _ in nodes:
            job = self.placed(server)
            jobs[job["node_id"]] = job
        for node in nodes:
            self.ok(node.ack(jobs[node.id]))

        def silent_ended():
            self.ok(nodes[0].heartbeat())
            return server.job(jobs["silent"]["job_id"])["state"] == "FAILED"

        eventually("the lease of the silent node's job has run out", silent_ended)
        self.assertEqual(server.job(jobs["kept"]["job_id"])["state"], "ACKED")
        self.assertSlots(server, "kept", 0, 1)
        self.assertSlots(server, "silent", 0, 0)

    def test_a_heartbeat_with_a_list_renews_exactly_those(self):
        server = self.start(running_lease_ms=8000, f2f_lease_ms=8000, max_retry=1)
        node = Node(server, "n1", max_concurrent_jobs=2)
        kept, dropped = self.placed(server), self.placed(server)
        for job in (kept, dropped):
            self.ok(node.ack(job))
        listed = [{"job_id": kept["job_id"], "attempt_id": kept["attempt_id"]}]

        def ended():
            self.ok(node.heartbeat(running_jobs=listed))
            return server.job(dropped["job_id"])["state"] == "FAILED"

        eventually("the lease of the job that was not listed has run out", ended)
        self.assertEqual(server.job(kept["job_id"])["state"], "ACKED")
        self.assertSlots(server, "n1", 0, 1)


class Cancel(Case):
    def cancel(self, server, job):
        return server.post(f"/v1/jobs/{job['job_id']}/cancel")

    def test_while_it_waits(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        first = self.ok(self.task(server))
        waiting = self.ok(self.task(server, queue_ms=60000), 202)
        self.ok(self.cancel(server, waiting))
        shown = self.state_of(server, waiting, "FAILED")
        self.assertEqual(shown["reason"], "CANCELLED")
        # The cancelled job never starts, also when the slot is free.
        node = Node(server, "n1", register=False)
        self.ok(node.done(first))
        self.ok(self.task(server))
        self.assertEqual(server.job(waiting["job_id"])["state"], "FAILED")
        self.assertQueue(server, 0)

    def test_before_its_ack(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(self.cancel(server, job))
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["reason"]), ("FAILED", "CANCELLED"))
        self.assertSlots(server, "n1", 0, 0)
        self.problem(node.ack(job), 409, "STALE_ATTEMPT")

    def test_while_it_runs_it_keeps_its_slot_until_the_node_ends_it(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(self.cancel(server, job))
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["reason"]), ("FAILED", "CANCELLED"))
        self.assertSlots(server, "n1", 0, 1)
        self.ok(node.fail(job, reason="CANCELLED"))
        self.assertSlots(server, "n1", 0, 0)
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["reason"], shown["attempt_id"]), ("FAILED", "CANCELLED", 1))

    def test_while_it_runs_and_its_node_says_done(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(self.cancel(server, job))
        self.ok(node.done(job))
        self.assertSlots(server, "n1", 0, 0)
        self.assertEqual(server.job(job["job_id"])["state"], "FAILED", "a finished job is never reopened")

    def test_while_it_runs_and_its_node_is_gone(self):
        server = self.start(running_lease_ms=3000, f2f_lease_ms=3000)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(self.cancel(server, job))
        eventually("the slot is free", lambda: server.slots("n1") == (0, 0), 20)

    def test_after_its_end(self):
        """Cancelling a finished job is a conflict; cancelling twice is not."""
        server = self.start()
        node = Node(server, "n1")
        done = self.placed(server)
        self.ok(node.done(done))
        self.problem(self.cancel(server, done), 409, "CONFLICT")
        self.assertEqual(server.job(done["job_id"])["state"], "DONE")
        cancelled = self.placed(server)
        self.ok(self.cancel(server, cancelled))
        self.ok(self.cancel(server, cancelled))

    def test_unknown_job(self):
        server = self.start()
        self.problem(server.post("/v1/jobs/j0000000000001/cancel"), 404, "NOT_FOUND")
        self.problem(server.post("/v1/jobs/nonsense/cancel"), 404, "NOT_FOUND")


class Retry(Case):
    def test_is_a_new_job(self):
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server, session="room-7")
        self.ok(node.ack(job))
        self.ok(node.fail(job))
        self.state_of(server, job, "FAILED")
        again = self.ok(server.post(f"/v1/jobs/{job['job_id']}/retry"))
        self.assertNotEqual(again["job_id"], job["job_id"])
        shown = server.job(again["job_id"])
        self.assertEqual((shown["retried_from"], shown["session_id"], shown["attempt_id"]),
                         (job["job_id"], "room-7", 1))
        self.assertEqual(server.job(job["job_id"])["state"], "FAILED")
        self.ok(node.done(again))

    def test_of_a_job_that_is_not_finished_is_a_conflict(self):
        server = self.start()
        Node(server, "n1")
        job = self.placed(server)
        self.problem(server.post(f"/v1/jobs/{job['job_id']}/retry"), 409, "CONFLICT")

    def test_of_an_unknown_job(self):
        self.problem(self.start().post("/v1/jobs/j0000000000001/retry"), 404, "NOT_FOUND")


class RunTimeout(Case):
    @tags("threads")
    def test_a_job_past_its_timeout_is_ended_by_the_server(self):
        """The node should enforce timeout_ms; the server steps in after the grace."""
        server = self.start(max_retry=1, stop_grace_ms=500)
        node = WsNode(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server, timeout_ms=1000, max_attempts=1))
        node.expect("job")
        node.report("ack", job)

        def ended():
            node.ask("heartbeat", **node.facts)
            return server.job(job["job_id"])["state"] == "FAILED"

        eventually("the server has ended the job", ended, 40)
        self.assertEqual(node.expect("cancel")["job_id"], job["job_id"])
        node.close()
