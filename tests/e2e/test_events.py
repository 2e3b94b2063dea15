"""A client can leave the event stream and resume it: it misses no event, or gets a gap event."""
import subprocess

from harness import BINARY, Case, Events, Node, clean_env, eventually, in_parallel, tags


class Resume(Case):
    def follow(self, server, last_id=None):
        events = Events(server, last_id=last_id)
        self.addCleanup(events.close)
        eventually("the first event arrives", lambda: events.seen or last_id)
        return events

    def names(self, events):
        return [name for name, _ in events.seen]

    def work(self, server, node, count=1):
        for _ in range(count):
            job = self.placed(server)
            self.ok(node.ack(job))
            self.ok(node.done(job))

    def jobs(self, events):
        return [(data["job_id"], data["what"]) for name, data in events.seen if name == "job"]

    @tags("threads")
    def test_what_happened_meanwhile_is_told(self):
        server = self.start(loops=2)
        node = Node(server, "n1", max_concurrent_jobs=50)
        whole = self.follow(server)
        left = self.follow(server)
        self.assertEqual(self.names(left)[0], "hello")  # what is announced at a start may follow
        self.work(server, node)
        eventually("three events of the job arrive", lambda: len(self.jobs(left)) == 3)
        left.close()
        self.work(server, node, 5)
        again = self.follow(server, left.last_id)
        self.work(server, node, 5)
        eventually("both streams have all events", lambda: len(self.jobs(whole)) == 33 and len(self.jobs(again)) == 30)
        self.assertEqual(self.jobs(left) + self.jobs(again), self.jobs(whole))
        self.assertNotIn("gap", self.names(again))
        # Nothing has happened since, and no event is repeated.
        idle = self.follow(server, again.last_id)
        self.work(server, node)
        eventually("the next three events arrive", lambda: len(self.jobs(idle)) == 3)

    def test_also_when_nobody_else_listened(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=50)
        events = self.follow(server)
        events.close()
        self.work(server, node, 3)
        again = self.follow(server, events.last_id)
        eventually("all nine events arrive", lambda: len(self.jobs(again)) == 9)

    def test_what_cannot_be_told_is_a_gap(self):
        server = self.start(events_replay_bytes=2048)
        node = Node(server, "n1", max_concurrent_jobs=50)
        events = self.follow(server)
        events.close()
        self.work(server, node, 20)
        number = events.last_id.split("-")[1]
        for last_id in (events.last_id, "nonsense", "", "7f-" + number, "0-1", "0-99999999999999999", "0--5"):
            again = self.follow(server, last_id)
            eventually("an event arrives", lambda: again.seen)
            self.assertEqual(self.names(again)[0], "gap", last_id)
            self.assertTrue(again.last_id and again.last_id != last_id)
            # The stream goes on from the gap.
            job = self.placed(server)
            eventually("the next event arrives", lambda: (job["job_id"], "dispatched") in self.jobs(again))
            self.ok(node.done(job))
            again.close()

    def test_a_restart_is_a_gap(self):
        server = self.start()
        Node(server, "n1")
        events = self.follow(server)
        self.placed(server)
        eventually("the event of the job arrives", lambda: self.jobs(events))
        events.close()
        server.kill()
        server = self.start()
        again = self.follow(server, events.last_id)
        eventually("an event arrives", lambda: again.seen)
        self.assertEqual(self.names(again)[0], "gap")  # what is announced at a start may follow
        self.assertEqual(self.jobs(again), [])

    @tags("threads")
    def test_readers_that_come_and_go_while_much_happens(self):
        """Each reader gets every event since its Last-Event-ID once and in order, however often it reconnects."""
        server = self.start(loops=2)
        node = Node(server, "n1", max_concurrent_jobs=500)
        whole = self.follow(server)
        before_all = whole.last_id

        def one(i):
            if i < 2:
                self.work(server, node, 40)
                return None
            seen, last_id = [], before_all
            for _ in range(10):
                events = Events(server, last_id=last_id)
                begun = len(seen)
                eventually("more events arrive", lambda: events.seen or len(seen) + len(events.seen) >= 240, 20)
                events.close()
                seen += self.jobs(events)
                last_id = events.last_id
                assert "gap" not in self.names(events), events.seen
                if len(seen) >= 240 or begun == len(seen):
                    break
            return seen

        results = in_parallel(4, one)
        eventually("the uninterrupted stream has all events", lambda: len(self.jobs(whole)) == 240)
        for seen in results[2:]:
            self.assertEqual(seen, self.jobs(whole)[:len(seen)])


