"""The store in Redis is away, or comes back empty: what is refused, how fast, and what is true afterwards.
BERTH_OUTAGES and BERTH_OUTAGE_S say how often and for how long it is away (`make outages`)."""
import os
import threading
import time

import wsclient
from harness import SLOW, Case, WsNode, eventually, tags
from redis import Redis

TIMES = int(os.environ.get("BERTH_OUTAGES", "1"))
SECONDS = float(os.environ.get("BERTH_OUTAGE_S", "2"))


class Fleet(threading.Thread):
    """Nodes that run everything they get until told to end it; each knows what it really runs."""

    def __init__(self, server, count, slots):
        super().__init__(daemon=True)
        self.server, self.slots = server, slots
        self.nodes = {f"n{i}": None for i in range(count)}
        self.running = {name: set() for name in self.nodes}
        self.most = 0
        self.over = threading.Event()
        self.finish = threading.Event()  # end what runs, as fast as it is accepted
        self.ended = set()

    def connect(self, name):
        runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in self.running[name]]
        node = WsNode(self.server, name, hello=False, max_concurrent_jobs=self.slots)
        node.hello(running_jobs=runs)
        node.expect("welcome")
        node.beat_at = 0
        return node

    def turn(self, name):
        node = self.nodes[name]
        if not node:
            node = self.nodes[name] = self.connect(name)
        if time.monotonic() >= node.beat_at:
            node.beat_at = time.monotonic() + 0.5
            runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in self.running[name]]
            node.send("heartbeat", node_id=name, running_jobs=runs)
        if self.finish.is_set():
            for job, attempt in list(self.running[name]):
                if node.ask("done", job_id=job, attempt_id=attempt).get("ok"):
                    self.running[name].discard((job, attempt))
                    self.ended.add(job)
        try:
            message = node.expect("job", seconds=0.005 / SLOW)
        except TimeoutError:
            return
        # No limit of its own: what it is given must be right.
        if node.ask("ack", job_id=message["job_id"], attempt_id=message["attempt_id"]).get("ok"):
            self.running[name].add((message["job_id"], message["attempt_id"]))
            self.most = max(self.most, len(self.running[name]))

    def run(self):
        while not self.over.is_set():
            for name in self.nodes:
                try:
                    self.turn(name)
                except (wsclient.Closed, wsclient.Refused, OSError, TimeoutError):
                    if self.nodes[name]:
                        self.nodes[name].socket.drop()
                    self.nodes[name] = None

    def total(self):
        return sum(map(len, self.running.values()))


class Outage(Case):
    slots, count = 3, 4

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis", "--appendonly", "yes", "--appendfsync", "always")
        self.addCleanup(self.redis.kill)
        self.server = self.start(store=self.redis.url)
        self.fleet = Fleet(self.server, self.count, self.slots)
        self.fleet.start()
        self.addCleanup(self.fleet.over.set)
        eventually("all nodes are there", lambda: len(self.server.get("/v1/nodes").json["nodes"]) == self.count)

    def fill(self, want):
        """Dispatches until the nodes run so many."""
        def more():
            if self.fleet.total() < want:
                self.dispatch(self.server)
            return self.fleet.total() >= want

        eventually(f"{want} jobs run", more, 30)

    def refused(self):
        answer = self.dispatch(self.server)
        self.problem(answer, 503, "SCHEDULER_DEPENDENCY_DOWN")
        self.assertGreater(int(answer.headers["Retry-After"]), 0)
        return answer.seconds

    def placed_again(self):
        began = time.monotonic()
        eventually("work is placed again", lambda: self.dispatch(self.server).status == 200, 10)
        return time.monotonic() - began

    def end(self):
        """Everything that runs ends, is accepted, and no slot stays taken."""
        self.fleet.finish.set()
        eventually("all ends are accepted", lambda: self.fleet.total() == 0, 30)
        for name in self.fleet.nodes:
            eventually("no slot is taken", lambda: self.server.slots(name) == (0, 0), 20)
        self.fleet.finish.clear()
        self.assertLessEqual(self.fleet.most, self.slots, "a node was given more than it may run")

    def away(self, stop, back):
        self.fill(6)
        for _ in range(32):  # every loop keeps its own
            self.assertEqual(self.server.get("/v1/sessions/room-888").status, 200)
        running = {run for runs in self.fleet.running.values() for run in runs}
        stop()
        slow = [self.refused() for _ in range(20)]
        eventually("it says so", lambda: self.server.get("/readyz").json["store_mode"] != "NORMAL", 3)
        known = self.server.get("/v1/nodes").json
        self.assertTrue(known["stale"])
        self.assertEqual(len(known["nodes"]), self.count)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            slow.append(self.refused())
            time.sleep(0.02)
        session = self.server.get("/v1/sessions/room-888")
        if SECONDS < 20:
            self.assertEqual(session.status, 200)
        self.assertLessEqual(running, {run for runs in self.fleet.running.values() for run in runs}, "they go on")
        back()
        took = self.placed_again()
        self.end()
        print(f"refused in at most {max(slow) * 1000:.0f} ms, placed again after {took * 1000:.0f} ms", flush=True)
        return max(slow), took

    @tags("alone")
    def test_frozen(self):
        for _ in range(TIMES):
            slow, took = self.away(self.redis.pause, self.redis.go_on)
            self.assertLess(slow, 0.1 * max(1, SLOW))
            self.assertLess(took, 1 * SLOW)

    @tags("alone")
    def test_shut_down_with_its_data_kept(self):
        def stop():
            self.redis.process.terminate()
            self.redis.process.wait(20)

        for _ in range(TIMES):
            slow, took = self.away(stop, self.redis.start)
            self.assertLess(slow, 0.1 * max(1, SLOW))
            self.assertLess(took, 1 * SLOW)

    def test_emptied_under_load(self):
        """What runs is taken back from the nodes before anything new is sold to them."""
        for _ in range(TIMES):
            self.fill(6)
            self.redis.say("FLUSHALL")
            self.fill(self.slots * self.count)
            for _ in range(20):
                self.assertEqual(self.dispatch(self.server).status, 503, "every slot is taken")
            self.assertIn("event=store.emptied", self.server.log)
            self.end()
            self.fill(2)
            self.end()


class Unsure(Case):
    def test_a_redis_that_does_not_tell_its_policy_is_warned_of(self):
        redis = Redis(self.dir / "redis", "--rename-command", "CONFIG", "")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url)
        self.assertIn("event=store.unsure", server.log)
        self.assertIn("noeviction", server.log)
