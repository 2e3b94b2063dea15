"""Idempotency keys, batches, tasks that wait, and answers that wait."""
import json
import threading
import time

from harness import SLOW, Case, Listener, Node, eventually, in_parallel, tags


class Idempotency(Case):
    def test_the_same_key_and_body_is_the_same_job(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=9)
        key = {"Idempotency-Key": "abc-1"}
        first = self.placed(server, headers=key)
        again = self.placed(server, headers=key)
        self.assertEqual((again["job_id"], again["node_id"], again["attempt_id"]),
                         (first["job_id"], first["node_id"], first["attempt_id"]))
        self.assertSlots(server, "n1", 1, 0)
        self.assertNotEqual(self.placed(server, headers={"Idempotency-Key": "abc-2"})["job_id"],
                            first["job_id"])

    def test_another_body_is_409(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=9)
        key = {"Idempotency-Key": "abc-1"}
        self.placed(server, headers=key)
        self.problem(self.dispatch(server, session="other", headers=key), 409, "IDEMPOTENCY_KEY_REUSED")
        self.assertSlots(server, "n1", 1, 0)

    def test_a_refused_dispatch_does_not_use_the_key_up(self):
        server = self.start()
        key = {"Idempotency-Key": "abc-1"}
        self.problem(self.dispatch(server, headers=key), 422, "NO_CAPABLE_NODE")
        Node(server, "n1")
        self.placed(server, headers=key)

    def test_it_holds_across_a_restart_and_for_tasks(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=9)
        key = {"Idempotency-Key": "k"}
        first = self.ok(self.task(server, headers=key))
        server.kill()
        server = self.start()
        self.assertEqual(self.ok(self.task(server, headers=key))["job_id"], first["job_id"])
        self.problem(self.task(server, title="other", headers=key), 409, "IDEMPOTENCY_KEY_REUSED")

    def test_of_a_queued_task(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server))
        key = {"Idempotency-Key": "k"}
        first = self.ok(self.task(server, queue_ms=60000, headers=key), 202)
        again = self.ok(self.task(server, queue_ms=60000, headers=key), 202)
        self.assertEqual(again, {**first, "duplicate": True})
        self.assertQueue(server, 1)

    def test_a_key_that_is_no_key_is_400(self):
        server = self.start()
        Node(server, "n1")
        for key in ("", "x" * 300):
            answer = self.dispatch(server, headers={"Idempotency-Key": key})
            self.assertEqual(answer.status, 400, f"{key!r}: {answer}")

    @tags("threads")
    def test_in_parallel_it_is_one_job(self):
        server = self.start(loops=2)
        Node(server, "n1", max_concurrent_jobs=100)
        for number in range(5):
            key = {"Idempotency-Key": f"burst-{number}"}
            ids = {answer["job_id"] for answer in in_parallel(
                20, lambda _: self.placed(server, headers=key))}
            self.assertEqual(len(ids), 1)
        self.assertSlots(server, "n1", 5, 0)


    def test_one_that_was_refused_after_a_failed_send_is_free(self):
        server = self.start()
        deaf = Listener(answers=(503,))
        self.addCleanup(deaf.close)
        Node(server, "deaf", endpoint=deaf.url)
        how = {"headers": {"Idempotency-Key": "k"}, "preferred_node_id": "deaf"}
        self.problem(self.dispatch(server, **how), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(self.ok(server.get("/v1/jobs"))["jobs"][0]["state"], "FAILED")
        node = Node(server, "n1")
        again = self.placed(server, **how)
        self.assertEqual((again["node_id"], "duplicate" in again), ("n1", False))
        self.ok(node.ack(again))


class Batch(Case):
    F2F = {"session_id": "s", "src_lang": "en", "tgt_lang": "zh", "audio_ref": "blob://a"}

    def batch(self, server, jobs):
        return server.post("/v1/dispatch/batch", {"jobs": jobs})

    @tags("threads")
    def test_a_thousand_with_mixed_results(self):
        """Each job is answered in its place as if it had been sent alone."""
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=700, allowed_types=["dev"])
        kinds = [
            (self.F2F, 200, None),
            ({**self.F2F, "src_lang": "xx"}, 422, "NO_CAPABLE_NODE"),
            ({"type": "dev", "payload": {"i": 1}}, 200, None),
            ({**self.F2F, "src_lang": None}, 400, "BAD_FIELD"),
            ({"type": "unknown"}, 422, "NO_CAPABLE_NODE"),
        ]
        results = self.ok(self.batch(server, [kinds[i % 5][0] for i in range(1000)]))["results"]
        self.assertEqual(len(results), 1000)
        for i, result in enumerate(results):
            _, status, error = kinds[i % 5]
            self.assertEqual((result["status"], result.get("error")), (status, error), f"{i}: {result}")
            if status == 200:
                self.assertEqual((result["node_id"], result["attempt_id"]), ("n1", 1))
        ids = {result["job_id"] for result in results if result["status"] == 200}
        self.assertEqual(len(ids), 400)
        self.assertSlots(server, "n1", 400, 0)

    def test_a_thousand_of_2_kb_each(self):
        """The body of a batch may be eight times as large as another body."""
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=1000, allowed_types=["dev"])
        results = self.ok(self.batch(server, [{"type": "dev", "payload": "x" * 2000}] * 1000))["results"]
        self.assertEqual({result["status"] for result in results}, {200})

    def test_stops_at_what_fits(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=30)
        results = self.ok(self.batch(server, [self.F2F] * 100))["results"]
        self.assertEqual(sum(result["status"] == 200 for result in results), 30)
        full = [result for result in results if result["status"] != 200]
        self.assertEqual({result["error"] for result in full}, {"ALL_CANDIDATES_FULL_OR_FAILED"})
        self.assertSlots(server, "n1", 30, 0)

    def test_more_than_the_store_may_have_under_way_is_busy(self):
        """A refused job takes no slot, and what was counted for it is counted back."""
        server = self.start(store_in_flight_max=16)
        node = Node(server, "n1", max_concurrent_jobs=5000)
        results = self.ok(self.batch(server, [self.F2F] * 500))["results"]
        placed = [result for result in results if result["status"] == 200]
        refused = {(result["status"], result["error"]) for result in results if result["status"] != 200}
        self.assertEqual(refused, {(503, "SCHEDULER_BUSY")})
        self.assertGreater(len(placed), 0)
        self.assertSlots(server, "n1", len(placed), 0)
        for job in placed:
            self.ok(node.done(job))
        self.assertSlots(server, "n1", 0, 0)

    def test_too_many_and_none(self):
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=5000)
        self.assertIn(self.batch(server, [self.F2F] * 1001).status, (400, 413))
        self.assertEqual(server.post("/v1/dispatch/batch", {"jobs": "many"}).status, 400)
        self.assertEqual(server.post("/v1/dispatch/batch", {}).status, 400)
        self.assertSlots(server, "n1", 0, 0)


