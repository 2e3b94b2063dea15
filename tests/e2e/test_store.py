"""The embedded store: what was accepted survives; a bad disk is refused at once, and the server recovers from it."""
import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
import time

from harness import SLOW, Case, Node, eventually, percentile, tags


class Durable(Case):
    def test_everything_is_there_after_kill_9(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=9, allowed_types=["dev"], labels={"a": "b"})
        done, acked, sent = (self.placed(server, session=f"s{i}") for i in range(3))
        self.ok(node.done(done, result={"kept": [1, 2]}))
        self.ok(node.ack(acked))
        before = server.node("n1")
        server.kill()

        server = self.start()
        node.server = server
        shown = server.job(done["job_id"])
        self.assertEqual((shown["state"], shown["result"], shown["session_id"]), ("DONE", {"kept": [1, 2]}, "s0"))
        self.assertEqual(server.job(acked["job_id"])["state"], "ACKED")
        self.assertEqual(server.job(sent["job_id"])["state"], "DISPATCHED")
        self.assertSlots(server, "n1", 1, 1)
        after = server.node("n1")
        for name in ("health", "max", "semantic_langs", "nmt_pairs", "tts_langs", "labels", "capabilities"):
            self.assertEqual(after[name], before[name], name)
        self.assertEqual(server.get("/v1/sessions/s0").json["preferred_pool"], "en:zh")
        # Messages about jobs from before still count.
        self.assertTrue(self.ok(node.done(done, result={"kept": [1, 2]}))["duplicate"])
        self.ok(node.done(acked))
        self.ok(node.ack(sent))
        self.ok(node.done(sent))
        self.assertSlots(server, "n1", 0, 0)
        self.placed(server)

    def test_a_reservation_that_ran_out_while_it_was_down_costs_no_slot(self):
        server = self.start(reservation_ttl_ms=3000, max_retry=1)  # long enough not to run out before the kill
        Node(server, "n1", max_concurrent_jobs=1)
        job = self.placed(server)
        server.kill()
        server = self.start(reservation_ttl_ms=300, max_retry=1)
        found = self.state_of(server, job, "FAILED")
        self.assertEqual([attempt["reason"] for attempt in found["attempts"]], ["OUTCOME_UNKNOWN", "ACK_TIMEOUT"])
        eventually("the slot is free", lambda: server.slots("n1") == (0, 0))
        self.placed(server)

    def test_killed_again_and_again(self):
        ids, finished = set(), set()
        for turn in range(6):
            server = self.start()
            node = Node(server, "n1", max_concurrent_jobs=1000)
            for i in range(20):
                job = self.placed(server)
                self.assertNotIn(job["job_id"], ids, "a job id was used twice")
                ids.add(job["job_id"])
                if i % 2:
                    self.ok(node.done(job))
                    finished.add(job["job_id"])
            server.kill()
        server = self.start()
        states = {job["job_id"]: job["state"] for job in server.all_jobs()}
        self.assertEqual(set(states), ids)
        self.assertEqual({job for job, state in states.items() if state == "DONE"}, finished)

    def test_files_are_private(self):
        server = self.start()
        for path in server.data_dir.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was renamed meanwhile
                self.assertEqual(path.stat().st_mode & 0o077, 0, f"{path.name} can be read by others")


class Retention(Case):
    def test_finished_jobs_are_purged_others_never(self):
        server = self.start(retention_ms=1000, reservation_ttl_ms=8000, running_lease_ms=60000)
        node = Node(server, "n1", max_concurrent_jobs=9)
        old, running = self.placed(server), self.placed(server)
        self.ok(node.done(old))
        self.ok(node.ack(running))
        eventually("the finished job is purged", lambda: server.get(f"/v1/jobs/{old['job_id']}").status == 404, 30)
        self.assertEqual(server.job(running["job_id"])["state"], "ACKED")
        self.assertSlots(server, "n1", 0, 1)
        self.assertTrue(node.done(running).status == 200)

    @tags("load")
    def test_no_more_of_them_than_retention_jobs_max(self):
        server = self.start(retention_jobs_max=1000)
        Node(server, "n1", max_concurrent_jobs=5000)
        with server.client() as client:
            for _ in range(5):
                batch = client.post("/v1/dispatch/batch", {"jobs": [{"src_lang": "en", "tgt_lang": "zh"}] * 500})
                for job in batch["results"]:
                    self.assertEqual(client.post("/v1/job/done", {
                        "job_id": job["job_id"], "attempt_id": 1, "node_id": "n1", "status": "ok"}).status, 200)
        eventually("older jobs are purged", lambda: len(server.all_jobs()) <= 1500, 30)
        self.assertEqual(server.job(job["job_id"])["state"], "DONE", "the newest jobs must be kept")
        self.assertSlots(server, "n1", 0, 0)


