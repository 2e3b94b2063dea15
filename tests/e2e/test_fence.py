"""Jobs that may be retried never run twice at once: whatever happens to an agent or its connection, its shims end its jobs before their
leases end, and only then does another node begin them. Nothing is ended while a server or its store is away for less time than that, or
when an agent restarts."""
import collections
import os
import pathlib
import re
import signal
import time
import unittest

import redis
from harness import SLOW, eventually, tags
from relay import Cable, Relay
from test_agent import AgentCase, alive

# Every attempt holds the lock of its job as long as it lives, and writes a line to the job's file for each step, in the order of time.
STEPS = """W={dir}; exec 9>>"$W/lock.$BERTH_JOB_ID"
flock -n 9 || echo "$BERTH_ATTEMPT_ID LOCKED" >> "$W/steps.$BERTH_JOB_ID"
while :; do
  read now rest < /proc/uptime; echo "$BERTH_ATTEMPT_ID $now $$ $BERTH_NODE_ID" >> "$W/steps.$BERTH_JOB_ID"; sleep 0.05 9>&-
done"""

Step = collections.namedtuple("Step", "attempt at pid node")


class FenceCase(AgentCase):
    lease_ms = 3000

    def setUp(self):
        super().setUp()
        self.frozen = []
        self.addCleanup(self.thaw)

    def serve(self, **settings):
        lease = int(self.lease_ms * SLOW)
        return self.start(**{"heartbeat_ms": 1000, "heartbeat_stale_ms": 3000, "view_drop_ms": 3000, "lost_grace_ms": 1000,
                             "running_lease_ms": lease, "f2f_lease_ms": lease, **settings})

    def begin(self, server, **fields):
        """A job that writes steps until it is ended."""
        return self.run_task(server, STEPS.format(dir=self.dir), **{"max_attempts": 5, "queue_ms": 60000, **fields})["job_id"]

    def steps(self, job):
        """The steps of the job so far. Fails if a line of an attempt follows one of a later attempt: then two attempts ran at once."""
        steps = []
        for line in self.lines(f"steps.{job}"):
            words = line.split()
            if words[1:] != ["LOCKED"]:
                steps.append(Step(int(words[0]), float(words[1]), int(words[2]), words[3]))
        for before, after in zip(steps, steps[1:]):
            self.assertLessEqual(before.attempt, after.attempt, f"{job} runs twice: {before}, then {after}")
        return steps

    def locked(self, job):
        return any(line.endswith("LOCKED") for line in self.lines(f"steps.{job}"))

    def attempt(self, job, number, seconds=60):
        """The job's first step in that attempt, once there is one."""
        return eventually(f"attempt {number} of {job} runs",
                          lambda: next((step for step in self.steps(job) if step.attempt == number), None), seconds)

    def goes_on(self, job):
        """Waits until the job makes another step in the same process; returns the attempt."""
        before = self.steps(job)[-1]
        eventually(f"{job} makes another step", lambda: self.steps(job)[-1].at > before.at)
        self.assertEqual(self.steps(job)[-1][2:], before[2:])
        return before.attempt

    def runs_of(self, node_id):
        """(shims, processes of jobs) of a node."""
        shims, found = set(), []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                environ = b"\0" + path.read_bytes()
                if f"\0BERTH_NODE_ID={node_id}\0".encode() not in environ or f"={self.dir}/".encode() not in environ:
                    continue
                status = (path.parent / "status").read_text()
                parent = int(re.search(r"PPid:\s+(\d+)", status).group(1))
                found.append(int(path.parent.name))
                if pathlib.Path(f"/proc/{parent}/comm").read_text() == "berth-shim\n":
                    shims.add(parent)
            except OSError:
                pass
        return sorted(shims), found

    def freeze(self, *pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGSTOP)
                self.frozen.append(pid)
            except OSError:
                pass

    def thaw(self, *pids):
        for pid in pids or list(self.frozen):
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass
            if pid in self.frozen:
                self.frozen.remove(pid)


class Fault:
    """A fault of a node, and how it is ended."""

    def __init__(self, case, node_id):
        self.case, self.node_id = case, node_id

    @property
    def agent(self):
        return self.case.nodes[self.node_id]

    def ends(self):
        self.case.join(self.node_id)


class Killed(Fault):
    def begins(self):
        self.agent.kill()


class Stopped(Fault):
    def begins(self):
        self.case.assertEqual(self.agent.stop(), 0)


class AgentFrozen(Fault):
    def begins(self):
        self.case.freeze(self.agent.process.pid)

    def ends(self):
        self.case.thaw(self.agent.process.pid)


class AllFrozen(Fault):
    """A frozen job cannot be ended and keeps its lock. As soon as its shim wakes up, the shim ends it."""

    def begins(self):
        self.shims, self.processes = self.case.runs_of(self.node_id)
        self.case.freeze(self.agent.process.pid, *self.shims, *self.processes)

    def ends(self):
        self.case.thaw(*self.shims)
        eventually("the shim ends the first attempt", lambda: not any(alive(pid) for pid in self.processes))
        self.case.thaw(self.agent.process.pid)


