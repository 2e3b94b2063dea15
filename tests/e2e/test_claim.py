"""Deployments on real agents: they are shared out evenly, kept running, moved when their node is lost, no longer matches or keeps failing
them, and never run twice: not after a partition, with a frozen agent or machine, or after a kill or restart of any process."""
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import threading
import time
import unittest

import postgres
from harness import SLOW, Stalls, WsNode, berth, eventually, tags
from relay import Cable, Relay
from test_agent import AgentCase, alive

# Every copy holds the lock of its deployment as long as it lives, so a second copy finds it taken and writes OVERLAP. The log has a line
# for each start and each graceful stop.
WITNESS = """exec 9>>"$W/lock.$BERTH_DEPLOYMENT_ID"
if ! flock -n 9; then echo "OVERLAP $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID" >> "$W/log"; exit 9; fi
echo "start $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID $$" >> "$W/log"
trap 'echo "stop $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID $$" >> "$W/log"; exit 0' TERM
n=0; while :; do echo "line $n"; n=$((n+1)); sleep 0.2 9>&-; done"""

Start = collections.namedtuple("Start", "id generation node pid")


class ClaimCase(AgentCase):
    interval_ms = 500
    lease_ms = 9000  # long enough that a busy server, agent or disk moves nothing

    def serve(self, **settings):
        """A server with short leases; other times are derived from them: a silent node is stale after nearly one lease."""
        silent = int(min(8000, max(3000, self.lease_ms - 1000)) * SLOW)
        return self.start(**{"heartbeat_ms": 1000, "heartbeat_stale_ms": silent, "view_drop_ms": silent, "ping_ms": int(1000 * SLOW),
                             "deploy_lease_ms": int(self.lease_ms * SLOW), "deploy_renew_ms": int(self.lease_ms * SLOW / 9), **settings})

    def node(self, server, node_id, **settings):
        return self.agent(server, node_id, claim_interval_ms=self.interval_ms,
                          **{"restart_min_ms": 100, **settings})

    def looked_again(self, result, names=None, times=5):
        """Waits until each of these agents has ended `times` more claim cycles with this result."""
        agents = [agent for agent in self.agents if names is None or agent.node_id in names]
        before = {agent.node_id: agent.log.count(f"result={result} ") for agent in agents}
        eventually(f"all agents logged result={result} {times} times", lambda: all(
            agent.log.count(f"result={result} ") >= before[agent.node_id] + times for agent in agents), 60)

    def deploy(self, server, name, command=WITNESS, **spec):
        return self.ok(server.call("PUT", f"/v1/deployments/{name}",
                                   {"command": command, "env": {"W": str(self.dir)}, "stop_grace_ms": 500, **spec}), 201)

    def rows(self, server):
        """{id: (address, generation)}, page by page."""
        found, cursor = {}, ""
        while cursor is not None:
            page = self.ok(server.get(f"/v1/deployments?limit=500{'&cursor=' + cursor if cursor else ''}"))
            found.update({row["id"]: (row["address"], row["generation"]) for row in page["deployments"]})
            cursor = page["next_cursor"]
        return found

    def counts(self, server):
        return collections.Counter(address for address, _ in self.rows(server).values())

    def starts(self):
        """All starts so far. Fails if two copies of a deployment ever ran at once."""
        lines = [line.split() for line in self.lines("log")]
        self.assertEqual([line for line in lines if line[0] == "OVERLAP"], [])
        return [Start(*line[1:]) for line in lines if line[0] == "start"]

    def living(self):
        return [start for start in self.starts() if alive(start.pid)]

    def all_run(self, server, count, seconds=30):
        """Waits until each deployment runs once, on the node and in the generation that the table says."""
        def settled():
            rows = self.rows(server)
            living = {start.id: (start.node, int(start.generation)) for start in self.living()}
            return len(rows) == count and rows == living and rows

        return eventually(f"{count} deployments run once each, where the table says", settled, seconds)

    def claims(self, *agents):
        """{node: times of its claims, in seconds of the day}."""
        times = {}
        for agent in agents:
            for line in agent.events("claim.claimed"):
                stamp = re.search(r"T(\d+):(\d+):([\d.]+)Z", line)
                hours, minutes, seconds = stamp.groups()
                times.setdefault(agent.node_id, []).append(int(hours) * 3600 + int(minutes) * 60 + float(seconds))
        return times

    def end_agents(self):
        super().end_agents()
        for pid in self.processes():  # some have no lease that would end them soon
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def processes(self, node_id=None):
        """The pids of this test's copies, of all nodes or of one."""
        marks = [f"W={self.dir}\0".encode()] + ([f"BERTH_NODE_ID={node_id}\0".encode()] if node_id else [])
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                environ = b"\0" + path.read_bytes()
            except OSError:
                continue
            if all(b"\0" + mark in environ for mark in marks):
                found.append(int(path.parent.name))
        return found

    def tree_of(self, node_id):
        """The pids of all processes of a node: its agent, its shims and the copies."""
        agent = [agent for agent in self.agents if agent.node_id == node_id][-1].process.pid
        copies, shims = self.processes(node_id), set()
        for pid in copies:
            try:
                parent = int(re.search(r"PPid:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))
                if pathlib.Path(f"/proc/{parent}/comm").read_text() == "berth-shim\n":
                    shims.add(parent)
            except OSError:
                pass
        return [agent, *sorted(shims), *copies]


class Sharing(ClaimCase):
    def lease_end(self, server, node_id):
        """The time at which a node's lease ends or ended, in seconds of the day. Leases that still last long are not in the view, so this
        may wait."""
        def listed():
            asked = time.time() % 86400
            leases = self.ok(server.post("/v1/deployments/view", {"node_id": "watcher"}))["leases"]
            return next((asked + lease["left_ms"] / 1000 for lease in leases if lease["address"] == node_id), None)

        return eventually(f"the lease of {node_id} is listed", listed)

    def share(self, budget=0, **settings):
        server = self.serve(**settings)
        a, b = self.node(server, "a", claim_budget=budget), self.node(server, "b", claim_budget=budget)
        for node in (a, b):
            eventually(f"{node.node_id} sees both nodes", lambda: any("nodes=2 " in line for line in node.events("claim.cycle")))
        for i in range(21):
            self.deploy(server, f"d{i:02}")
        first = self.all_run(server, 21, 60)
        self.assertEqual(sorted(self.counts(server).values()), [10, 11])
        self.assertEqual(len(self.starts()), 21)
        for node, times in self.claims(a, b).items():
            gaps = [later - earlier for earlier, later in zip(times, times[1:])]
            if budget:  # one for each node and cycle
                self.assertGreater(min(gaps), self.interval_ms / 1000 * 0.8, f"{node}: {gaps}")
        # One node dies: its deployments move, but not before its lease has ended, and no other one moves.
        moved = {name for name, (address, _) in first.items() if address == "b"}
        b.kill()
        killed = time.time() % 86400
        until = self.lease_end(server, "b")
        eventually("all 21 belong to the other node", lambda: self.counts(server) == {"a": 21}, 60)
        second = self.all_run(server, 21, 60)
        self.assertEqual({name for name in second if second[name] != first[name]}, moved)
        self.assertEqual({second[name][1] for name in moved}, {2})
        taken = [at for at in self.claims(a)["a"] if at > killed]
        self.assertEqual(len(taken), len(moved))
        self.assertGreater(taken[0], until - 0.1)
        if budget:
            self.assertGreater(min(y - x for x, y in zip(taken, taken[1:])), self.interval_ms / 1000 * 0.8)
        # The node comes back: nothing moves back, and nothing runs twice.
        b = self.node(server, "b")
        eventually("the node has done a few claim cycles", lambda: len(b.events("claim.cycle")) >= 5)
        self.assertEqual(self.all_run(server, 21), second)
        self.assertEqual(len(self.starts()), 21 + len(moved))

    @tags("load")
    def test_two_nodes_share_and_one_dies(self):
        self.share()

    @tags("load", "long")
    def test_the_same_one_by_one(self):
        self.share(budget=1)

    @tags("load")
    @unittest.skipUnless(postgres.programs(), "no PostgreSQL here")
    def test_the_same_with_postgresql(self):
        pg = postgres.Postgres(self.dir)
        self.addCleanup(pg.close)
        self.share(database=pg.url)

    @tags("load")  # a slow server is away for longer than a short lease
    def test_a_server_restarts_and_nothing_moves(self):
        # However slow the machine is, the server must be away for less time than the copies' deadlines.
        long = {"deploy_lease_ms": int(20000 * SLOW)}
        server = self.serve(**long)
        for name in ("a", "b", "c"):
            self.node(server, name)
        for i in range(6):
            self.deploy(server, f"d{i}")
        before = self.all_run(server, 6)
        starts = self.starts()
        for kill in (False, True):
            port = server.port
            server.kill() if kill else self.assertEqual(server.stop(), 0)
            server = self.serve(listen=f"127.0.0.1:{port}", **long)
            eventually("all three nodes are members again", lambda: len(server.get("/v1/terminals").json["terminals"]) == 3, 20)
        self.looked_again("no_candidate")
        self.assertEqual(self.rows(server), before)
        self.assertEqual(self.starts(), starts)

    @tags("load")
    def test_most_nodes_cut_off_at_once(self):
        server = self.serve()
        wires, agents = {}, {}
        for name in "abcde":
            wires[name] = Relay(server.port)
            self.addCleanup(wires[name].close)
            agents[name] = self.node(wires[name].url, name)
        for i in range(10):
            self.deploy(server, f"d{i}")
        before = self.all_run(server, 10)
        for name in "cde":
            wires[name].cut()
        eventually("the other nodes see the mass loss", lambda: all("result=mass_loss" in agents[name].log for name in "ab"), 40)
        eventually("the nodes that are cut off have stopped their copies",
                   lambda: {start.node for start in self.living()} == {"a", "b"}, 60)
        self.looked_again("mass_loss", "ab")
        self.assertEqual({name: row[0] for name, row in self.rows(server).items()},
                         {name: row[0] for name, row in before.items()})  # nothing was claimed
        for name in "cd":
            wires[name].heal()
        eventually("the nodes that are back run their copies again", lambda: {start.node for start in self.living()} >= set("abcd"), 40)
        for name in "cd":
            wires[name].cut()
        eventually("three of five nodes have stopped their copies again", lambda: {start.node for start in self.living()} == {"a", "b"}, 40)
        self.ok(server.post("/v1/deployments/approve", {"for_ms": 60000}))
        after = self.all_run(server, 10, 60)
        self.assertEqual(set(row[0] for row in after.values()), {"a", "b"})

    def test_a_goodbye_is_no_loss(self):
        """Two of three agents stop cleanly: a new deployment runs at once, theirs move when their leases have ended, and that is no mass
        loss."""
        server = self.serve()
        a, b, c = [self.node(server, name) for name in "abc"]
        for i in range(3):
            self.deploy(server, f"d{i}")
        before = self.all_run(server, 3)
        for agent in (b, c):
            self.assertEqual(agent.stop(), 0)
        eventually("only one node is a member", lambda: len(server.get("/v1/terminals").json["terminals"]) == 1)
        self.deploy(server, "new")
        eventually("the new deployment runs", lambda: any(start.id == "new" for start in self.living()), 20)
        eventually("all deployments belong to the remaining node", lambda: self.counts(server) == {"a": 4}, 40)
        after = self.all_run(server, 4)
        self.assertEqual([name for name in before if after[name] == before[name]],
                         [name for name in before if before[name][0] == "a"])
        self.assertNotIn("result=mass_loss", a.log)

    def test_a_nodes_usage_hangs(self):
        server = self.serve()
        settings = {"claim_policy": "resource_usage"}
        a, b = self.node(server, "a", **settings), self.node(server, "b", **settings)
        mute = WsNode(server, "mute", tags={"node_unit": "true", "node_unit_address": "mute"}, level="normal")
        self.addCleanup(mute.close)
        mute.send("heartbeat")
        eventually("the mute node is a member", lambda: "mute" in [t["terminal_id"] for t in server.get("/v1/terminals").json["terminals"]])
        for i in range(6):
            self.deploy(server, f"d{i}")
        rows = self.all_run(server, 6, 40)
        self.assertLessEqual(set(row[0] for row in rows.values()), {"a", "b"})
        self.assertNotIn("claim.cycle_failed", a.log + b.log)

    def test_the_seeds_mode(self):
        """Mode seed: no lease and no grace. A node that is missing from the member list is lost, and all its deployments are released."""
        server = self.serve(claim_mode="seed")
        self.node(server, "a")
        b = self.node(server, "b")
        for i in range(4):
            self.deploy(server, f"d{i}", f"echo $BERTH_NODE_ID >> {self.dir}/where; exec sleep 60")
        eventually("each node has two deployments", lambda: self.counts(server) == {"a": 2, "b": 2})
        b.kill()
        eventually("all deployments belong to the other node", lambda: self.counts(server) == {"a": 4})

    def test_drained_one_at_a_time(self):
        server = self.serve()
        self.node(server, "a")
        for i in range(4):
            self.deploy(server, f"d{i}")
        self.all_run(server, 4)
        self.node(server, "b")
        self.ok(server.post("/v1/nodes/a/drain", {"reason": "new disks"}))
        most = [0]

        def moved():
            counts = self.counts(server)
            most[0] = max(most[0], counts[""])
            return len(counts) == 1 and "b" in counts

        eventually("all deployments have moved", moved, 60)
        self.assertLessEqual(most[0], 1)
        rows = self.all_run(server, 4)
        self.assertEqual(set(row[0] for row in rows.values()), {"b"})
        self.ok(server.post("/v1/nodes/a/undrain", {}))
        eventually("the node takes work again", lambda: server.node("a")["takes_work"])


class Fencing(ClaimCase):
    lease_ms = 3000
    interval_ms = 300

    def setUp(self):
        super().setUp()
        self.dice = random.Random(int(os.environ.get("BERTH_E2E_SEED", random.randrange(1 << 32))))
        self.frozen = []
        self.addCleanup(self.thaw)

    def thaw(self):
        for pid in self.frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass
        self.frozen = []

    def freeze(self, *pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGSTOP)
                self.frozen.append(pid)
            except OSError:
                pass

    wire = Relay

    def begin(self, name):
        self.nodes[name] = self.node(self.wires[name].url, name, prefix=self.wires[name].prefix)

    def cluster(self, count, deployments):
        self.server = self.serve(hosts=Cable.hosts())
        self.wires, self.nodes = {}, {}
        for name in "abcdef"[:count]:
            self.wires[name] = self.wire(self.server.port)
            self.addCleanup(self.wires[name].close)
            self.begin(name)
        for i in range(deployments):
            self.deploy(self.server, f"d{i}")
        self.all_run(self.server, deployments, 60)

    def moved_from(self, node, seconds=40):
        eventually(f"no deployment belongs to {node} any more",
                   lambda: self.counts(self.server)[node] == 0 and self.rows(self.server), seconds)

    # What can happen to a node, and how that ends.

    def partition(self, node):
        self.wires[node].cut()
        self.moved_from(node)
        self.wires[node].heal()

    def stop_agent(self, node):
        self.freeze(self.nodes[node].process.pid)
        self.moved_from(node)
        self.thaw()

    def kill_agent(self, node):
        self.nodes[node].kill()
        self.moved_from(node)
        self.begin(node)

    def flicker(self, node):
        """Cuts the connection for times around the lease: often too short to lose anything."""
        for _ in range(3):
            self.wires[node].cut()
            time.sleep(self.dice.uniform(0, self.lease_ms * SLOW / 1000))
            self.wires[node].heal()
            time.sleep(self.dice.uniform(0, 0.5))

    def rounds(self, count):
        faults = [self.partition, self.stop_agent, self.kill_agent, self.flicker]
        self.cluster(3, 4)
        for number in range(count):
            fault, node = faults[number % len(faults)], self.dice.choice(sorted(self.nodes))
            try:
                fault(node)
                self.all_run(self.server, 4, 60)
            except AssertionError as error:
                raise AssertionError(f"round {number}, {fault.__name__} of {node}: {error}\n" + "\n".join(self.lines("log")[-40:]))
        starts = self.starts()
        keys = [(start.id, int(start.generation)) for start in starts]
        for name in {start.id for start in starts}:  # generations only grow
            own = [generation for key, generation in keys if key == name]
            self.assertEqual(own, sorted(own))

    @tags("load", "long")
    def test_no_two_copies_over_10_rounds(self):
        self.rounds(10)

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS"), "make witness")
    def test_no_two_copies_over_many_rounds(self):
        if Cable.possible():
            self.wire = Cable
        print(f"partitions by {self.wire.__name__}", flush=True)
        self.rounds(int(os.environ["BERTH_WITNESS_ROUNDS"]))

    def test_a_frozen_machine_ends_its_copy_first(self):
        """A frozen copy cannot be ended and keeps its lock while its deployment moves. As soon as it wakes up, its shim ends it."""
        self.cluster(2, 1)
        (name, (node, generation)), = self.rows(self.server).items()
        old = self.living()[0]
        tree = self.tree_of(node)
        self.assertGreaterEqual(len(tree), 3)
        self.assertIn(int(old.pid), tree)
        self.freeze(*tree)
        self.moved_from(node)
        self.assertTrue(alive(old.pid))
        for pid in tree:  # all but the agent, which the server would tell to end the copy
            if pid != self.nodes[node].process.pid:
                with contextlib.suppress(ProcessLookupError):  # its shim was faster
                    os.kill(pid, signal.SIGCONT)
        eventually("the old copy ends", lambda: not alive(old.pid))
        self.thaw()
        refused = self.server.post("/v1/deployments/yield", {"node_id": node, "id": name, "generation": generation})
        self.problem(refused, 409, "CONFLICT")

    def test_an_agent_that_is_dead_or_stopped_leaves_no_copy_behind(self):
        """There is no other node, so only the shims can end the copies, by their own clocks."""
        self.cluster(1, 2)
        agent = self.nodes["a"]
        stalls = Stalls()
        stalls.start()
        self.addCleanup(stalls.over.set)

        def end_in_time():
            """The copies end before the lease is over; time in which the whole machine stood still does not count."""
            begun = time.monotonic()
            eventually("the copies of the agent end", lambda: not self.living())
            ended = time.monotonic()
            self.assertLess(ended - begun - stalls.within(begun, ended), self.lease_ms * SLOW / 1000)

        self.freeze(agent.process.pid)
        end_in_time()
        self.thaw()
        self.all_run(self.server, 2)  # the agent is back, still owns both, and they run
        agent.kill()
        end_in_time()


    def once_each(self):
        """No generation was started twice."""
        starts = [(start.id, start.generation) for start in self.starts()]
        self.assertEqual(len(starts), len(set(starts)), starts)

    def test_two_agents_of_one_name(self):
        """The data_dir of an agent was copied. The instance with the lease keeps it; the other one waits until the lease has ended."""
        self.cluster(1, 2)
        copy = self.dir / "copy"
        copy.mkdir()
        for path in self.nodes["a"].dir.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                if path.is_file():
                    shutil.copy(path, copy)
        other = self.node(self.wires["a"].url, "a", data_dir="copy")
        eventually("the second instance is refused", lambda: self.once_each() or other.events("lease.other_instance"), 30)
        self.once_each()
        self.nodes["a"].kill()
        eventually("the second instance runs both in a new generation",
                   lambda: len([s for s in self.living() if int(s.generation) > 1]) == 2, 60)
        self.all_run(self.server, 2, 60)
        self.once_each()

    def test_an_agent_with_another_data_dir(self):
        """A new agent with an empty data_dir knows nothing of the copies that the old one left running."""
        self.cluster(1, 2)
        self.nodes["a"].kill()
        self.assertEqual(len(self.living()), 2)
        self.node(self.wires["a"].url, "a", data_dir="elsewhere")
        eventually("both run again in a new generation", lambda: len([s for s in self.living() if int(s.generation) > 1]) == 2, 60)
        self.all_run(self.server, 2, 60)
        self.once_each()


class Living(ClaimCase):
    @tags("load")
    def test_restarts_of_the_agent_touch_nothing(self):
        """The agent is killed or stopped again and again while jobs run: no copy is restarted, and no line of output is lost."""
        times = int(os.environ.get("BERTH_E2E_RESTARTS", "10"))
        server = self.serve(deploy_lease_ms=30000, deploy_renew_ms=1000, running_lease_ms=int(4000 * SLOW))
        agent = self.node(server, "a", claim_budget=20)
        for i in range(8):
            self.deploy(server, f"d{i}")
        before = self.all_run(server, 8)
        starts, stop, jobs = self.starts(), threading.Event(), []

        def load():
            while not stop.is_set():
                jobs.append(self.run_task(server, "echo done", queue_ms=60000, max_attempts=9))
                stop.wait(0.1)

        feeder = threading.Thread(target=load)
        feeder.start()
        try:
            for i in range(times):
                agent.kill() if i % 2 else self.assertEqual(agent.stop(), 0)
                agent = self.node(server, "a", claim_budget=20)
                self.assertEqual(len(agent.events("copy.adopted")), 8)
        finally:
            stop.set()
            feeder.join()
        eventually("the agent looks for deployments to claim", lambda: len(agent.events("claim.cycle")) > 1)
        self.assertEqual(self.all_run(server, 8), before)
        self.assertEqual(self.starts(), starts)
        for i in range(8):
            lines = self.ok(server.get(f"/v1/deployments/d{i}/logs"))["text"].splitlines()
            self.assertGreater(len(lines), times)
            self.assertEqual(lines, [f"line {n}" for n in range(len(lines))])
        for job in jobs:
            self.assertEqual(self.ended(server, job, 60)["state"], "DONE")

    def test_the_life_of_a_deployment(self):
        server = self.serve()
        agent = self.node(server, "a")
        crash, sick = self.dir / "crash", self.dir / "sick"
        command = f"echo $$ >> {self.dir}/pids; while [ ! -e {crash} ]; do sleep 0.05; done; rm {crash}; exit 3"
        self.deploy(server, "web", command, health={"command": f"test ! -e {sick}", "interval_ms": 200, "failures": 2},
                    restart={"min_ms": 50, "max_ms": 100})
        copy = lambda: (self.ok(server.get("/v1/deployments/web"))["copies"] or [{}])[0]
        eventually("the copy runs", lambda: copy().get("state") == "running" and len(self.lines("pids")) == 1)
        self.assertEqual(str(copy()["pid"]), self.lines("pids")[0])
        crash.touch()
        eventually("the copy is restarted after its crash", lambda: len(self.lines("pids")) == 2)
        eventually("the server shows the restart", lambda: copy().get("restarts") == 1 and copy()["state"] == "running")
        eventually("the copy is healthy", lambda: copy().get("healthy"), 20)
        sick.touch()
        eventually("an unhealthy copy is restarted", lambda: len(self.lines("pids")) == 3, 30)
        sick.unlink()
        self.ok(server.post("/v1/deployments/web/restart"))
        eventually("the copy is restarted on request, as version 2",
                   lambda: len(self.lines("pids")) >= 4 and copy().get("version") == 2, 30)
        self.ok(server.call("PATCH", "/v1/deployments/web", {"enabled": False}))
        eventually("a disabled deployment stops", lambda: not any(alive(pid) for pid in self.lines("pids")))
        self.ok(server.call("PATCH", "/v1/deployments/web", {"enabled": True}))
        eventually("an enabled deployment runs again", lambda: any(alive(pid) for pid in self.lines("pids")))
        self.ok(server.call("DELETE", "/v1/deployments/web"))
        eventually("a deleted deployment stops", lambda: not any(alive(pid) for pid in self.lines("pids")))
        eventually("the run's directory is removed", lambda: not list((self.dir / "agent-a" / "runs").glob("d.*")))
        self.assertEqual(len(agent.events("copy.crash_loop")), 0)

    def test_a_crash_loop(self):
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "bad", "echo oops; exit 1", restart={"min_ms": 10, "max_ms": 20})
        self.deploy(server, "gone", ["/no/such/program"], restart={"min_ms": 10, "max_ms": 20})
        for name, words in (("bad", "code 1"), ("gone", "No such file")):
            found = eventually(f"{name} is shown in a crash loop", lambda: [
                copy for copy in self.ok(server.get(f"/v1/deployments/{name}"))["copies"] if copy["state"] == "crash_loop"])
            self.assertIn(words, found[0]["reason"])
        eventually("the log of the copy shows its output", lambda: server.get("/v1/deployments/bad/logs").json["text"] == "oops\n")

    def test_daemons_run_where_their_selector_says(self):
        server = self.serve()
        self.node(server, "a", config="labels: {disk: ssd}\n")
        self.node(server, "b", config="labels: {disk: ssd}\n")
        self.node(server, "c", config="labels: {disk: tape}\n")
        where = f"echo $BERTH_NODE_ID $BERTH_VERSION $$ >> {self.dir}/where; exec sleep 100"
        self.deploy(server, "cache", where, type="daemon", selector="disk=ssd")
        self.deploy(server, "tape", where + "0", type="deployment", selector="disk=tape")
        eventually("the daemon runs on a and b, the deployment on c",
                   lambda: sorted(line.split()[0] for line in self.lines("where")) == ["a", "b", "c"])
        self.assertEqual(self.rows(server)["cache"][0], "")
        self.assertEqual(self.rows(server)["tape"][0], "c")
        self.ok(server.post("/v1/deployments/cache/restart"))
        eventually("both copies of the daemon are replaced", lambda: sorted(line.split()[0] for line in self.lines("where")
                                                                            if line.split()[1] == "2") == ["a", "b"], 20)
        living = [line.split() for line in self.lines("where") if alive(line.split()[2])]
        self.assertEqual(sorted(line[:2] for line in living), [["a", "2"], ["b", "2"], ["c", "1"]])
        (self.dir / "agent-c.yaml").write_text("labels: {disk: ssd}\n")  # c gets a matching label, so the daemon must start there
        self.agents[-1].process.send_signal(signal.SIGHUP)
        eventually("the daemon runs on c too", lambda: ["c", "2"] in [line.split()[:2] for line in self.lines("where")])

    def test_what_cannot_run_here_goes_elsewhere(self):
        server = self.serve()
        settings = {"move_after_failures": 3}
        a = self.node(server, "a", **settings)
        self.deploy(server, "picky", f'test "$BERTH_NODE_ID" = b || exit 7; {WITNESS}', restart={"min_ms": 20, "max_ms": 50})
        show = lambda name: self.ok(server.get(f"/v1/deployments/{name}"))
        eventually("the deployment fails, and stays because there is no other node", lambda: [
            copy for copy in show("picky")["copies"] if copy["state"] == "crash_loop"])
        self.assertEqual(self.rows(server)["picky"], ("a", 1))
        self.node(server, "b", **settings)
        self.assertEqual(self.all_run(server, 1)["picky"][0], "b")
        failed, = show("picky")["failed_on"]
        self.assertEqual(failed["address"], "a")
        self.assertIn("code 7", failed["reason"])
        self.assertGreater(failed["until_ms"], failed["at_ms"])
        self.assertIn("code 7", str(self.ok(server.get("/v1/deployments/picky/history"))))
        shown = berth("deploy", "show", "picky", env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}).stdout
        self.assertRegex(shown, "(?s)Failed on.*a.*code 7")
        # One that fails on every node stops moving, and is retried where it is.
        self.deploy(server, "broken", f'echo "$BERTH_NODE_ID" >> {self.dir}/tries; exit 8', restart={"min_ms": 20, "max_ms": 50})
        eventually("both nodes have tried", lambda: set(self.lines("tries")) == {"a", "b"})
        eventually("the deployment is in a crash loop on the last node",
                   lambda: [copy for copy in show("broken")["copies"] if copy["state"] == "crash_loop"])
        there, tries = self.rows(server)["broken"], len(self.lines("tries"))
        cycles = len(a.events("claim.cycle"))
        eventually("node a has done some more claim cycles", lambda: len(a.events("claim.cycle")) > cycles + 4)
        eventually("the deployment is started again", lambda: len(self.lines("tries")) > tries)
        self.assertEqual(self.rows(server)["broken"], there)
        self.assertEqual(len(show("broken")["failed_on"]), 1)
        self.ok(server.call("PUT", "/v1/deployments/broken", {"command": WITNESS, "env": {"W": str(self.dir)}}))
        self.all_run(server, 2)
        self.assertEqual(show("broken")["failed_on"], [])  # a new spec clears the list

    def test_a_changed_selector_moves_it(self):
        server = self.serve()
        self.node(server, "a", config="labels: {zone: a}\n")
        self.node(server, "b", config="labels: {zone: b}\n")
        spec = {"command": WITNESS, "env": {"W": str(self.dir)}, "stop_grace_ms": 500}
        for zone, status in (("a", 201), ("b", 200), ("a", 200)):
            self.ok(server.call("PUT", "/v1/deployments/web", {**spec, "selector": f"zone={zone}"}), status)
            eventually(f"node {zone} owns the deployment", lambda: self.rows(server)["web"][0] == zone)
            self.all_run(server, 1)
        self.ok(server.call("PUT", "/v1/deployments/web", {**spec, "selector": "zone=c"}))
        eventually("the deployment has stopped and has no owner", lambda: not self.living() and self.rows(server)["web"][0] == "")
        shown = berth("deploy", "show", "web", env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"})
        self.assertIn("No node matches zone=c.", shown.stdout)
        (self.dir / "agent-b.yaml").write_text("labels: {zone: c}\n")  # a new label works like a new selector
        self.agents[-1].process.send_signal(signal.SIGHUP)
        self.assertEqual(self.all_run(server, 1)["web"][0], "b")

    def test_a_package_is_installed_once_for_each_version(self):
        server = self.serve()
        broken = self.dir / "broken"
        install = (f"[sh, -c, 'test ! -e {broken} || {{ echo no such version; exit 1; }}; "
                   f"echo $0 $1 >> {self.dir}/installs; echo hi > $2/greeting', \"{{name}}\", \"{{version}}\", \"{{dir}}\"]")
        run = f"[sh, -c, 'cat $0/greeting >> {self.dir}/greetings; exec sleep 100', \"{{dir}}\"]"
        self.node(server, "a", config=f"install_command: {install}\nrun_command: {run}\n")
        for name, version in (("x", "1.0"), ("y", "1.0"), ("z", "2.0")):
            self.deploy(server, name, "" if name == "z" else f"cat greeting >> {self.dir}/greetings; exec sleep 100",
                        package_name="@acme/web", package_version=version)
        eventually("all run in their package's directory", lambda: self.lines("greetings") == ["hi"] * 3, 20)
        self.assertEqual(sorted(self.lines("installs")), ["@acme/web 1.0", "@acme/web 2.0"])
        broken.touch()
        self.deploy(server, "w", "exec sleep 100", package_name="@acme/web", package_version="3.0")
        eventually("the log shows why the installation failed",
                   lambda: server.get("/v1/deployments/w/logs").body.count(b"no such version"), 20)
        broken.unlink()
        eventually("the installation is tried again", lambda: "@acme/web 3.0" in self.lines("installs"), 20)

    def test_a_node_that_allows_none_runs_none(self):
        """Neither a deployment nor a daemon runs there, whatever else is allowed. When the setting changes, copies start or stop."""
        server = self.serve()
        config = self.dir / "agent-a.yaml"
        agent = self.node(server, "a", config="allow_deployments: false\n", allow_deployments=None)
        self.deploy(server, "web")
        self.deploy(server, "everywhere", type="daemon")
        self.looked_again("not_allowed")
        self.assertEqual(self.starts(), [])
        self.assertEqual(self.rows(server)["web"][0], "")
        for allowed, count in (("true", 2), ("false", 0), ("true", 2)):
            config.write_text(f"allow_deployments: {allowed}\n")
            agent.process.send_signal(signal.SIGHUP)
            eventually(f"{count} copies run", lambda: len(self.living()) == count, 60)
            eventually("the table shows the owner", lambda: self.rows(server)["web"][0] == ("a" if count else ""), 60)

    @unittest.skipUnless(os.geteuid() == 0, "root")
    def test_install_check_and_copy_are_not_root(self):
        """The installation, the health check and the copy all run as job_user, which also owns the package."""
        server = self.serve()
        os.chmod(self.dir, 0o711)
        install = "[sh, -c, 'id -un > who; mkdir -m 700 inside; touch inside/file']"
        agent = self.node(server, "a", job_user="nobody", allow_root=False, packages_kept=0, packages_unused_ms=1000,
                          config=f"install_command: {install}\n")
        self.deploy(server, "web", "echo copy $(id -un) $(cat who); exec sleep 100", package_name="p", package_version="1",
                    health={"command": ["sh", "-c", "test $(id -un) = nobody && test -O who"], "interval_ms": 200, "timeout_ms": 5000})
        eventually("the copy runs, and its health check does not fail",
                   lambda: b"copy nobody nobody" in server.get("/v1/deployments/web/logs").body and
                   self.copy(server, "web").get("healthy") is not False and self.copy(server, "web")["state"] == "running", 30)
        self.assertEqual(agent.events("copy.unhealthy"), [])
        self.ok(server.call("DELETE", "/v1/deployments/web"))
        eventually("the package is removed with the deployment", lambda: not list((agent.dir / "packages").glob("p.*")) and
                   not list((agent.dir / "runs" / ".gone").iterdir()), 60)

    def copy(self, server, name, node=None):
        """The server's record of a deployment's copy, or of the copy on one node."""
        copies = self.ok(server.get(f"/v1/deployments/{name}"))["copies"]
        return next((copy for copy in copies if node in (None, copy["address"])), {"state": None, "reason": None, "version": None})

    def change(self, server, name, command, **spec):
        self.ok(server.call("PUT", f"/v1/deployments/{name}", {
            "command": command, "env": {"W": str(self.dir)}, "stop_grace_ms": 500, **spec}))

    def test_a_version_that_cannot_be_installed_replaces_nothing(self):
        """The failed update does not hold up updates of other deployments either."""
        server = self.serve()
        self.node(server, "a", config="install_command: [sh, -c, 'test $0 != 9.9 || { echo no such version; exit 1; }', \"{version}\"]\n")
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_VERSION $$ >> {self.dir}/pids; exec sleep 100"
        for name in ("web", "api"):
            self.deploy(server, name, command, package_name="p", package_version="1.0")
        eventually("both deployments run", lambda: len(self.lines("pids")) == 2)
        pids = {line.split()[0]: line.split()[2] for line in self.lines("pids")}
        self.change(server, "web", command, package_name="p", package_version="9.9")
        eventually("the server shows why the update waits", lambda: "no such version" in (self.copy(server, "web")["reason"] or ""))
        copy = self.copy(server, "web")
        self.assertEqual((copy["state"], copy["version"], str(copy["pid"])), ("updating", 1, pids["web"]))
        listed = self.ok(server.get("/v1/deployments"))["deployments"]
        self.assertEqual([(row["id"], row["copy_version"], row["version"]) for row in listed], [("api", 1, 1), ("web", 1, 2)])
        self.change(server, "api", command, package_name="p", package_version="2.0")
        eventually("the other deployment is updated meanwhile", lambda: self.copy(server, "api")["version"] == 2 and not alive(pids["api"]))
        self.assertTrue(alive(pids["web"]))
        self.change(server, "web", ["/no/such/program"])
        eventually("the server shows that the program does not exist",
                   lambda: "/no/such/program" in (self.copy(server, "web")["reason"] or ""))
        self.assertTrue(alive(pids["web"]))
        self.change(server, "web", command)
        eventually("a version that can be started replaces the copy",
                   lambda: self.copy(server, "web")["version"] == 4 and self.copy(server, "web")["state"] == "running")
        self.assertFalse(alive(pids["web"]))

    def test_many_are_updated_at_once(self):
        """A copy whose health check never passes holds up no other update. States are reported when they change, not with the next renewal,
        which is due in 20 minutes."""
        server = self.serve(deploy_lease_ms=3600000, deploy_renew_ms=1200000)
        self.node(server, "a", claim_budget=25)
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_VERSION >> {self.dir}/starts; exec sleep 100"
        health = {"command": "true", "interval_ms": "10m"}
        names = [f"d{i:02}" for i in range(25)]
        for name in names:
            self.deploy(server, name, command, health=health)
        shown = lambda version: all((self.copy(server, name)["state"], self.copy(server, name)["version"]) == ("running", version)
                                    for name in names)
        eventually("all are shown running", lambda: shown(1), 20)
        for name in names:
            self.change(server, name, command, health={**health, "start_ms": "1h"})
        eventually("all are shown running version 2", lambda: shown(2), 20)
        self.assertEqual(len(self.lines("starts")), 50)
        for name in names:  # no check has given a result yet
            self.assertIsNone(self.copy(server, name)["healthy"])

    def test_a_bad_version_of_a_daemon_stops_at_the_first_node(self):
        server = self.serve()
        for name in "abc":
            self.node(server, name)
        good = "exec sleep 100"
        self.deploy(server, "log", good, type="daemon", restart={"min_ms": 10, "max_ms": 20})
        on = lambda version, state: [copy["address"] for copy in self.ok(server.get("/v1/deployments/log"))["copies"]
                                     if copy["version"] == version and copy["state"] == state and copy["healthy"] != False]
        eventually("version 1 runs on all nodes", lambda: on(1, "running") == ["a", "b", "c"])
        self.change(server, "log", "echo oops; exit 1", type="daemon", restart={"min_ms": 10, "max_ms": 20})
        eventually("version 2 fails on the first node", lambda: self.copy(server, "log", "a")["state"] == "crash_loop")
        stopped = lambda node: (self.copy(server, "log", node)["reason"] or "").startswith(
            "The update stopped: version 2 is not well on a (crash_loop).")
        eventually("the other nodes say why they wait", lambda: stopped("b") and stopped("c"))
        self.assertEqual(on(1, "updating"), ["b", "c"])
        self.change(server, "log", good + "0", type="daemon")
        eventually("version 3 runs on all nodes", lambda: on(3, "running") == ["a", "b", "c"], 60)

    def test_an_agent_that_cannot_run_it_says_so(self):
        """A spec that this agent rejects, as one written for another version might be. The test writes it into the database."""
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "web", "exec sleep 100")
        eventually("the copy runs", lambda: self.copy(server, "web")["state"] == "running")
        with sqlite3.connect(self.dir / "data" / "berth.db", timeout=10) as database:
            database.execute("UPDATE deployment SET options = ?, spec_version = 2 WHERE id = 'web'",
                             (json.dumps({"health": {"command": "true", "interval_ms": 1}}),))
            database.execute("UPDATE deployment SET generation = generation + 1 WHERE id = 'web'")
            database.execute("UPDATE berth_meta SET value = value + 1")
        eventually("the server shows the copy as refused", lambda: self.copy(server, "web")["state"] == "refused", 20)
        self.assertIn("health.interval_ms must be", self.copy(server, "web")["reason"])
        self.assertEqual(self.copy(server, "web")["version"], 2)

    def ends(self, **settings):
        server = self.serve(**settings)
        agents = {name: self.node(server, name) for name in "ab"}
        for name, policy, code in (("once", "never", 0), ("tried", "never", 3), ("done", "on_failure", 0), ("again", "on_failure", 3),
                                   ("always", "always", 0)):
            self.deploy(server, name, f"echo {name} >> {self.dir}/starts; exit {code}",
                        restart={"policy": policy, "min_ms": 10, "max_ms": 20})
        shown = lambda name: self.ok(server.get(f"/v1/deployments/{name}"))
        for name, state in (("once", "finished"), ("tried", "failed"), ("done", "finished")):
            eventually(f"{name} is shown as {state}", lambda: self.copy(server, name)["state"] == state)
            self.assertEqual(shown(name)["ended"], state)
        self.assertIn("code 3", self.copy(server, "tried")["reason"])
        for name in ("again", "always"):
            eventually(f"{name} is started again and again", lambda: self.lines("starts").count(name) > 3)
        owner = shown("once")["address"]
        agents[owner].kill()  # no other node may take `once`, and neither may its own when it is back
        eventually("the other deployments have moved", lambda: owner not in [shown(name)["address"] for name in ("again", "always")], 60)
        self.assertEqual(shown("once")["ended"], "finished")
        agents[owner] = self.node(server, owner)
        eventually("the node shows `once` as finished again",
                   lambda: self.copy(server, "once")["state"] == "finished" and agents[owner].events("claim.cycle"))
        self.assertEqual([self.lines("starts").count(name) for name in ("once", "tried", "done")], [1, 1, 1])
        self.ok(server.post("/v1/deployments/once/restart"))
        eventually("the new version of `once` runs", lambda: self.lines("starts").count("once") == 2)
        eventually("the new version is finished", lambda: shown("once")["ended"] == "finished")

    def test_what_ends_by_itself(self):
        self.ends()

    def test_what_ends_by_itself_on_postgresql(self):
        database = postgres.Postgres(self.dir)
        self.addCleanup(database.close)
        self.ends(database=database.url)

    def test_a_list_of_one_is_a_program(self):
        server = self.serve()
        self.node(server, "a")
        program = self.dir / "path with space" / "app"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho $# >> {self.dir}/ran\nexec sleep 100\n")
        program.chmod(0o755)
        self.deploy(server, "web", [str(program)])
        eventually("the program ran without arguments", lambda: self.lines("ran") == ["0"])

    def test_a_check_runs_where_its_copy_does(self):
        server = self.serve()
        self.node(server, "a", config="install_command: [sh, -c, 'printf \"#!/bin/sh\\necho nobody is there; exit 4\" > check; chmod 755 check']\n")
        self.deploy(server, "web", "exec sleep 100", package_name="p", package_version="1",
                    health={"command": "./check && test -n \"$BERTH_PACKAGE_DIR\"", "interval_ms": 200, "failures": 2})
        eventually("the reason has the output of the health check", lambda: "nobody is there" in (self.copy(server, "web")["reason"] or ""))
        self.assertIn("code 4", self.copy(server, "web")["reason"])
        eventually("the reason stays after restarts", lambda: self.copy(server, "web")["restarts"] > 1
                   and "nobody is there" in self.copy(server, "web")["reason"], 20)

    def test_limits_that_are_not_enforced_are_told(self):
        server = self.serve()
        agent = self.node(server, "a")
        self.deploy(server, "web", "exec sleep 100", limits={"memory_mb": 64})
        self.deploy(server, "free", "exec sleep 100")
        limits = eventually("the server shows whether the limits are enforced", lambda: self.copy(server, "web").get("limits"))
        if agent.events("agent.limits_missing"):
            self.assertRegex(limits, r"^(enforced|not enforced: memory_mb \(.+\))$")
        else:
            self.assertEqual(limits, "enforced")
        eventually("the other copy runs", lambda: self.copy(server, "free")["state"] == "running")
        self.assertIsNone(self.copy(server, "free")["limits"])

    def test_a_copy_that_fills_the_disk(self):
        """The copy is ended like one that crashed, and started again in a new directory."""
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "hog", "head -c 9000000 /dev/urandom > big; sync big; exec sleep 1000", limits={"disk_mb": 2}, stop_grace_ms=100)
        copy = eventually("the copy was ended and restarted", lambda: (copy := self.copy(server, "hog")).get("restarts") and copy, 60)
        self.assertIn("more than its limit of 2097152 bytes", str(copy))
        self.assertEqual(copy["limits"], "enforced")

    def test_a_machine_in_danger_claims_nothing(self):
        server = self.serve()
        agent = self.node(server, "a")
        agent.machine.memory(free_percent=15)
        eventually("the node is in danger", lambda: server.node("a")["level"] == "danger")
        self.deploy(server, "web")
        eventually("the agent logs that its level prevents claims", lambda: agent.log.count("result=level") > 2, 20)
        self.assertEqual(self.rows(server)["web"], ("", 0))
        self.node(server, "b")
        self.assertEqual(self.all_run(server, 1), {"web": ("b", 1)})
        self.assertSlots(server, "b", 0, 0)  # a deployment takes no job slot

    def crowd(self, **settings):
        """200 deployments on three agents with default settings: how long until all run, and until all run again after a node has died?"""
        server = self.start(**settings)
        agents = {name: self.agent(server, name) for name in "abc"}
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_NODE_ID $$ >> {self.dir}/up; exec sleep 1000"
        shown = lambda: sum(row["state"] == "running" for row in
                            self.ok(server.get("/v1/deployments?limit=1000"))["deployments"])
        begun = time.monotonic()
        with server.client() as client:
            for i in range(200):
                body = {"command": command, "env": {"W": str(self.dir)}}
                self.assertEqual(client.call("PUT", f"/v1/deployments/d{i:03}", body).status, 201)
        applied = time.monotonic() - begun
        eventually("all 200 run", lambda: len(self.lines("up")) == 200, 400)
        run = time.monotonic() - begun
        eventually("the server shows all 200 running", lambda: shown() == 200, 60)
        status, counts = time.monotonic() - begun, self.counts(server)
        agents["c"].kill()
        begun = time.monotonic()
        moved = counts["c"]
        eventually("all run again after the node's death", lambda: len(self.lines("up")) == 200 + moved, 400)
        again, after = time.monotonic() - begun, self.counts(server)
        print(f"200 deployments on 3 agents: applied in {applied:.1f} s, run after {run:.1f} s, shown after {status:.1f} s, "
              f"{dict(counts)}; after a node's death {again:.1f} s, {dict(after)}", flush=True)
        self.assertLess(run, 15)
        self.assertLess(again, 45 + 10)
        self.assertLess(max(counts.values()) - min(counts.values()), 200 / 3 * 0.2)
        self.assertLess(max(after.values()) - min(after.values()), 200 / 2 * 0.2)

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS"), "make witness")
    def test_200_deployments_on_3_agents(self):
        self.crowd()

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS") and postgres.programs(), "make witness")
    def test_200_deployments_on_3_agents_with_postgresql(self):
        pg = postgres.Postgres(self.dir)
        self.addCleanup(pg.close)
        self.crowd(database=pg.url)

    @unittest.skipUnless(os.environ.get("BERTH_WITNESS_ROUNDS"), "make witness")
    def test_500_deployments_on_5_cold_agents(self):
        server = self.serve(deploy_lease_ms=45000, deploy_renew_ms=5000)
        self.interval_ms = 5000
        with server.client() as client:
            for i in range(500):
                body = {"command": f"echo $BERTH_DEPLOYMENT_ID >> {self.dir}/up; exec sleep 1000"}
                self.assertEqual(client.call("PUT", f"/v1/deployments/d{i:03}", body).status, 201)
        begun = time.monotonic()
        for name in "abcde":
            self.node(server, name)
        eventually("all 500 run", lambda: len(self.lines("up")) == 500, 60)
        took = time.monotonic() - begun
        print(f"500 deployments on 5 agents: {took:.1f} s, {dict(self.counts(server))}", flush=True)
        self.assertLess(took, 60)
        self.assertEqual(len(set(self.lines("up"))), 500)