class BadDisk(Case):
    """The store refuses with SCHEDULER_DEPENDENCY_DOWN in less than 100 ms, recovers by itself, and loses nothing that was accepted."""

    LIMIT = 0.1
    IN_A_ROW = 50

    def use_up(self, server, seconds=60):
        """Dispatches until the store refuses 50 times in a row; (accepted ids, seconds each refusal took). A checkpoint may make a little
        room again, so one refusal proves nothing."""
        accepted, times, row = [], [], 0
        deadline = time.monotonic() + seconds * SLOW
        with server.client() as client:
            while row < self.IN_A_ROW:
                answer = client.post("/v1/dispatch/task", {"type": "dev", "payload": "x" * 30000})
                if answer.status == 200:
                    accepted.append(answer["job_id"])
                    row = 0
                else:
                    self.problem(answer, 503, "SCHEDULER_DEPENDENCY_DOWN")
                    self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
                    times.append(answer.seconds)
                    row += 1
                self.assertLess(time.monotonic(), deadline, f"{len(accepted)} jobs and still not full")
        return accepted, times

    def check(self, server, free):
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=100000)
        early = self.ok(self.task(server))
        yield
        accepted, times = self.use_up(server)
        eventually("the server is not ready while the store cannot write",
                   lambda: self.task(server).status == 503 and server.get("/readyz").status == 503)
        self.assertEqual(server.get("/healthz").status, 200, "healthz must be answered")
        self.assertEqual(server.get("/v1/nodes/n1").status, 200, "nodes must be readable")
        self.assertEqual(server.job(early["job_id"])["state"], "DISPATCHED")
        # Some refusals may be late because this machine was.
        self.assertLess(percentile(times, 0.8), self.LIMIT * SLOW, f"refusals took {sorted(times)[-5:]} s")
        free()
        eventually("a job is accepted again", lambda: self.task(server).status == 200, 30)
        eventually("the server is ready again", lambda: server.get("/readyz").status == 200)
        self.ok(node.done(early))
        kept = {job["job_id"] for job in server.all_jobs()}
        self.assertEqual(set(accepted) - kept, set(), "accepted jobs are lost")
        node_view = server.node("n1")
        open_jobs = [job for job in server.all_jobs() if job["state"] == "DISPATCHED"]
        self.assertEqual(node_view["reserved"], len(open_jobs), "every reserved slot must have its job")
        server.kill()
        yield
        server = self.start(data_dir=server.data_dir, reservation_ttl_ms=8000)
        kept = {job["job_id"] for job in server.all_jobs()}
        self.assertEqual(set(accepted) - kept, set(), "accepted jobs are lost after a restart")

    @tags("alone")
    def test_full(self):
        """A small tmpfs is filled up; needs the right to mount."""
        place = tempfile.mkdtemp(prefix="berth-tmpfs-")
        self.addCleanup(shutil.rmtree, place, ignore_errors=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a tmpfs is not permitted here")
        self.addCleanup(subprocess.run, ["umount", "-l", place])
        self.addCleanup(self._end_servers)  # before the umount
        filler = os.path.join(place, "filler")
        server = self.start(data_dir=os.path.join(place, "data"), reservation_ttl_ms=60000)
        steps = self.check(server, lambda: os.unlink(filler))
        next(steps)
        with open(filler, "wb") as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()
            except OSError:
                pass
        for _ in steps:
            pass

    @tags("alone")
    def test_file_size_limit(self):
        """The same with a limit on the size of files, which needs no special right."""
        server = self.start(reservation_ttl_ms=60000)
        grown = max(path.stat().st_size for path in server.data_dir.iterdir())
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        steps = self.check(server, lambda: resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard)))
        next(steps)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (grown + 2_000_000, hard))
        for _ in steps:
            pass
