"""A Redis Cluster of six processes whose network is split. The master with the store stays with one instance in the minority and accepts
for a while; on the other side its replica takes over. What the minority accepted then is lost when the network is whole again."""
import time

from fleet import Diary
from harness import eventually, tags
from redis import Cluster
from relay import Split
from test_agent import AgentCase

SLOTS = 2
LOST = 2  # jobs that only the minority accepts


@tags("load")
class Minority(AgentCase):
    def setUp(self):
        super().setUp()
        self.cluster = Cluster(self.dir / "cluster", timeout_ms=4000)  # for that long the minority accepts
        self.addCleanup(self.cluster.kill)
        self.split = Split(self.cluster)
        self.addCleanup(self.split.close)
        eventually("every Redis knows the relays of the others", self.split.known, 20)
        eventually("every Redis reports cluster_state:ok", lambda: all(
            "cluster_state:ok" in node.say("CLUSTER", "INFO") for node in self.cluster.nodes), 20)
        self.a, self.b = (self.instance(name) for name in "ab")
        for name, server in (("a1", self.a), ("a2", self.a), ("b1", self.b), ("b2", self.b)):
            self.agent(server, name, slots_fixed=SLOTS, allowed_types=f"dev,{name[0]}")
        self.diary = Diary(self.dir / "diary")
        self.accepted = []

    def instance(self, name):
        # The lease is so long that no fence ends a job while the network is split. The relays are slow.
        return self.start(name, store=self.split.url, heartbeat_ms=1000, heartbeat_stale_ms=3000,
                          reservation_ttl_ms=10000, running_lease_ms=120000, store_call_ms=1000)

    def master(self):
        """The Redis that has the store."""
        return next(node for node in self.cluster.nodes if "role:master" in node.say("INFO", "replication")
                    and "MOVED" not in node.say("EXISTS", "sched:{f}:n"))

    keyed = {"type": "a", "queue_ms": 120000, "headers": {"Idempotency-Key": "waits"}}

    def submit(self, server, command, **fields):
        answer = self.task(server, command=command, **fields)
        self.assertIn(answer.status, (200, 202, 422, 503, 504), str(answer))  # 504: a call was under way when the network was split
        if answer.status in (200, 202):
            self.accepted.append(answer["job_id"])
        return answer

    def fill(self, server, count, type="dev"):
        """The ids of `count` long jobs, once that many were placed."""
        jobs = []

        def more():
            answer = self.submit(server, self.diary.held(), type=type)
            if answer.status == 200:
                jobs.append(answer["job_id"])
            return len(jobs) >= count

        eventually(f"{count} jobs are placed", more)
        return jobs

    def begun(self, jobs):
        eventually("the jobs run", lambda: set(jobs) <= set(self.diary.times("b")))

    def test_a_master_in_the_minority(self):
        eventually("both instances know all agents", lambda: all(
            len(server.get("/v1/nodes").json["nodes"]) == 4 for server in (self.a, self.b)))
        before = self.fill(self.a, 2 * SLOTS - LOST, type="a") + self.fill(self.a, 1, type="b")
        self.begun(before)
        old = self.master()
        eventually("a replica has everything", lambda: int(old.say("WAIT", 1, 1000)) >= 1)
        self.split.cut(old.process, self.a.process)
        self.in_the_minority(old)
        self.in_the_majority(old)
        self.split.heal()
        self.whole_again(old)

    def in_the_minority(self, old):
        """The old master accepts jobs that the others will never know: as many as its agents have room for, and one that waits."""
        answers = [self.submit(self.a, self.diary.held(), type="a") for _ in range(LOST)]
        waiting = self.submit(self.a, self.diary.command("true"), **self.keyed)
        self.assertEqual([answer.status for answer in answers], [200] * LOST, "the minority must still accept")
        self.assertEqual(waiting.status, 202, str(waiting))
        self.lost, self.waiting = [answer["job_id"] for answer in answers], waiting["job_id"]
        self.begun(self.lost)
        eventually("instance A is not ready", lambda: self.a.get("/readyz").status == 503)
        self.problem(self.task(self.a, type="a", command="true", queue_ms=1000), 503, "SCHEDULER_DEPENDENCY_DOWN")
        self.assertIn("role:master", old.say("INFO", "replication"))

    def in_the_majority(self, old):
        eventually("the replica takes over", lambda: any(
            node is not old and "role:master" in node.say("INFO", "replication")
            and "MOVED" not in node.say("EXISTS", "sched:{f}:n") for node in self.cluster.nodes))
        self.begun(self.fill(self.b, 2, type="b"))
        eventually("instance B can read jobs", lambda: self.b.get("/v1/jobs").status == 200)
        known = {job["job_id"] for job in self.b.all_jobs()}
        self.assertTrue(known.isdisjoint(self.lost), "the new master has jobs of the minority")

    def whole_again(self, old):
        eventually("the old master is a replica", lambda: "role:slave" in old.say("INFO", "replication"))
        eventually("instance A is ready again", lambda: self.a.get("/readyz").status == 200)
        # New jobs compete for the slots of the lost leases: if the server forgot a lease it sends another job, and the agent refuses it.
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for server in (self.a, self.b):
                self.submit(server, self.diary.held())
        for job in self.lost:
            found = eventually("the job is recovered from its node", lambda: next(
                (found for found in [self.b.job(job)] if found.get("state") == "ACKED"), None))
            self.assertEqual(found["node_id"][:1], "a")
        eventually("the waiting job is in the store again", lambda: self.b.get(f"/v1/jobs/{self.waiting}").status == 200)
        again = self.task(self.b, command=self.diary.command("true"), **self.keyed)
        self.assertEqual((again.status, again["job_id"]), (202, self.waiting), "the job must be put again with its key")
        taken = self.a.metrics()["berth_lost_lease_total"] + self.b.metrics()["berth_lost_lease_total"]
        self.assertGreaterEqual(taken, len(self.lost))
        for server in (self.a, self.b):
            self.assertIn("event=store.moved", server.log)
        self.diary.open_gate()
        for job in self.accepted:
            found = self.ended(self.b, {"job_id": job}, 60)
            self.assertIn(found["state"], ("DONE", "FAILED"), found)
        for name in ("a1", "a2", "b1", "b2"):
            eventually(f"{name} has no slot taken", lambda: self.b.slots(name) == (0, 0), 30)
        most = self.diary.most()
        self.assertLessEqual(max(most.values()), SLOTS, "a node ran more than it may")
        refused = sum(len(agent.events("job.refused")) for agent in self.agents)
        print(f"{len(self.accepted)} jobs accepted, {len(self.lost)} of them only by the minority, {taken:.0f} leases taken back, "
              f"{refused} refused by agents, at most {max(most.values())} of {SLOTS} at once", flush=True)
