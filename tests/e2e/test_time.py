"""Time: a process that was stopped, and clocks that are set or differ, each on its own. Healthy nodes stay, running jobs go on running
once, and waiting jobs go on waiting."""
import signal
import threading
import time

from harness import OWN_WORK, SLOW, Case, Clock, Node, calm_machine, eventually, freeze, settings_env, tags
from redis import Redis
from test_agent import GATE, alive
from test_claim import ClaimCase

HOUR = 3600
# A node is lost after eight seconds of silence.
QUICK = {"heartbeat_ms": 1000, "heartbeat_stale_ms": 5000, "view_drop_ms": 6000, "lost_grace_ms": 2000}
PAUSE_S = 12  # longer than a node may be silent, a job waits, or a reservation lasts


class Fleet(threading.Thread):
    """Nodes that send heartbeats, each with a running job, and one job that no node has room for."""

    def __init__(self, case, server, count=8):
        super().__init__(daemon=True)
        self.case, self.server = case, server
        self.nodes = [Node(server, f"n{i}", allowed_types=["dev"], max_concurrent_jobs=1) for i in range(count)]
        self.late = Node(server, "late", allowed_types=["late"], max_concurrent_jobs=0)
        self.rounds, self.beating, self.over = 0, threading.Event(), threading.Event()
        self.beating.set()
        self.start()
        case.addCleanup(self.over.set)
        self.jobs = [case.ok(case.task(server, max_attempts=1)) for _ in self.nodes]
        for node in self.nodes:
            for job in eventually("the node gets its job", node.poll):
                case.ok(node.ack(job))
        eventually("every node runs one job", lambda: [found[:2] for found in self.seen().values()] == [("ready", 1)] * count)
        self.epochs = self.seen()
        self.waits = None

    def wait_for_room(self, queue_ms):
        self.waits = self.case.ok(self.case.task(self.server, type="late", queue_ms=queue_ms), 202)

    def run(self):
        while not self.over.wait(0.2):
            if not self.beating.is_set():
                continue
            try:
                for node in (*self.nodes, self.late):
                    node.heartbeat()
                self.rounds += 1
            except OSError:
                pass  # the server is stopped

    def seen(self):
        nodes = {node["node_id"]: node for node in self.server.ask("/v1/nodes")["nodes"]}
        return {node.id: (nodes[node.id]["health"], nodes[node.id]["running"], nodes[node.id]["epoch"])
                for node in self.nodes}

    def all_well(self, rounds=15):
        """Waits for some rounds of heartbeats, in which the server judges the nodes several times, and checks that nothing changed."""
        goal = self.rounds + rounds
        eventually(f"{rounds} more rounds of heartbeats were sent", lambda: self.rounds >= goal, 60)
        self.case.assertEqual(self.seen(), self.epochs, "(health, running, epoch)")
        self.case.assertNotIn("health=offline", self.server.log)
        for job in self.jobs:
            found = self.server.job(job["job_id"])
            self.case.assertEqual((found["state"], found["attempt_id"]), ("ACKED", 1), found)

    def gets_room(self):
        """Checks that the waiting job is placed when there is room."""
        self.case.assertEqual(self.server.job(self.waits["job_id"])["state"], "NEW")
        self.case.ok(eventually("the node's new slot is accepted", lambda: answered(self.late.register(max_concurrent_jobs=1))))
        self.case.assertEqual([job["job_id"] for job in eventually("the node gets the waiting job",
                                                                   self.late.poll)], [self.waits["job_id"]])

    def ends(self):
        for job in self.jobs:
            node = next(node for node in self.nodes if node.id == job["node_id"])
            self.case.ok(eventually("the end of the job is answered", lambda: answered(node.done(job))))


def answered(answer):
    """None if the store took no call at that moment (503); the node then repeats the message."""
    return answer if answer.status != 503 else None


