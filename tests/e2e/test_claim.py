"""Deployments on real agents: they are claimed evenly, kept running, moved when a node is lost, is
wrong for them or fails them, and never run twice: not over a partition, a frozen agent, a frozen
machine, a kill or a restart of anything."""
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

# Every copy holds the lock of its deployment for as long as it lives; nobody else may find it free
# and nobody may find it taken. The log has a line for each start and each gentle stop.
WITNESS = """exec 9>>"$W/lock.$BERTH_DEPLOYMENT_ID"
if ! flock -n 9; then echo "OVERLAP $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID" >> "$W/log"; exit 9; fi
echo "start $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID $$" >> "$W/log"
trap 'echo "stop $BERTH_DEPLOYMENT_ID $BERTH_GENERATION $BERTH_NODE_ID $$" >> "$W/log"; exit 0' TERM
n=0; while :; do echo "line $n"; n=$((n+1)); sleep 0.2 9>&-; done"""

Start = collections.namedtuple("Start", "id generation node pid")


class ClaimCase(AgentCase):
    interval_ms = 500
    lease_ms = 9000  # a server, an agent or a disk that is busy for some seconds moves nothing

    def serve(self, **settings):
        """A server whose leases are short; everything else follows from that: who is silent is one of them nearly as long."""
        silent = int(min(8000, max(3000, self.lease_ms - 1000)) * SLOW)
        return self.start(**{"heartbeat_ms": 1000, "heartbeat_stale_ms": silent, "view_drop_ms": silent, "ping_ms": int(1000 * SLOW),
                             "deploy_lease_ms": int(self.lease_ms * SLOW), "deploy_renew_ms": int(self.lease_ms * SLOW / 9), **settings})

    def node(self, server, node_id, **settings):
        return self.agent(server, node_id, claim_interval_ms=self.interval_ms,
                          **{"restart_min_ms": 100, **settings})

    def looked_again(self, result, names=None, times=5):
        """These agents have looked for something to claim so often from now on, and this came of it."""
        agents = [agent for agent in self.agents if names is None or agent.node_id in names]
        before = {agent.node_id: agent.log.count(f"result={result} ") for agent in agents}
        eventually(f"all found {result} {times} times", lambda: all(
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
        """Every start there ever was. No line may tell of two copies at once."""
        lines = [line.split() for line in self.lines("log")]
        self.assertEqual([line for line in lines if line[0] == "OVERLAP"], [])
        return [Start(*line[1:]) for line in lines if line[0] == "start"]

    def living(self):
        return [start for start in self.starts() if alive(start.pid)]

    def all_run(self, server, count, seconds=30):
        """Waits until each deployment runs once, where the table says and in its generation."""
        def settled():
            rows = self.rows(server)
            living = {start.id: (start.node, int(start.generation)) for start in self.living()}
            return len(rows) == count and rows == living and rows

        return eventually(f"{count} deployments run", settled, seconds)

    def claims(self, *agents):
        """{node: [seconds of each claim]}"""
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
        """The processes of this test's copies: all of them, or those of one node."""
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
        """All that runs for a node: its agent, its shims, the copies."""
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
        """When the lease of a node ends or ended; those that last for long are not told."""
        def told():
            asked = time.time() % 86400
            leases = self.ok(server.post("/v1/deployments/view", {"node_id": "watcher"}))["leases"]
            return next((asked + lease["left_ms"] / 1000 for lease in leases if lease["address"] == node_id), None)

        return eventually("its lease is told", told)

    def share(self, budget=0, **settings):
        server = self.serve(**settings)
        a, b = self.node(server, "a", claim_budget=budget), self.node(server, "b", claim_budget=budget)
        for node in (a, b):
            eventually("it knows of both", lambda: any("nodes=2 " in line for line in node.events("claim.cycle")))
        for i in range(21):
            self.deploy(server, f"d{i:02}")
        first = self.all_run(server, 21, 60)
        self.assertEqual(sorted(self.counts(server).values()), [10, 11])
        self.assertEqual(len(self.starts()), 21)
        for node, times in self.claims(a, b).items():
            gaps = [later - earlier for earlier, later in zip(times, times[1:])]
            if budget:  # one for each node and cycle
                self.assertGreater(min(gaps), self.interval_ms / 1000 * 0.8, f"{node}: {gaps}")
        # One dies: its rows move after its lease and not before, and nothing else does.
        moved = {name for name, (address, _) in first.items() if address == "b"}
        b.kill()
        killed = time.time() % 86400
        until = self.lease_end(server, "b")
        eventually("all are the other's", lambda: self.counts(server) == {"a": 21}, 60)
        second = self.all_run(server, 21, 60)
        self.assertEqual({name for name in second if second[name] != first[name]}, moved)
        self.assertEqual({second[name][1] for name in moved}, {2})
        taken = [at for at in self.claims(a)["a"] if at > killed]
        self.assertEqual(len(taken), len(moved))
        self.assertGreater(taken[0], until - 0.1)
        if budget:
            self.assertGreater(min(y - x for x, y in zip(taken, taken[1:])), self.interval_ms / 1000 * 0.8)
        # It comes back: nothing moves back, nothing runs twice.
        b = self.node(server, "b")
        eventually("it has looked a few times", lambda: len(b.events("claim.cycle")) >= 5)
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
        # However slow the machine is: the server is not away for as long as the copies' deadlines.
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
            eventually("all are back", lambda: len(server.get("/v1/terminals").json["terminals"]) == 3, 20)
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
        eventually("the others see it", lambda: all("result=mass_loss" in agents[name].log for name in "ab"), 40)
        eventually("who is cut off has stopped", lambda: {start.node for start in self.living()} == {"a", "b"}, 60)
        self.looked_again("mass_loss", "ab")
        self.assertEqual({name: row[0] for name, row in self.rows(server).items()},
                         {name: row[0] for name, row in before.items()})  # 0 claims
        for name in "cd":
            wires[name].heal()
        eventually("who is back runs its own", lambda: {start.node for start in self.living()} >= set("abcd"), 40)
        for name in "cd":
            wires[name].cut()
        eventually("three of five are gone again", lambda: {start.node for start in self.living()} == {"a", "b"}, 40)
        self.ok(server.post("/v1/deployments/approve", {"for_ms": 60000}))
        after = self.all_run(server, 10, 60)
        self.assertEqual(set(row[0] for row in after.values()), {"a", "b"})

    def test_a_goodbye_is_no_loss(self):
        """Two of three agents stop in peace: what is new runs at once, what they had when their leases have ended."""
        server = self.serve()
        a, b, c = [self.node(server, name) for name in "abc"]
        for i in range(3):
            self.deploy(server, f"d{i}")
        before = self.all_run(server, 3)
        for agent in (b, c):
            self.assertEqual(agent.stop(), 0)
        eventually("they are gone", lambda: len(server.get("/v1/terminals").json["terminals"]) == 1)
        self.deploy(server, "new")
        eventually("the new one runs", lambda: any(start.id == "new" for start in self.living()), 20)
        eventually("all are the other's", lambda: self.counts(server) == {"a": 4}, 40)
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
        eventually("it is a member", lambda: "mute" in [t["terminal_id"] for t in server.get("/v1/terminals").json["terminals"]])
        for i in range(6):
            self.deploy(server, f"d{i}")
        rows = self.all_run(server, 6, 40)
        self.assertLessEqual(set(row[0] for row in rows.values()), {"a", "b"})
        self.assertNotIn("claim.cycle_failed", a.log + b.log)

    def test_the_seeds_mode(self):
        """No lease, no grace: a node that is gone from the list is lost, and all it had is released."""
        server = self.serve(claim_mode="seed")
        self.node(server, "a")
        b = self.node(server, "b")
        for i in range(4):
            self.deploy(server, f"d{i}", f"echo $BERTH_NODE_ID >> {self.dir}/where; exec sleep 60")
        eventually("they are shared", lambda: self.counts(server) == {"a": 2, "b": 2})
        b.kill()
        eventually("all are the other's", lambda: self.counts(server) == {"a": 4})

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

        eventually("all have moved", moved, 60)
        self.assertLessEqual(most[0], 1)
        rows = self.all_run(server, 4)
        self.assertEqual(set(row[0] for row in rows.values()), {"b"})
        self.ok(server.post("/v1/nodes/a/undrain", {}))
        eventually("it takes work again", lambda: server.node("a")["takes_work"])


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
        eventually(f"everything has left {node}", lambda: self.counts(self.server)[node] == 0 and self.rows(self.server), seconds)

    # What can happen to a node, and how it ends.

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
        """Too short to lose anything; long enough to be at the edge."""
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
        """Nobody can end what is frozen, so it still has its lock. But waking is its end."""
        self.cluster(2, 1)
        (name, (node, generation)), = self.rows(self.server).items()
        old = self.living()[0]
        tree = self.tree_of(node)
        self.assertGreaterEqual(len(tree), 3)
        self.assertIn(int(old.pid), tree)
        self.freeze(*tree)
        self.moved_from(node)
        self.assertTrue(alive(old.pid))
        for pid in tree:  # but not its agent, which would be told to end it
            if pid != self.nodes[node].process.pid:
                with contextlib.suppress(ProcessLookupError):  # its shim was as fast
                    os.kill(pid, signal.SIGCONT)
        eventually("the old one ends", lambda: not alive(old.pid))
        self.thaw()
        refused = self.server.post("/v1/deployments/yield", {"node_id": node, "id": name, "generation": generation})
        self.problem(refused, 409, "CONFLICT")

    def test_an_agent_that_is_dead_or_stopped_leaves_no_copy_behind(self):
        """Without any other node: the shim alone ends it, by its own clock."""
        self.cluster(1, 2)
        agent = self.nodes["a"]
        stalls = Stalls()
        stalls.start()
        self.addCleanup(stalls.over.set)

        def end_in_time():
            """Before its lease is over, not counting what the machine itself stood still."""
            begun = time.monotonic()
            eventually("its copies end", lambda: not self.living())
            ended = time.monotonic()
            self.assertLess(ended - begun - stalls.within(begun, ended), self.lease_ms * SLOW / 1000)

        self.freeze(agent.process.pid)
        end_in_time()
        self.thaw()
        self.all_run(self.server, 2)  # it is back, they are its own, and they run
        agent.kill()
        end_in_time()


    def once_each(self):
        """No generation was ever started twice."""
        starts = [(start.id, start.generation) for start in self.starts()]
        self.assertEqual(len(starts), len(set(starts)), starts)

    def test_two_agents_of_one_name(self):
        """The image of a machine was copied: whoever has the lease keeps it, and the other has to wait until it ended."""
        self.cluster(1, 2)
        copy = self.dir / "copy"
        copy.mkdir()
        for path in self.nodes["a"].dir.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                if path.is_file():
                    shutil.copy(path, copy)
        other = self.node(self.wires["a"].url, "a", data_dir="copy")
        eventually("it is refused", lambda: self.once_each() or other.events("lease.other_instance"), 30)
        self.once_each()
        self.nodes["a"].kill()
        eventually("the other has them", lambda: len([s for s in self.living() if int(s.generation) > 1]) == 2, 60)
        self.all_run(self.server, 2, 60)
        self.once_each()

    def test_an_agent_with_another_data_dir(self):
        """It knows nothing of what the one before it left running."""
        self.cluster(1, 2)
        self.nodes["a"].kill()
        self.assertEqual(len(self.living()), 2)
        self.node(self.wires["a"].url, "a", data_dir="elsewhere")
        eventually("they run again", lambda: len([s for s in self.living() if int(s.generation) > 1]) == 2, 60)
        self.all_run(self.server, 2, 60)
        self.once_each()


class Living(ClaimCase):
    @tags("load")
    def test_restarts_of_the_agent_touch_nothing(self):
        """Killed or told to stop, under load, again and again: no process is restarted, no line lost."""
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
        eventually("it looks for more", lambda: len(agent.events("claim.cycle")) > 1)
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
        eventually("it runs", lambda: copy().get("state") == "running" and len(self.lines("pids")) == 1)
        self.assertEqual(str(copy()["pid"]), self.lines("pids")[0])
        crash.touch()
        eventually("it is restarted", lambda: len(self.lines("pids")) == 2)
        eventually("that is told", lambda: copy().get("restarts") == 1 and copy()["state"] == "running")
        eventually("it is well", lambda: copy().get("healthy"), 20)
        sick.touch()
        eventually("one that is not well is restarted", lambda: len(self.lines("pids")) == 3, 30)
        sick.unlink()
        self.ok(server.post("/v1/deployments/web/restart"))
        eventually("so is one that a person restarts", lambda: len(self.lines("pids")) >= 4 and copy().get("version") == 2, 30)
        self.ok(server.call("PATCH", "/v1/deployments/web", {"enabled": False}))
        eventually("a disabled one stops", lambda: not any(alive(pid) for pid in self.lines("pids")))
        self.ok(server.call("PATCH", "/v1/deployments/web", {"enabled": True}))
        eventually("and runs again", lambda: any(alive(pid) for pid in self.lines("pids")))
        self.ok(server.call("DELETE", "/v1/deployments/web"))
        eventually("a deleted one stops", lambda: not any(alive(pid) for pid in self.lines("pids")))
        eventually("and is forgotten", lambda: not list((self.dir / "agent-a" / "runs").glob("d.*")))
        self.assertEqual(len(agent.events("copy.crash_loop")), 0)

    def test_a_crash_loop(self):
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "bad", "echo oops; exit 1", restart={"min_ms": 10, "max_ms": 20})
        self.deploy(server, "gone", ["/no/such/program"], restart={"min_ms": 10, "max_ms": 20})
        for name, words in (("bad", "code 1"), ("gone", "No such file")):
            found = eventually(f"{name} is told as one", lambda: [
                copy for copy in self.ok(server.get(f"/v1/deployments/{name}"))["copies"] if copy["state"] == "crash_loop"])
            self.assertIn(words, found[0]["reason"])
        eventually("why stands in its output", lambda: server.get("/v1/deployments/bad/logs").json["text"] == "oops\n")

    def test_daemons_run_where_their_selector_says(self):
        server = self.serve()
        self.node(server, "a", config="labels: {disk: ssd}\n")
        self.node(server, "b", config="labels: {disk: ssd}\n")
        self.node(server, "c", config="labels: {disk: tape}\n")
        where = f"echo $BERTH_NODE_ID $BERTH_VERSION $$ >> {self.dir}/where; exec sleep 100"
        self.deploy(server, "cache", where, type="daemon", selector="disk=ssd")
        self.deploy(server, "tape", where + "0", type="deployment", selector="disk=tape")
        eventually("they run", lambda: sorted(line.split()[0] for line in self.lines("where")) == ["a", "b", "c"])
        self.assertEqual(self.rows(server)["cache"][0], "")
        self.assertEqual(self.rows(server)["tape"][0], "c")
        self.ok(server.post("/v1/deployments/cache/restart"))
        eventually("both are replaced", lambda: sorted(line.split()[0] for line in self.lines("where")
                                                       if line.split()[1] == "2") == ["a", "b"], 20)
        living = [line.split() for line in self.lines("where") if alive(line.split()[2])]
        self.assertEqual(sorted(line[:2] for line in living), [["a", "2"], ["b", "2"], ["c", "1"]])
        (self.dir / "agent-c.yaml").write_text("labels: {disk: ssd}\n")  # a label decides, also one that is new
        self.agents[-1].process.send_signal(signal.SIGHUP)
        eventually("it runs there too", lambda: ["c", "2"] in [line.split()[:2] for line in self.lines("where")])

    def test_what_cannot_run_here_goes_elsewhere(self):
        server = self.serve()
        settings = {"move_after_failures": 3}
        a = self.node(server, "a", **settings)
        self.deploy(server, "picky", f'test "$BERTH_NODE_ID" = b || exit 7; {WITNESS}', restart={"min_ms": 20, "max_ms": 50})
        show = lambda name: self.ok(server.get(f"/v1/deployments/{name}"))
        eventually("it fails, and stays where else nobody is", lambda: [
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
        # One that fails everywhere ends its journey, and is tried on where it is.
        self.deploy(server, "broken", f'echo "$BERTH_NODE_ID" >> {self.dir}/tries; exit 8', restart={"min_ms": 20, "max_ms": 50})
        eventually("both have tried", lambda: set(self.lines("tries")) == {"a", "b"})
        eventually("it fails here as well", lambda: [copy for copy in show("broken")["copies"] if copy["state"] == "crash_loop"])
        there, tries = self.rows(server)["broken"], len(self.lines("tries"))
        cycles = len(a.events("claim.cycle"))
        eventually("nodes have looked again", lambda: len(a.events("claim.cycle")) > cycles + 4)
        eventually("it is tried again", lambda: len(self.lines("tries")) > tries)
        self.assertEqual(self.rows(server)["broken"], there)
        self.assertEqual(len(show("broken")["failed_on"]), 1)
        self.ok(server.call("PUT", "/v1/deployments/broken", {"command": WITNESS, "env": {"W": str(self.dir)}}))
        self.all_run(server, 2)
        self.assertEqual(show("broken")["failed_on"], [])  # somebody did something about it

    def test_a_changed_selector_moves_it(self):
        server = self.serve()
        self.node(server, "a", config="labels: {zone: a}\n")
        self.node(server, "b", config="labels: {zone: b}\n")
        spec = {"command": WITNESS, "env": {"W": str(self.dir)}, "stop_grace_ms": 500}
        for zone, status in (("a", 201), ("b", 200), ("a", 200)):
            self.ok(server.call("PUT", "/v1/deployments/web", {**spec, "selector": f"zone={zone}"}), status)
            eventually(f"{zone} has it", lambda: self.rows(server)["web"][0] == zone)
            self.all_run(server, 1)
        self.ok(server.call("PUT", "/v1/deployments/web", {**spec, "selector": "zone=c"}))
        eventually("it has stopped", lambda: not self.living() and self.rows(server)["web"][0] == "")
        shown = berth("deploy", "show", "web", env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"})
        self.assertIn("No node matches zone=c.", shown.stdout)
        (self.dir / "agent-b.yaml").write_text("labels: {zone: c}\n")  # a new label is as good as a new selector
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
        eventually("all run in it", lambda: self.lines("greetings") == ["hi"] * 3, 20)
        self.assertEqual(sorted(self.lines("installs")), ["@acme/web 1.0", "@acme/web 2.0"])
        broken.touch()
        self.deploy(server, "w", "exec sleep 100", package_name="@acme/web", package_version="3.0")
        eventually("it is told why it waits",
                   lambda: server.get("/v1/deployments/w/logs").body.count(b"no such version"), 20)
        broken.unlink()
        eventually("and tried again", lambda: "@acme/web 3.0" in self.lines("installs"), 20)

    def test_a_node_that_allows_none_runs_none(self):
        """Neither a deployment nor a daemon, whatever else is allowed; and what runs when that changes goes."""
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
            eventually(f"{count} run", lambda: len(self.living()) == count, 60)
            eventually("the table says so", lambda: self.rows(server)["web"][0] == ("a" if count else ""), 60)

    @unittest.skipUnless(os.geteuid() == 0, "root")
    def test_install_check_and_copy_are_not_root(self):
        """All three of a deployment are the user that work runs as; the package is its own."""
        server = self.serve()
        os.chmod(self.dir, 0o711)
        install = "[sh, -c, 'id -un > who; mkdir -m 700 inside; touch inside/file']"
        agent = self.node(server, "a", job_user="nobody", allow_root=False, packages_kept=0, packages_unused_ms=1000,
                          config=f"install_command: {install}\n")
        self.deploy(server, "web", "echo copy $(id -un) $(cat who); exec sleep 100", package_name="p", package_version="1",
                    health={"command": ["sh", "-c", "test $(id -un) = nobody && test -O who"], "interval_ms": 200, "timeout_ms": 5000})
        eventually("it runs, and is well", lambda: b"copy nobody nobody" in server.get("/v1/deployments/web/logs").body and
                   self.copy(server, "web").get("healthy") is not False and self.copy(server, "web")["state"] == "running", 30)
        self.assertEqual(agent.events("copy.unhealthy"), [])
        self.ok(server.call("DELETE", "/v1/deployments/web"))
        eventually("the package goes with its last user", lambda: not list((agent.dir / "packages").glob("p.*")) and
                   not list((agent.dir / "runs" / ".gone").iterdir()), 60)

    def copy(self, server, name, node=None):
        """What is told of a deployment's copy, or of the one on a node."""
        copies = self.ok(server.get(f"/v1/deployments/{name}"))["copies"]
        return next((copy for copy in copies if node in (None, copy["address"])), {"state": None, "reason": None, "version": None})

    def change(self, server, name, command, **spec):
        self.ok(server.call("PUT", f"/v1/deployments/{name}", {
            "command": command, "env": {"W": str(self.dir)}, "stop_grace_ms": 500, **spec}))

    def test_a_version_that_cannot_be_installed_replaces_nothing(self):
        """And holds up nobody else."""
        server = self.serve()
        self.node(server, "a", config="install_command: [sh, -c, 'test $0 != 9.9 || { echo no such version; exit 1; }', \"{version}\"]\n")
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_VERSION $$ >> {self.dir}/pids; exec sleep 100"
        for name in ("web", "api"):
            self.deploy(server, name, command, package_name="p", package_version="1.0")
        eventually("both run", lambda: len(self.lines("pids")) == 2)
        pids = {line.split()[0]: line.split()[2] for line in self.lines("pids")}
        self.change(server, "web", command, package_name="p", package_version="9.9")
        eventually("it is told", lambda: "no such version" in (self.copy(server, "web")["reason"] or ""))
        copy = self.copy(server, "web")
        self.assertEqual((copy["state"], copy["version"], str(copy["pid"])), ("updating", 1, pids["web"]))
        listed = self.ok(server.get("/v1/deployments"))["deployments"]
        self.assertEqual([(row["id"], row["copy_version"], row["version"]) for row in listed], [("api", 1, 1), ("web", 1, 2)])
        self.change(server, "api", command, package_name="p", package_version="2.0")
        eventually("another is updated meanwhile", lambda: self.copy(server, "api")["version"] == 2 and not alive(pids["api"]))
        self.assertTrue(alive(pids["web"]))
        self.change(server, "web", ["/no/such/program"])
        eventually("nor does one whose program is not there", lambda: "/no/such/program" in (self.copy(server, "web")["reason"] or ""))
        self.assertTrue(alive(pids["web"]))
        self.change(server, "web", command)
        eventually("until one can be started", lambda: self.copy(server, "web")["version"] == 4 and self.copy(server, "web")["state"] == "running")
        self.assertFalse(alive(pids["web"]))

    def test_many_are_updated_at_once(self):
        """One whose check never passes holds up nobody, and all is told when it happens, not when it is time."""
        server = self.serve(deploy_lease_ms=3600000, deploy_renew_ms=1200000)
        self.node(server, "a", claim_budget=25)
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_VERSION >> {self.dir}/starts; exec sleep 100"
        health = {"command": "true", "interval_ms": "10m"}
        names = [f"d{i:02}" for i in range(25)]
        for name in names:
            self.deploy(server, name, command, health=health)
        told = lambda version: all((self.copy(server, name)["state"], self.copy(server, name)["version"]) == ("running", version)
                                   for name in names)
        eventually("they run", lambda: told(1), 20)
        for name in names:
            self.change(server, name, command, health={**health, "start_ms": "1h"})
        eventually("all are replaced", lambda: told(2), 20)
        self.assertEqual(len(self.lines("starts")), 50)
        for name in names:  # the check of none of them has said anything yet
            self.assertIsNone(self.copy(server, name)["healthy"])

    def test_a_bad_version_of_a_daemon_stops_at_the_first_node(self):
        server = self.serve()
        for name in "abc":
            self.node(server, name)
        good = "exec sleep 100"
        self.deploy(server, "log", good, type="daemon", restart={"min_ms": 10, "max_ms": 20})
        on = lambda version, state: [copy["address"] for copy in self.ok(server.get("/v1/deployments/log"))["copies"]
                                     if copy["version"] == version and copy["state"] == state and copy["healthy"] != False]
        eventually("it runs everywhere", lambda: on(1, "running") == ["a", "b", "c"])
        self.change(server, "log", "echo oops; exit 1", type="daemon", restart={"min_ms": 10, "max_ms": 20})
        eventually("it fails on the first", lambda: self.copy(server, "log", "a")["state"] == "crash_loop")
        stopped = lambda node: (self.copy(server, "log", node)["reason"] or "").startswith(
            "The update stopped: version 2 is not well on a (crash_loop).")
        eventually("the others say why they wait", lambda: stopped("b") and stopped("c"))
        self.assertEqual(on(1, "updating"), ["b", "c"])
        self.change(server, "log", good + "0", type="daemon")
        eventually("a better one goes on", lambda: on(3, "running") == ["a", "b", "c"], 60)

    def test_an_agent_that_cannot_run_it_says_so(self):
        """As one of another version would: the row came from somewhere else."""
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "web", "exec sleep 100")
        eventually("it runs", lambda: self.copy(server, "web")["state"] == "running")
        with sqlite3.connect(self.dir / "data" / "berth.db", timeout=10) as database:
            database.execute("UPDATE deployment SET options = ?, spec_version = 2 WHERE id = 'web'",
                             (json.dumps({"health": {"command": "true", "interval_ms": 1}}),))
            database.execute("UPDATE deployment SET generation = generation + 1 WHERE id = 'web'")
            database.execute("UPDATE berth_meta SET value = value + 1")
        eventually("it is told", lambda: self.copy(server, "web")["state"] == "refused", 20)
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
            eventually(f"{name} {state}", lambda: self.copy(server, name)["state"] == state)
            self.assertEqual(shown(name)["ended"], state)
        self.assertIn("code 3", self.copy(server, "tried")["reason"])
        for name in ("again", "always"):
            eventually(f"{name} goes on", lambda: self.lines("starts").count(name) > 3)
        owner = shown("once")["address"]
        agents[owner].kill()  # neither another node takes it up, nor its own when it is back
        eventually("its others have moved", lambda: owner not in [shown(name)["address"] for name in ("again", "always")], 60)
        self.assertEqual(shown("once")["ended"], "finished")
        agents[owner] = self.node(server, owner)
        eventually("it still has it", lambda: self.copy(server, "once")["state"] == "finished" and agents[owner].events("claim.cycle"))
        self.assertEqual([self.lines("starts").count(name) for name in ("once", "tried", "done")], [1, 1, 1])
        self.ok(server.post("/v1/deployments/once/restart"))
        eventually("a new version runs once more", lambda: self.lines("starts").count("once") == 2)
        eventually("to its end", lambda: shown("once")["ended"] == "finished")

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
        eventually("it runs", lambda: self.lines("ran") == ["0"])

    def test_a_check_runs_where_its_copy_does(self):
        server = self.serve()
        self.node(server, "a", config="install_command: [sh, -c, 'printf \"#!/bin/sh\\necho nobody is there; exit 4\" > check; chmod 755 check']\n")
        self.deploy(server, "web", "exec sleep 100", package_name="p", package_version="1",
                    health={"command": "./check && test -n \"$BERTH_PACKAGE_DIR\"", "interval_ms": 200, "failures": 2})
        eventually("its words are the reason", lambda: "nobody is there" in (self.copy(server, "web")["reason"] or ""))
        self.assertIn("code 4", self.copy(server, "web")["reason"])
        eventually("after it was restarted for it too", lambda: self.copy(server, "web")["restarts"] > 1
                   and "nobody is there" in self.copy(server, "web")["reason"], 20)

    def test_limits_that_are_not_enforced_are_told(self):
        server = self.serve()
        agent = self.node(server, "a")
        self.deploy(server, "web", "exec sleep 100", limits={"memory_mb": 64})
        self.deploy(server, "free", "exec sleep 100")
        told = eventually("it is told", lambda: self.copy(server, "web").get("limits"))
        if agent.events("agent.limits_missing"):
            self.assertRegex(told, r"^(enforced|not enforced: memory_mb \(.+\))$")
        else:
            self.assertEqual(told, "enforced")
        eventually("it runs", lambda: self.copy(server, "free")["state"] == "running")
        self.assertIsNone(self.copy(server, "free")["limits"])

    def test_a_copy_that_fills_the_disk(self):
        """It is ended like one that crashed, and started again in a new directory."""
        server = self.serve()
        self.node(server, "a")
        self.deploy(server, "hog", "head -c 9000000 /dev/urandom > big; sync big; exec sleep 1000", limits={"disk_mb": 2}, stop_grace_ms=100)
        copy = eventually("it was ended for it", lambda: (copy := self.copy(server, "hog")).get("restarts") and copy, 60)
        self.assertIn("more than its limit of 2097152 bytes", str(copy))
        self.assertEqual(copy["limits"], "enforced")

    def test_a_machine_in_danger_claims_nothing(self):
        server = self.serve()
        agent = self.node(server, "a")
        agent.machine.memory(free_percent=15)
        eventually("it is in danger", lambda: server.node("a")["level"] == "danger")
        self.deploy(server, "web")
        eventually("it says why not", lambda: agent.log.count("result=level") > 2, 20)
        self.assertEqual(self.rows(server)["web"], ("", 0))
        self.node(server, "b")
        self.assertEqual(self.all_run(server, 1), {"web": ("b", 1)})
        self.assertSlots(server, "b", 0, 0)  # it takes no job's slot

    def crowd(self, **settings):
        """200 deployments on three agents, all settings as they come: how long until all run, and after a node's death?"""
        server = self.start(**settings)
        agents = {name: self.agent(server, name) for name in "abc"}
        command = f"echo $BERTH_DEPLOYMENT_ID $BERTH_NODE_ID $$ >> {self.dir}/up; exec sleep 1000"
        told = lambda: sum(row["state"] == "running" for row in
                           self.ok(server.get("/v1/deployments?limit=1000"))["deployments"])
        begun = time.monotonic()
        with server.client() as client:
            for i in range(200):
                body = {"command": command, "env": {"W": str(self.dir)}}
                self.assertEqual(client.call("PUT", f"/v1/deployments/d{i:03}", body).status, 201)
        applied = time.monotonic() - begun
        eventually("all run", lambda: len(self.lines("up")) == 200, 400)
        run = time.monotonic() - begun
        eventually("all are told", lambda: told() == 200, 60)
        status, counts = time.monotonic() - begun, self.counts(server)
        agents["c"].kill()
        begun = time.monotonic()
        moved = counts["c"]
        eventually("all run again", lambda: len(self.lines("up")) == 200 + moved, 400)
        again, after = time.monotonic() - begun, self.counts(server)
        print(f"200 deployments on 3 agents: applied in {applied:.1f} s, run after {run:.1f} s, told after {status:.1f} s, "
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
        eventually("all run", lambda: len(self.lines("up")) == 500, 60)
        took = time.monotonic() - begun
        print(f"500 deployments on 5 agents: {took:.1f} s, {dict(self.counts(server))}", flush=True)
        self.assertLess(took, 60)
        self.assertEqual(len(set(self.lines("up"))), 500)