class CutOff(Fault):
    def begins(self):
        self.case.wires[self.node_id].cut()

    def ends(self):
        self.case.wires[self.node_id].heal()


FAULTS = [Killed, Stopped, AgentFrozen, AllFrozen, CutOff]


class Witness(FenceCase):
    """Batches of rounds: one job on each of some nodes, a fault at each node at the same moment, and two other nodes with room for all
    jobs."""

    wire = Relay

    def join(self, node_id, slots=1):
        wire = self.wires.get(node_id)
        self.nodes[node_id] = self.agent(wire.url if wire else self.server, node_id, slots_fixed=slots,
                                         prefix=wire.prefix if wire else ())

    def cluster(self, faults, **settings):
        self.server = self.serve(hosts=Cable.hosts(), **settings)
        self.wires, self.nodes = {}, {}
        for number, fault in enumerate(faults):
            if fault is CutOff:
                self.wires[f"n{number}"] = self.wire(self.server.port)
                self.addCleanup(self.wires[f"n{number}"].close)
            self.join(f"n{number}")
        for name in ("x", "y"):
            self.join(name, len(faults))

    def batch(self, faults, patience_s):
        """For each round: (the fault, seconds from the fault until the job went on elsewhere, seconds in which it did not run)."""
        server = self.server
        for name in ("x", "y"):
            self.ok(server.post(f"/v1/nodes/{name}/cordon", {"reason": "not yet"}))
        jobs = [self.begin(server) for _ in faults]
        at = {self.attempt(job, 1).node: job for job in jobs}
        self.assertEqual(len(at), len(faults))
        for name in ("x", "y"):
            self.ok(server.post(f"/v1/nodes/{name}/undrain", {}))
        under_way, begun = [], {}
        for number, kind in enumerate(faults):
            fault = kind(self, f"n{number}")
            begun[fault.node_id] = float(pathlib.Path("/proc/uptime").read_text().split()[0])
            fault.begins()
            under_way.append(fault)
        found = []
        for fault in under_way:
            job = at[fault.node_id]
            first = self.attempt(job, 2, patience_s)
            last = [step for step in self.steps(job) if step.attempt == 1][-1]
            self.assertIn(first.node, ("x", "y"))
            if not isinstance(fault, AllFrozen):
                self.assertFalse(self.locked(job), f"{type(fault).__name__}: the first attempt of {job} still has its lock")
            found.append((type(fault).__name__, first.at - begun[fault.node_id], first.at - last.at))
        for fault in under_way:
            fault.ends()
        for node_id in begun:
            eventually(f"{node_id} takes work and has no slot taken",
                       lambda: server.node(node_id)["takes_work"] and server.slots(node_id) == (0, 0), 90)
        for job in jobs:
            self.assertEqual(self.goes_on(job), 2)
            self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))
        for job in jobs:
            eventually("the cancelled job has ended", lambda: server.job(job)["state"] == "FAILED")
            self.steps(job)
        for name in ("x", "y"):
            eventually(f"{name} has no slot taken", lambda: server.slots(name) == (0, 0), 30)
        return found

    def rounds(self, count, faults, patience_s=60, **settings):
        self.cluster(faults, **settings)
        found = []
        while len(found) < count:
            try:
                found += self.batch(faults, patience_s * SLOW)
            except AssertionError as error:
                raise AssertionError(f"after {len(found)} rounds: {error}") from error
        for name in dict.fromkeys(row[0] for row in found):
            after, gap = [row[1] for row in found if row[0] == name], [row[2] for row in found if row[0] == name]
            print(f"{name}: {len(after)} rounds, begun elsewhere after {min(after):.1f} to {max(after):.1f} s, "
                  f"run by nobody for {min(gap):.2f} to {max(gap):.2f} s", flush=True)

    @tags("load")
    def test_no_job_twice_over_10_rounds(self):
        self.rounds(10, FAULTS)

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS"), "make witness")
    def test_no_job_twice_over_many_rounds(self):
        if Cable.possible():
            self.wire = Cable
        print(f"partitions by {self.wire.__name__}", flush=True)
        self.rounds(int(os.environ["BERTH_WITNESS_ROUNDS"]), FAULTS)

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS"), "make witness")
    def test_no_job_twice_over_many_rounds_at_the_defaults(self):
        """Ten rounds at once with the default leases."""
        self.lease_ms = 120000 / SLOW
        if Cable.possible():
            self.wire = Cable
        self.rounds(10, FAULTS + FAULTS, 240, heartbeat_ms=5000, heartbeat_stale_ms=15000, view_drop_ms=30000,
                    lost_grace_ms=15000, f2f_lease_ms=45000)