class Thin(Case):
    def follow(self, server, path, last_id=None):
        events = Events(server, path, last_id)
        self.addCleanup(events.close)
        eventually("the first event arrives", lambda: events.seen or last_id)
        return events

    @tags("threads")
    def test_thin_has_the_last_of_each_job(self):
        """A thin stream may leave out intermediate states of a job, but never its last one, and counts what it left out."""
        server = self.start(loops=2)
        node = Node(server, "n1", max_concurrent_jobs=1000)
        whole = self.follow(server, "/v1/events")
        thin = self.follow(server, "/v1/events?thin=1")

        def work(_):
            for _ in range(60):
                job = self.placed(server)
                self.ok(node.ack(job))
                self.ok(node.done(job))

        def jobs(events, state=None):
            return [data["job_id"] for name, data in events.seen if name == "job" and state in (None, data["state"])]

        in_parallel(4, work)
        eventually("the full stream has all events", lambda: len(jobs(whole)) == 720)
        eventually("the thin stream has every end, or has counted it", lambda: len(jobs(thin, "DONE")) + self.skipped(thin) >= 240)
        self.assertLess(len(jobs(thin)), len(jobs(whole)))
        for job in set(jobs(thin)):
            attempts = [data["attempt_id"] for name, data in thin.seen if name == "job" and data["job_id"] == job]
            self.assertLessEqual(len(attempts), 3, "an event of the job is repeated")
        # A thin stream can be resumed as well.
        thin.close()
        work(0)
        again = self.follow(server, "/v1/events?thin=1", thin.last_id)
        eventually("the missed ends arrive", lambda: len(jobs(again, "DONE")) == 60)
        self.assertEqual(server.get("/v1/events?thin=2").status, 400)

    def skipped(self, events):
        return sum(data["events"] for name, data in events.seen if name == "skipped")


class CommandLine(Case):
    """`berth events` reconnects and resumes, and reports when it missed events."""

    def follow(self, server):
        said = (self.dir / "said").open("wb")
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", BINARY, "events", "--addr", f"127.0.0.1:{server.port}"],
                                   stdout=subprocess.PIPE, stderr=said, text=True, env=clean_env())
        said.close()
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def until(self, follower, text):
        """Reads up to a line with the text; events about known nodes may come before it."""
        for line in follower.stdout:
            if text in line:
                return line
        raise AssertionError(f"the output ended without {text}")

    def test_a_server_that_dies_and_comes_back(self):
        server = self.start()
        follower = self.follow(server)
        self.assertIn("hello", follower.stdout.readline())
        for name in ("n1", "n2", "n3"):
            Node(server, name)
            self.until(follower, f'"node_id":"{name}"')
            server.kill()
            eventually("berth events reports the lost connection", lambda: (self.dir / "said").read_text().endswith("until it is back\n"))
            server = self.start(listen=f"127.0.0.1:{server.port}")
            self.assertRegex(self.until(follower, '"reason":"'), r"^gap +\{")
        self.assertEqual((self.dir / "said").read_text().count("berth: connected again\n"), 3)

    def test_one_that_was_stopped_in_peace(self):
        server = self.start()
        follower = self.follow(server)
        self.assertIn("hello", follower.stdout.readline())
        self.assertEqual(server.stop(), 0)
        self.start(listen=f"127.0.0.1:{server.port}")
        self.until(follower, "gap")
        self.assertIn("berth: connected again\n", (self.dir / "said").read_text())
