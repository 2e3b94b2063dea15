"""The store in Redis is away, or comes back empty: what is refused, how fast, and what is true afterwards. BERTH_OUTAGES and BERTH_OUTAGE_S
are the number and the length of outages (`make outages`)."""
import collections
import os
import pathlib
import re
import signal
import threading
import time

import wsclient
from fleet import Diary
from harness import SLOW, Case, Clock, Listener, Node, Stalls, WsNode, eventually, freeze, in_parallel, tags
from redis import Redis
from test_agent import Agent, AgentCase

TIMES = int(os.environ.get("BERTH_OUTAGES", "1"))
SECONDS = float(os.environ.get("BERTH_OUTAGE_S", "2"))


class Fleet(threading.Thread):
    """Nodes that run every job they get until they are told to end it. Each knows what it really runs."""

    def __init__(self, server, count, slots):
        super().__init__(daemon=True)
        self.server, self.slots = server, slots
        self.nodes = {f"n{i}": None for i in range(count)}
        self.running = {name: set() for name in self.nodes}
        self.acking = {name: [] for name in self.nodes}  # received; the ACK was not answered yet
        self.most = 0
        self.over = threading.Event()
        self.finish = threading.Event()  # end what runs as soon as DONE is accepted
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
            self.acking[name].append((message["job_id"], message["attempt_id"]))
        except TimeoutError:
            pass
        # The node enforces no limit of its own: the server must not send too much.
        while self.acking[name]:
            job, attempt = self.acking[name][0]
            reply = node.ask("ack", job_id=job, attempt_id=attempt)
            if reply.get("ok"):
                self.running[name].add((job, attempt))
                self.most = max(self.most, len(self.running[name]))
            elif reply.get("status", 0) >= 500:
                break  # the server may have applied the ACK; it is sent again, as agents do
            del self.acking[name][0]

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

    def runs(self):
        """All runs at this moment, while the thread goes on."""
        return set().union(*(set(runs) for runs in self.running.values()))