class Fence(FenceCase):
    def test_its_agent_is_away_and_comes_back_in_time(self):
        """The agent is killed or stopped and back before two thirds of the lease: no job is ended or started again."""
        self.lease_ms = 12000
        server = self.serve()
        agent = self.agent(server)
        job = self.begin(server)
        self.attempt(job, 1)
        for end in ("kill", "stop") * 2:
            getattr(agent, end)()
            self.goes_on(job)
            agent = self.agent(server)
        deadline = time.monotonic() + self.lease_ms * SLOW / 1000  # the earlier fences have passed by then
        while time.monotonic() < deadline:
            self.assertEqual(self.goes_on(job), 1)
        self.assertEqual(server.slots("a1"), (0, 1))
        self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))

    def test_it_says_why_it_ended(self):
        """A single agent, without a server for longer than its fence: the shim ends the job. The lease starts anew with the server, so the
        outcome is accepted, and the job is retried."""
        server = self.serve()
        self.agent(server)
        job = self.begin(server)
        first = self.attempt(job, 1)
        port = server.port
        server.kill()
        eventually("the shim ends the job", lambda: not alive(first.pid), 20)
        server = self.serve(listen=f"127.0.0.1:{port}")
        second = self.attempt(job, 2)
        self.assertNotEqual(second.pid, first.pid)
        (ended,) = server.job(job)["attempts"]
        self.assertEqual((ended["outcome"], ended["reason"]), ("fail", "LEASE_LOST"))
        self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))

    def test_an_outcome_behind_the_lease_is_dropped(self):
        """The job went on elsewhere; the first node's report of its end changes nothing."""
        server = self.serve()
        agents = {name: self.agent(server, name) for name in ("a1", "a2")}
        job = self.begin(server)
        first = self.attempt(job, 1)
        agents[first.node].kill()
        self.attempt(job, 2)
        back = self.agent(server, first.node)
        eventually("the agent's report is refused", lambda: back.events("job.outcome_refused"), 20)
        self.assertEqual(self.goes_on(job), 2)
        self.assertEqual([row["reason"] for row in server.job(job)["attempts"]], ["NODE_LOST"])
        self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))

    def test_one_attempt_is_never_fenced(self):
        """A job with one attempt is not fenced, because no other node would begin it: it runs until the server tells the agent to drop
        it."""
        server = self.serve()
        agent = self.agent(server)
        job = self.begin(server, max_attempts=1)
        self.attempt(job, 1)
        agent.kill()
        eventually("the server gives the job up", lambda: server.job(job)["state"] == "FAILED", 30)
        self.assertEqual(server.job(job)["reason"], "NODE_LOST")
        self.goes_on(job)
        self.agent(server)
        eventually("the agent drops it", lambda: not alive(self.steps(job)[0].pid), 20)

    def test_a_goodbye_without_runs(self):
        """An agent that stops without runs is offline at once, whatever lost_grace_ms says."""
        server = self.serve(lost_grace_ms=60000)
        agent = self.agent(server)
        self.assertEqual(agent.stop(), 0)
        eventually("the node is offline", lambda: server.node("a1")["health"] == "offline")
        agent = self.agent(server)
        eventually("the node takes work again", lambda: server.node("a1")["takes_work"])
        job = self.begin(server)
        self.attempt(job, 1)
        agent.kill()
        self.agent(server)
        self.assertEqual(self.goes_on(job), 1)
        self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))


@tags("long")
class Away(FenceCase):
    """The server or its store is away: with `make witness` for a minute, which the default leases allow, otherwise for a third of a short
    lease."""

    whole = os.environ.get("BERTH_WITNESS_ROUNDS")
    lease_ms = 120000 / SLOW if whole else 12000
    away_s = 60 if whole else lease_ms * SLOW / 3000

    def none_ended(self, server, away):
        agents = [self.agent(server, name) for name in ("a1", "a2")]
        jobs = [self.begin(server) for _ in range(6)]
        before = [self.attempt(job, 1) for job in jobs]
        server = away(server) or server
        for agent in agents:
            eventually(f"{agent.node_id} takes work again", lambda: server.node(agent.node_id)["takes_work"], 60)
        deadline = time.monotonic() + self.lease_ms * SLOW / 1000  # by then jobs without a renewed lease would have been ended
        while time.monotonic() < deadline:
            for job, first in zip(jobs, before):
                self.assertEqual(self.goes_on(job), 1)
                self.assertEqual(self.steps(job)[-1].pid, first.pid)
        for job in jobs:
            self.assertEqual(server.job(job)["attempts"], [])
            self.ok(server.post(f"/v1/jobs/{job}/cancel", {}))

    def test_the_server(self):
        def away(server):
            port = server.port
            server.kill()
            time.sleep(self.away_s)
            return self.serve(listen=f"127.0.0.1:{port}")

        self.none_ended(self.serve(), away)

    def test_the_store(self):
        store = redis.Redis(self.dir / "redis", "--appendonly", "yes", "--appendfsync", "always")
        self.addCleanup(store.kill)

        def away(server):
            store.kill()
            time.sleep(self.away_s)
            store.start()

        self.none_ended(self.serve(store=store.url), away)