class Pauses(Case):
    """The nodes are healthy, but no heartbeat reaches the server meanwhile: what they sent is lost with the pause."""

    def frozen(self, seconds, **settings):
        server = self.start(**{**QUICK, **settings})
        fleet = Fleet(self, server)
        fleet.all_well(1)
        fleet.beating.clear()
        fleet.wait_for_room((seconds - 1) * 1000)  # little time passes before and after the pause
        freeze(server.process)
        time.sleep(seconds)
        server.process.send_signal(signal.SIGCONT)
        fleet.beating.set()
        fleet.gets_room()
        fleet.all_well()
        fleet.ends()
        self.assertIn("event=server.paused", server.log)

    def test_a_server_that_stood_still(self):
        self.frozen(PAUSE_S)

    def test_a_server_on_redis_that_stood_still(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.frozen(PAUSE_S, store=redis.url)

    @tags("load")
    def test_a_server_that_stood_still_for_a_minute(self):
        """Default settings: 45 s of silence."""
        self.frozen(60, heartbeat_ms=5000, heartbeat_stale_ms=15000, view_drop_ms=30000, lost_grace_ms=15000)

    def test_an_ack_that_waited_in_its_socket(self):
        """A reservation keeps the time it had left when the server was stopped."""
        server = self.start(reservation_ttl_ms=(PAUSE_S - 1) * 1000)
        node = Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server, max_attempts=1))
        self.assertEqual(len(node.poll()), 1)
        freeze(server.process)
        time.sleep(PAUSE_S)
        server.process.send_signal(signal.SIGCONT)
        self.ok(node.ack(job))
        self.ok(node.done(job))


class Steps(Case):
    """Clocks are set an hour forward and an hour back while everything runs."""

    def steps(self, clock, **settings):
        server = self.start(**{**QUICK, **settings})
        fleet = Fleet(self, server)
        fleet.wait_for_room(600000)  # a sixth of a step
        fleet.all_well(1)
        for seconds in (HOUR, 0, -HOUR, 0):
            clock.set(seconds)
            fleet.all_well()
        fleet.gets_room()
        fleet.ends()

    def test_of_a_server(self):
        clock = Clock(self.dir)
        self.steps(clock, env=clock.env)

    def test_of_a_server_on_redis(self):
        clock, redis = Clock(self.dir), Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.steps(clock, env=clock.env, store=redis.url)

    def test_of_redis(self):
        clock = Clock(self.dir)
        redis = Redis(self.dir / "redis", env=clock.env)
        self.addCleanup(redis.kill)
        self.steps(clock, store=redis.url)

    def test_of_redis_while_a_job_is_on_its_way(self):
        """A reservation keeps the time it had left."""
        clock = Clock(self.dir)
        redis = Redis(self.dir / "redis", env=clock.env)
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url, reservation_ttl_ms=60000)
        node = Node(server, "n1", allowed_types=["dev"])
        for seconds in (HOUR, 0):
            job = self.ok(self.task(server, max_attempts=1))
            self.assertEqual(len(node.poll()), 1)
            clock.set(seconds)
            redis.says("PING")  # later calls see the new time
            self.ok(eventually("the ACK is answered", lambda: answered(node.ack(job))))
            self.ok(eventually("the end of the job is answered", lambda: answered(node.done(job))))

    def starts_earlier(self, clock, **settings):
        """The server is killed before the node polled. Each reservation still ends in its time, and as it may never have been sent, the job
        is offered once more in the same attempt."""
        server = self.start(**settings)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=4)
        jobs = {self.ok(self.task(server, max_attempts=1))["job_id"] for _ in range(4)}
        server.kill()
        clock.set(-HOUR)
        node.server = server = self.start(**settings)
        came = {}
        while came.keys() < jobs:
            for job in eventually("the node gets a job", lambda: node.heartbeat() and node.poll(wait="1s"), 60):
                came[job["job_id"]] = job["attempt_id"]
                if answered(node.ack(job)).status == 200:
                    self.ok(node.done(job))
                    jobs.discard(job["job_id"])
        self.assertEqual(set(came.values()), {1})
        self.assertSlots(server, "n1", 0, 0)

    def test_a_store_that_starts_an_hour_earlier(self):
        clock = Clock(self.dir)
        self.starts_earlier(clock, env=clock.env, reservation_ttl_ms=1000)

    def test_a_redis_that_is_an_hour_earlier_at_the_start(self):
        clock = Clock(self.dir)
        redis = Redis(self.dir / "redis", env=clock.env)
        self.addCleanup(redis.kill)
        self.starts_earlier(clock, store=redis.url, reservation_ttl_ms=5000)  # longer than a dead instance may be silent