class Queue(Case):
    def full(self, **settings):
        """A server with one node whose only slot is taken: (server, node, the job that has the slot)."""
        server = self.start(**settings)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        return server, node, self.ok(self.task(server))

    def wait_in_line(self, server, **fields):
        return self.ok(self.task(server, queue_ms=60000, **fields), 202)

    def next_on(self, node):
        """The job that got the slot, after its ACK."""
        job = node.poll()[0]
        self.ok(node.ack(job))
        return job

    def test_waits_and_starts_when_a_slot_frees(self):
        server, node, first = self.full()
        waiting = self.wait_in_line(server)
        shown = server.job(waiting["job_id"])
        self.assertEqual((shown["state"], shown["status"], shown["node_id"]), ("NEW", "Created", None))
        self.assertQueue(server, 1)
        self.ok(node.done(first))
        self.state_of(server, waiting, "DISPATCHED")
        self.assertQueue(server, 0)

    def test_starts_on_a_node_that_registers_later(self):
        """A task may wait for a node that has room; a task that no node can do is not queued."""
        server, node, first = self.full()
        waiting = self.wait_in_line(server)
        Node(server, "n2", allowed_types=["dev"])
        self.assertEqual(self.state_of(server, waiting, "DISPATCHED")["node_id"], "n2")

    def test_starts_when_max_grows_or_health_returns(self):
        server, node, first = self.full()
        waiting = self.wait_in_line(server)
        node.facts["max_concurrent_jobs"] = 2
        self.ok(node.heartbeat())
        self.state_of(server, waiting, "DISPATCHED")

    def test_starts_when_a_reservation_runs_out(self):
        server = self.start(reservation_ttl_ms=8000)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server, max_attempts=1))
        waiting = self.wait_in_line(server, max_attempts=9)
        self.state_of(server, waiting, "DISPATCHED")

    def test_without_queue_ms_it_is_503(self):
        server, node, first = self.full()
        self.problem(self.task(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")

    def test_priority_then_age(self):
        server, node, first = self.full()
        lines = [(5, "a"), (1, "b"), (9, "c"), (5, "d"), (9, "e"), (0, "f")]
        for priority, title in lines:
            self.wait_in_line(server, priority=priority, title=title)
        order = []
        self.assertEqual(self.next_on(node)["job_id"], first["job_id"])
        last = first
        for _ in lines:
            self.ok(node.done(last))
            last = self.next_on(node)
            order.append(last["title"])
        self.assertEqual(order, ["c", "e", "a", "d", "b", "f"])

    def test_a_newcomer_does_not_overtake(self):
        """A slot that becomes free goes to the waiting job, also when a dispatch without queue_ms is sent at the same moment."""
        server, node, first = self.full()
        waiting = self.wait_in_line(server)
        self.ok(node.done(first))
        self.state_of(server, waiting, "DISPATCHED")
        self.problem(self.task(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")

    def test_no_blocked_pool_holds_up_another(self):
        server, node, first = self.full()
        self.wait_in_line(server, priority=9)
        talker = Node(server, "n2", allowed_types=["talk"], max_concurrent_jobs=1)
        busy = self.ok(self.task(server, type="talk"))
        waiting = self.ok(self.task(server, type="talk", priority=0, queue_ms=60000), 202)
        self.ok(talker.done(busy))
        self.state_of(server, waiting, "DISPATCHED")

    def test_queue_timeout(self):
        server, node, first = self.full()
        waiting = self.ok(self.task(server, queue_ms=300), 202)
        shown = self.state_of(server, waiting, "FAILED")
        self.assertEqual(shown["reason"], "QUEUE_TIMEOUT")
        self.assertQueue(server, 0)
        self.assertSlots(server, "n1", 1, 0)

    def test_full_queue_is_429(self):
        server, node, first = self.full(queue_max=3)
        waiting = [self.wait_in_line(server) for _ in range(3)]
        answer = self.task(server, queue_ms=60000)
        self.problem(answer, 429, "QUEUE_FULL")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertQueue(server, 3)
        self.ok(server.post(f"/v1/jobs/{waiting[0]['job_id']}/cancel"))
        eventually("another job may wait", lambda: self.task(server, queue_ms=60000).status == 202)

    def test_a_page_of_large_jobs_ends_early(self):
        """A page of a list is bounded in bytes, and its cursor leads to the rest."""
        server, node, first = self.full()
        waiting = [self.wait_in_line(server, payload={"text": "x" * 900_000})["job_id"] for _ in range(12)]
        page = server.get("/v1/jobs?limit=1000")
        self.assertLess(len(page.body), 6 << 20)
        jobs = self.ok(page)["jobs"]
        self.assertEqual([job["job_id"] for job in jobs], waiting[::-1][:len(jobs)])
        self.assertGreater(len(jobs), 1)
        self.assertEqual([job["job_id"] for job in server.all_jobs()], [*waiting[::-1], first["job_id"]])

    def test_waiting_jobs_survive_kill_9(self):
        server, node, first = self.full()
        waiting = [self.wait_in_line(server, title=str(i)) for i in range(3)]
        server.kill()
        server = self.start()
        node.server = server
        self.ok(node.done(first))
        for job in waiting:
            self.state_of(server, job, "DISPATCHED", seconds=30)
            self.ok(node.done(server.job(job["job_id"])))
        self.assertSlots(server, "n1", 0, 0)

    def test_a_failed_task_may_wait_for_its_second_attempt(self):
        """A task may wait for its retry up to its queue_ms."""
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        job = self.ok(self.task(server, queue_ms=60000))
        self.ok(node.ack(job))
        node.facts["health"] = "draining"
        self.ok(node.heartbeat())
        self.ok(node.fail(job))
        self.assertQueue(server, 1)
        node.facts["health"] = "ready"
        self.ok(node.heartbeat())
        shown = self.state_of(server, job, "DISPATCHED")
        self.assertEqual(shown["attempt_id"], 2)

    @tags("threads")
    def test_never_waits_while_a_slot_is_free(self):
        """Many jobs through few slots, with the queue always full: all of them finish."""
        server = self.start(loops=2)
        nodes = {f"n{i}": Node(server, f"n{i}", allowed_types=["dev"], max_concurrent_jobs=2)
                 for i in range(3)}
        jobs = [self.task(server, queue_ms=120000, priority=i % 10) for i in range(120)]
        self.assertTrue(all(job.status in (200, 202) for job in jobs))
        left = {job["job_id"] for job in jobs}

        def work(i):
            node = list(nodes.values())[i]
            deadline = time.monotonic() + 60 * SLOW
            while left and time.monotonic() < deadline:
                for job in node.poll(wait="200ms", most=2):
                    self.ok(node.ack(job))
                    self.ok(node.done(job))
                    left.discard(job["job_id"])

        in_parallel(3, work)
        self.assertEqual(left, set())
        for name in nodes:
            self.assertSlots(server, name, 0, 0)


class Wait(Case):
    def test_until_the_job_ends(self):
        server = self.start(loops=2)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        found = {}
        waiter = threading.Thread(target=lambda: found.update(server.job(job["job_id"], wait="20s")))
        waiter.start()
        self.ok(node.done(job, result={"text": "hallo"}))
        waiter.join()
        self.assertEqual((found["state"], found["result"]), ("DONE", {"text": "hallo"}))

    def test_a_finished_job_answers_at_once(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.done(job))
        answer = server.get(f"/v1/jobs/{job['job_id']}?wait=25s")
        self.assertEqual(answer["state"], "DONE")
        self.assertLess(answer.seconds, 20)

    def test_that_runs_out_shows_the_present_state(self):
        server = self.start()
        Node(server, "n1")
        job = self.placed(server)
        answer = server.get(f"/v1/jobs/{job['job_id']}?wait=200ms")
        self.assertEqual(self.ok(answer)["state"], "DISPATCHED")
        self.assertGreaterEqual(answer.seconds, 0.19)

    def test_wrong_wait_and_unknown_job(self):
        server = self.start()
        Node(server, "n1")
        job = self.placed(server)
        self.assertEqual(server.get(f"/v1/jobs/{job['job_id']}?wait=soon").status, 400)
        self.problem(server.get("/v1/jobs/j0000000000001?wait=5s"), 404, "NOT_FOUND")

    def test_a_waiter_that_left_harms_nobody(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server)
        client = server.client()
        client.connection.request("GET", f"/v1/jobs/{job['job_id']}?wait=20s")
        client.close()
        self.ok(node.done(job))
        self.assertEqual(server.job(job["job_id"], wait="1s")["state"], "DONE")

    @tags("threads")
    def test_many_waiters_on_one_job(self):
        server = self.start(loops=2)
        node = Node(server, "n1")
        job = self.placed(server)
        clients = [server.client() for _ in range(50)]
        for client in clients:
            client.connection.request("GET", f"/v1/jobs/{job['job_id']}?wait=30s")
        self.ok(node.done(job))
        for client in clients:
            self.assertEqual(json.loads(client.connection.getresponse().read())["state"], "DONE")
            client.close()


class Result(Case):
    def test_is_kept_whole(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=20)
        for result in ({"a": [1, 2.5, None, True, "\u00e9\U0001F600\\\"\n"]}, [], "text", 0, False, {}):
            job = self.placed(server)
            self.ok(node.done(job, result=result))
            self.assertEqual(server.job(job["job_id"])["result"], result)

    def test_up_to_64_kib(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=9)
        job = self.placed(server)
        self.ok(node.ack(job))
        fits = "x" * (64 * 1024 - 2)  # 64 KiB with its quotes
        over = fits + "x"
        self.problem(node.done(job, result=over), 413, "TOO_LARGE")
        self.assertEqual(server.job(job["job_id"])["state"], "ACKED", "a refused DONE changes nothing")
        self.assertSlots(server, "n1", 0, 1)
        self.ok(node.done(job, result=fits))
        self.assertEqual(server.job(job["job_id"])["result"], fits)

    def test_the_bound_is_a_setting(self):
        server = self.start(result_bytes_max=1024)
        node = Node(server, "n1")
        job = self.placed(server)
        self.problem(node.done(job, result="x" * 1023), 413, "TOO_LARGE")
        self.ok(node.done(job, result="x" * 1022))

    def test_of_a_failure_is_kept_too(self):
        server = self.start(max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.ack(job))
        self.ok(node.fail(job, reason="BROKEN", result={"trace": "line 1"}))
        shown = self.state_of(server, job, "FAILED")
        self.assertEqual((shown["reason"], shown["result"]), ("BROKEN", {"trace": "line 1"}))