class Queued:
    """How long the server's threads that answer requests waited for a core, by the kernel's account. Like a stall this is the machine's
    fault."""

    def __init__(self, pid):
        self.threads = {}
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            if name.startswith(("berth-loop", "berth-store")):
                self.threads[task / "schedstat"] = name
        assert len(self.threads) > 1, "the loops or the store thread were not found"

    @staticmethod
    def of(path):
        return int(path.read_text().split()[1]) / 1e9

    def now(self):
        return {path: self.of(path) for path in self.threads}

    @staticmethod
    def mine():
        """The waiting time of the calling thread."""
        return Queued.of(pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/schedstat"))

    def since(self, before):
        """The waiting time of the slowest loop plus that of the store thread, because a request passes both."""
        waited = collections.defaultdict(float)
        for path, seconds in self.now().items():
            kind = self.threads[path].rstrip("0123456789-")
            waited[kind] = max(waited[kind], seconds - before[path])
        return sum(waited.values())


class Loaded(Case):
    """A server with nodes that run what they get."""

    slots, count = 3, 4
    settings = {}

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis", "--appendonly", "yes", "--appendfsync", "always")
        self.addCleanup(self.redis.kill)
        self.server = self.start(store=self.redis.url, **self.settings)
        self.fleet = Fleet(self.server, self.count, self.slots)
        self.fleet.start()
        self.addCleanup(self.fleet.over.set)
        eventually("all nodes have registered", lambda: len(self.server.get("/v1/nodes").json["nodes"]) == self.count)

    def fill(self, want):
        """Dispatches until the nodes run `want` jobs."""
        def more():
            if self.fleet.total() < want:
                self.dispatch(self.server)
            return self.fleet.total() >= want

        eventually(f"{want} jobs run", more, 30)

    def end(self):
        """Ends all jobs; their ends are accepted, and no slot stays taken."""
        self.fleet.finish.set()
        eventually("the end of every job is accepted", lambda: self.fleet.total() == 0, 30)
        for name in self.fleet.nodes:
            eventually(f"no slot of {name} is taken", lambda: self.server.slots(name) == (0, 0), 20)
        self.fleet.finish.clear()
        self.assertLessEqual(self.fleet.most, self.slots, "a node got more jobs than it may run")


class Outage(Loaded):
    settings = {"store_call_ms": 80}  # the default, because the case judges how fast the server refuses

    def setUp(self):
        super().setUp()
        self.stalls = Stalls()
        self.stalls.start()
        self.queued = Queued(self.server.pid)
        self.addCleanup(self.stalls.over.set)

    def refused(self):
        """(start, end, how long the server waited for a core, how long this thread did) of a refused dispatch."""
        before, mine, begun = self.queued.now(), Queued.mine(), time.monotonic()
        answer = self.dispatch(self.server)
        ended, mine, queued = time.monotonic(), Queued.mine() - mine, self.queued.since(before)
        if answer.status == 504:  # it was under way when Redis went away
            self.problem(answer, 504, "OUTCOME_UNKNOWN")
        else:
            self.problem(answer, 503, "SCHEDULER_DEPENDENCY_DOWN")
            self.assertGreater(int(answer.headers["Retry-After"]), 0)
        return begun, ended, queued, mine

    def placed_again(self):
        began = time.monotonic()
        eventually("a dispatch succeeds again", lambda: self.dispatch(self.server).status == 200)
        return time.monotonic() - began

    def away(self, stop, back):
        self.fill(6)
        for _ in range(32):  # every loop has its own cache
            self.assertEqual(self.server.get("/v1/sessions/room-888").status, 200)
        running = self.fleet.runs()
        stop()
        # Several threads at once: some requests arrive while the call that will fail is under way.
        slow = sum(in_parallel(3, lambda _: [self.refused() for _ in range(7)]), [])
        eventually("the server shows that the store is away", lambda: self.server.get("/readyz").json["store_mode"] != "NORMAL")
        known = self.server.get("/v1/nodes").json
        self.assertTrue(known["stale"])
        self.assertEqual(len(known["nodes"]), self.count)
        status = self.server.get("/v1/cluster/status").json
        self.assertTrue(status["stale"])
        self.assertTrue(status["recommendation"].startswith("The store is away and nothing is placed; "), status)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            slow.append(self.refused())
            time.sleep(0.02)
        session = self.server.get("/v1/sessions/room-888")
        if SECONDS < 20:
            self.assertEqual(session.status, 200)
        self.assertLessEqual(running, self.fleet.runs(), "jobs must go on running")
        back()
        took = self.placed_again()
        self.end()
        worst = max(ended - begun for begun, ended, _, _ in slow)
        judged = max(ended - begun - queued - max(mine, self.stalls.within(begun, ended))
                     for begun, ended, queued, mine in slow)
        print(f"refused {len(slow)} times in at most {worst * 1000:.0f} ms, without stalls of this machine "
              f"{judged * 1000:.0f} ms; placed again after {took * 1000:.0f} ms", flush=True)
        return judged, took

    def again_and_again(self, stop, back):
        """Prints the figures of all outages before it judges them."""
        found = [self.away(stop, back) for _ in range(TIMES)]
        self.assertLess(max(slow for slow, _ in found), 0.1 * max(1, SLOW), "a refusal took too long")
        self.assertLess(max(took for _, took in found), 1 * SLOW, "it took too long to resume")

    @tags("alone")
    def test_frozen(self):
        self.again_and_again(self.redis.pause, self.redis.go_on)

    @tags("alone")
    def test_shut_down_with_its_data_kept(self):
        def stop():
            self.redis.process.terminate()
            self.redis.process.wait(20)

        self.again_and_again(stop, self.redis.start)


class Emptied(Loaded):
    def test_emptied_under_load(self):
        """What runs is recovered from the nodes before new jobs get their slots."""
        for _ in range(TIMES):
            self.fill(6)
            self.redis.say("FLUSHALL")
            self.fill(self.slots * self.count)
            for _ in range(20):
                self.assertEqual(self.dispatch(self.server).status, 503, "all slots are still in use")
            eventually("store.emptied is logged", lambda: "event=store.emptied" in self.server.log)
            self.end()
            self.fill(2)
            self.end()


class Refused(Case):
    """Redis goes away while a job is being placed, so the outcome is unknown; the client repeats the request with its key."""

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        # Nothing runs out before Redis is paused; the send fails when the case says so.
        self.a, self.b = (self.start(name, store=self.redis.url, store_call_ms=int(500 * SLOW), reservation_ttl_ms=5000,
                                     push_timeout_ms=60000) for name in ("a", "b"))
        self.held = Listener(answers=(500,), gate=threading.Event())
        self.addCleanup(self.held.close)
        Node(self.a, "deaf", endpoint=self.held.url, allowed_types=["dev"])
        eventually("the other server knows the node", lambda: len(self.b.get("/v1/nodes").json["nodes"]) == 1)

    def ask(self, server):
        return self.task(server, headers={"Idempotency-Key": "k1"}, queue_ms=60000)

    def refuse(self):
        """The job is reserved. While it is being sent Redis goes away, then the send fails, and the reservation cannot be taken back."""
        answers = []
        client = threading.Thread(target=lambda: answers.append(self.ask(self.a)))
        client.start()
        (_, _, message), = self.held.wait(1)
        self.redis.pause()
        self.held.gate.set()
        client.join()
        self.assertEqual(self.problem(answers[0], 504, "OUTCOME_UNKNOWN")["job_id"], message["job_id"])
        return message["job_id"]

    def accepted(self, server):
        """The answer to the second request, which may be refused only until Redis is back."""
        def again():
            answer = self.ask(server)
            self.assertIn(answer.status, (200, 202, 503, 504), str(answer))
            return answer if answer.status < 500 else None

        return eventually("the repeated request is accepted", again).json

    def runs(self, node, job_id):
        """The node gets the job and does it. If its ACK comes too late for the reservation, it gets the job again."""
        def begun():
            return next((job for job in node.poll(wait="1s") if job["job_id"] == job_id and node.ack(job).status == 200), None)

        job = eventually("the node gets the job, and its ACK is accepted", begun)
        self.ok(eventually("the end of the job is answered", lambda: next((end for end in [node.done(job)] if end.status < 500), None)))
        self.assertEqual(self.b.job(job_id)["state"], "DONE")

    def test_answered_with_the_first_job_before_that_could_be_ended(self):
        first = self.refuse()
        freeze(self.a.process)  # before it can end the job of the refused request
        try:
            self.redis.go_on()
            self.assertEqual(self.accepted(self.b)["job_id"], first)
            node = Node(self.b, "n1", allowed_types=["dev"])
        finally:
            self.a.process.send_signal(signal.SIGCONT)
        self.runs(node, first)

    def test_asked_again_after_the_first_job_was_ended(self):
        first = self.refuse()
        self.redis.go_on()
        eventually("the first job has failed", lambda: self.b.get(f"/v1/jobs/{first}").json.get("state") == "FAILED")
        self.assertEqual(self.b.job(first)["reason"], "OUTCOME_UNKNOWN")
        node = Node(self.a, "n1", allowed_types=["dev"])
        second = self.accepted(self.a)["job_id"]
        self.assertNotEqual(second, first)
        self.runs(node, second)


class Keys(Case):
    """A job waits when its store is emptied: a client that repeats the request with its key gets the same job, once."""

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.a, self.b = (self.start(name, store=self.redis.url, heartbeat_ms=1000) for name in ("a", "b"))
        self.node = Node(self.a, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("the other server knows the node", lambda: len(self.b.get("/v1/nodes").json["nodes"]) == 1)
        self.ok(self.task(self.a))
        (self.first,) = self.node.poll()
        self.ok(self.node.ack(self.first))

    def ask(self, server):
        """Repeats the request until it is accepted, which requires that the server knows the node again; the node sends heartbeats
        meanwhile."""
        def there():
            self.beat()
            answer = self.task(server, queue_ms=60000, headers={"Idempotency-Key": "order-17"})
            self.assertIn(answer.status, (202, 422), str(answer))
            return answer if answer.status == 202 else None

        return eventually("the request is accepted", there).json

    def beat(self, server=None):
        self.node.server = server or self.node.server
        return self.node.heartbeat(running_jobs=[{"job_id": self.first["job_id"], "attempt_id": 1}], max_concurrent_jobs=1,
                                   allowed_types=["dev"])

    def runs_once(self, job_id):
        """When the slot becomes free, the node gets that job and no other."""
        eventually("the server knows the node's running job again",
                   lambda: self.beat() and self.b.get(f"/v1/jobs/{self.first['job_id']}").status == 200)
        self.ok(self.node.done(self.first))
        came = []

        def next_one():
            came.extend(self.node.poll(wait="1s"))
            return came

        eventually("the node gets a job", next_one)
        self.assertEqual([job["job_id"] for job in came], [job_id])
        self.ok(self.node.ack(came[0]))
        self.ok(self.node.done(came[0]))
        self.assertEqual(self.node.poll(wait="1s"), [])

    def test_put_again_with_its_key(self):
        job = self.ask(self.a)
        lived = int(self.redis.say("PTTL", "sched:{f}:k:order-17"))
        self.redis.say("FLUSHALL")
        eventually("the waiting job is in the store again", lambda: self.beat() and self.b.get(f"/v1/jobs/{job['job_id']}").status == 200)
        self.assertAlmostEqual(int(self.redis.say("PTTL", "sched:{f}:k:order-17")), lived, delta=60000 * SLOW)
        again = self.ask(self.b)
        self.assertEqual((again["job_id"], again["duplicate"]), (job["job_id"], True))

        def other():
            """The key is looked up only once the server knows the node again."""
            self.beat()
            answer = self.task(self.b, title="other", headers={"Idempotency-Key": "order-17"})
            return answer if answer.status != 422 else None

        self.problem(eventually("the request is answered", other), 409, "IDEMPOTENCY_KEY_REUSED")
        self.runs_once(job["job_id"])

    def test_asked_again_before_it_is_put_again(self):
        """The second request makes a new job, and the first job is removed."""
        job = self.ask(self.a)
        freeze(self.a.process)
        try:
            self.redis.say("FLUSHALL")
            eventually("the other server knows the node again", lambda: self.beat(self.b) and self.b.get("/v1/nodes/n1").status == 200)
            again = self.ask(self.b)
            self.assertNotEqual(again["job_id"], job["job_id"])
        finally:
            self.a.process.send_signal(signal.SIGCONT)
        eventually("job.replaced is logged for the first job", lambda: "event=job.replaced" in self.a.log)
        self.assertEqual(self.b.get(f"/v1/jobs/{job['job_id']}").status, 404)
        self.assertEqual(self.ask(self.a)["job_id"], again["job_id"])
        self.runs_once(again["job_id"])


class Lifetimes(Case):
    """Only berth removes what Redis keeps for it: accepted jobs are not lost by expiry or for want of memory."""

    def accepted(self, server, **fields):
        answer = self.task(server, queue_ms=86400000, **fields)
        self.assertIn(answer.status, (200, 202), str(answer))
        return answer.json["job_id"]

    def test_all_servers_away_for_three_retentions(self):
        clock = Clock(self.dir)
        redis = Redis(self.dir / "redis", env=clock.env)
        self.addCleanup(redis.kill)
        server = self.start("before", store=redis.url, retention_ms=3600000)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        jobs = [self.accepted(server) for _ in range(4)]
        (running,) = node.poll()
        self.ok(node.ack(running))
        self.assertEqual(server.stop(), 0)
        clock.set(3 * 3600)
        server = self.start("after", store=redis.url, retention_ms=3600000)
        self.assertEqual([server.get(f"/v1/jobs/{job}").status for job in jobs], [200] * 4)
        node.server = server
        self.ok(node.register())
        self.ok(node.done(running))
        self.assertEqual(server.job(running["job_id"])["state"], "DONE")
        eventually("the node gets the next job", node.poll)

    def test_a_full_redis_refuses_only_new_work(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=4)
        used = int(re.search(r"used_memory:(\d+)", redis.say("INFO", "memory")).group(1))
        redis.say("CONFIG", "SET", "maxmemory", used + 6000000)
        accepted, answer = 0, self.task(server, queue_ms=600000)
        while answer.json.get("error") != "STORE_FULL":  # a busy store (another error) does not end the loop
            accepted += answer.status in (200, 202)
            answer = self.task(server, queue_ms=600000, payload={"text": "x" * 30000})
        self.problem(answer, 503, "STORE_FULL")
        self.problem(Node(server, "n2", register=False).register(), 503, "STORE_FULL")
        self.ok(node.heartbeat())
        done = 0

        def is_back():
            nonlocal done
            for job in node.poll(wait="0s"):
                self.ok(node.ack(job))
                self.ok(node.done(job))
                done += 1
            return self.task(server, queue_ms=600000).status == 202

        eventually("a job is accepted again after others have ended", is_back, 30)
        self.assertIn("event=store.full", server.log)
        eventually("store.room is logged", lambda: "event=store.room" in server.log)
        self.assertGreater(accepted, done)


class Hello(AgentCase):
    def test_who_comes_while_it_is_away_may_come_again_soon(self):
        """The outage is not the node's fault, so unlike after a wrong token it may try again soon."""
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url, store_call_ms=80)
        redis.kill()
        eventually("the server is not ready", lambda: server.get("/readyz").status == 503)
        node = WsNode(server, "n1", hello=False)
        node.hello()
        self.assertEqual((node.expect("reply")["status"], node.closed()), (503, 1013))
        agent = Agent(self, server, "a1")
        self.agents.append(agent)
        line = eventually("the agent fails to connect", lambda: agent.events("agent.connect_failed"))[0]
        self.assertIn(" code=1013 ", line)
        self.assertLess(int(re.search(r"retry_ms=(\d+)", line).group(1)), 5000, line)
        redis.start()
        agent.connected()


class RealAgents(AgentCase):
    """FLUSHALL while agents run real processes, which record their own beginning and end."""

    slots = 3

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.all = [self.start(f"data{i}", store=self.redis.url, heartbeat_ms=1000, heartbeat_stale_ms=int(3000 * SLOW)) for i in range(2)]
        for i in range(3):
            urls = [f"http://127.0.0.1:{server.port}" for server in self.all[i % 2:] + self.all[:i % 2]]
            self.agent(",".join(urls), f"a{i}", slots_fixed=self.slots)
        self.diary = Diary(self.dir / "diary")
        self.accepted, self.long = [], []
        self.over = threading.Event()

    def submit(self, server, command):
        answer = self.task(server, command=command)
        self.assertIn(answer.status, (200, 422, 503, 504), str(answer))
        if answer.status == 200:
            self.accepted.append(answer["job_id"])
        return answer

    def churn(self, server):
        """Submits short jobs, as many as fit."""
        while not self.over.is_set():
            if self.submit(server, self.diary.command("sleep 0.1")).status != 200:
                time.sleep(0.02)

    def hold(self, count):
        def more():
            answer = self.submit(self.all[count % 2], self.diary.held())
            if answer.status == 200:
                self.long.append(answer["job_id"])
            return len(self.long) >= count

        eventually(f"{count} long jobs are placed", more, 30)
        eventually("the long jobs run", lambda: set(self.long) <= set(self.diary.times("b")))

    def long_are_known(self):
        """The store was emptied, so it can only know these jobs from the nodes that run them."""
        answers = [self.all[0].get(f"/v1/jobs/{job}") for job in self.long]
        return all(answer.status == 200 and answer["state"] == "ACKED" for answer in answers)

    def test_emptied_under_load(self):
        eventually("the second server knows all agents", lambda: len(self.all[1].get("/v1/nodes").json["nodes"]) == 3)
        self.hold(3)
        threads = [threading.Thread(target=self.churn, args=(server,)) for server in self.all]
        for thread in threads:
            thread.start()
        try:
            for turn in range(4):
                eventually("many short jobs have run", lambda: len(self.diary.lines()) > 60 * (turn + 1), 30)
                self.redis.say("FLUSHALL")
                before = len(self.accepted)
                eventually("20 more jobs are accepted", lambda: len(self.accepted) > before + 20, 30)
                eventually("the store knows every long job again", self.long_are_known, 30)
                self.hold(4 + turn)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        self.diary.open_gate()
        self.finished()

    def finished(self):
        server = self.all[0]
        for job in self.long:
            self.assertEqual(self.ended(server, {"job_id": job})["state"], "DONE")
        for name in ("a0", "a1", "a2"):
            eventually(f"{name} has no slot taken", lambda: server.slots(name) == (0, 0), 20)
        began, ended = self.diary.times("b"), self.diary.times("e")
        self.assertEqual({job: 1 for job in self.long}, {job: ended[job] for job in self.long}, "each long job ends once")
        self.assertEqual(began, ended, "every run that began has ended")
        self.assertEqual(set(began.values()), {1}, "a job ran twice")
        self.assertLessEqual(max(self.diary.most().values()), self.slots, "a node ran more than it may")
        lost = [job for job in self.accepted if server.get(f"/v1/jobs/{job}").status == 404 and began[job]]
        recent = self.accepted[-10:]
        self.assertEqual({self.ended(server, {"job_id": job})["state"] for job in recent}, {"DONE"})
        refused = sum(len(agent.events("job.refused")) for agent in self.agents)
        taken = sum(server.metrics()["berth_lost_lease_total"] for server in self.all)
        self.assertGreater(taken, 0, "recovered leases are counted")  # not each is counted: an answer may come too late for that
        print(f"{len(self.accepted)} jobs, {taken:.0f} leases taken back, {len(lost)} records of ended ones lost with the data, "
              f"{refused} refused by agents, at most {max(self.diary.most().values())} of {self.slots} at once", flush=True)


class Unsure(Case):
    def test_a_redis_that_does_not_tell_its_policy_is_warned_of(self):
        redis = Redis(self.dir / "redis", "--rename-command", "CONFIG", "")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url)
        self.assertIn("event=store.unsure", server.log)
        self.assertIn("noeviction", server.log)