class Skew(Case):
    """The clocks of the server and Redis differ."""

    def skewed(self, seconds):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(env=Clock(self.dir, seconds).env, store=redis.url)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        job = self.ok(self.task(server))
        self.assertEqual([got["job_id"] for got in node.poll()], [job["job_id"]], "a node that polls must get the job")
        self.ok(node.ack(job))
        return server, node, job

    def waits(self, seconds):
        """A job whose queue_ms is shorter than the difference of the clocks still waits, and is placed when there is room."""
        server, node, job = self.skewed(seconds)
        waits = self.ok(self.task(server, queue_ms=100000), 202)
        eventually("the job has waited for more than a second", lambda: server.metrics()["berth_queue_oldest_seconds"] > 1)
        self.assertEqual(server.job(waits["job_id"])["state"], "NEW")
        self.ok(node.done(job))
        self.assertEqual([got["job_id"] for got in eventually("the node gets the waiting job", node.poll)], [waits["job_id"]])
        return server

    def test_a_server_ahead(self):
        self.waits(120)

    def test_a_server_behind(self):
        self.waits(-120)

    def test_a_server_far_behind_ends_a_wait(self):
        server, _, _ = self.skewed(-HOUR)
        waits = self.ok(self.task(server, queue_ms=1000), 202)
        self.assertEqual(self.state_of(server, waits, "FAILED", 30)["reason"], "QUEUE_TIMEOUT")


class Agents(ClaimCase):
    """Real agents, with a deployment and a job that are both guarded by a lease."""

    lease_ms = 30000  # longer than any server here takes to start

    def at_work(self, server, env=None):
        agent = self.node(server, "a1", env=env)
        self.deploy(server, "d1")
        return agent, self.work(server), self.all_run(server, 1)

    def work(self, server):
        job = self.run_task(server, 'echo $$ >> "%s/pids"; ' % self.dir + GATE.format(gate=self.dir / "gate"), max_attempts=2)
        self.running(server, job)
        eventually("the job runs", lambda: self.lines("pids"))
        return job

    def same(self, server, job, before, node="a1", beats=6):
        """Waits for some heartbeats, and checks that nothing has changed."""
        seen = set()

        def beaten():
            seen.add(server.node(node)["last_heartbeat_ms"] // 500)
            return len(seen) > beats
        eventually(f"more than {beats} heartbeats arrive", beaten, 90)
        self.assertEqual(self.rows(server), before, "owner and generation must not change")
        self.assertEqual(len(self.starts()), 1)
        self.assertEqual(len(self.living()), 1)
        self.assertEqual(server.job(job["job_id"])["attempt_id"], 1)
        self.assertEqual(len(self.lines("pids")), 1)
        self.assertTrue(alive(self.lines("pids")[0]))

    def over(self, server, job):
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, job)["state"], "DONE")

    def test_a_server_whose_clock_is_set(self):
        clock = Clock(self.dir)
        server = self.serve(env=clock.env)
        _, job, before = self.at_work(server)
        for seconds in (HOUR, 0, -HOUR):
            clock.set(seconds)
            self.same(server, job, before)
        self.over(server, job)

    def test_a_server_that_starts_with_another_clock(self):
        """The clock is set while no server runs; the machine is not rebooted."""
        clock = Clock(self.dir)
        server = self.serve(env=clock.env)
        _, job, before = self.at_work(server)
        for seconds in (HOUR, -HOUR):
            server.stop()
            clock.set(seconds)
            server = self.serve(env=clock.env, listen=f"127.0.0.1:{server.port}")
            eventually("the agent has connected again", lambda: server.get("/v1/nodes/a1").status == 200)
            self.same(server, job, before)
        self.over(server, job)

    def test_a_laptop_that_was_shut(self):
        """Everything of `berth dev` slept for an hour together, and continues where it was."""
        clock = Clock(self.dir)
        server = self.start(verb="dev", env={**clock.env, "BERTH_HOST_ROOT": calm_machine(self.dir), **settings_env(OWN_WORK)},
                            heartbeat_ms=1000,
                            **{name: int(15000 * SLOW) for name in ("running_lease_ms", "f2f_lease_ms", "deploy_lease_ms")},
                            deploy_renew_ms=1500)
        name = eventually("the agent of berth dev has registered",
                          lambda: [node["node_id"] for node in self.ok(server.get("/v1/nodes"))["nodes"]])[0]
        self.deploy(server, "d1")
        before = self.all_run(server, 1)
        job = self.work(server)
        clock.set(HOUR, slept=HOUR)
        self.same(server, job, before, name, beats=20)
        self.over(server, job)

    def test_an_agent_whose_clock_is_set(self):
        clock = Clock(self.dir)
        server = self.serve()
        _, job, before = self.at_work(server, env=clock.env)
        for seconds in (HOUR, 0, -HOUR):
            clock.set(seconds)
            self.same(server, job, before)
        self.over(server, job)
