"""Deployments of several copies on real agents: spread over the nodes, each copy with an index that never runs twice, whatever is killed or
cut off."""
import collections
import contextlib
import json
import os
import re
import signal
import socket
import time
import unittest

import postgres
from harness import SLOW, berth, eventually, tags
from redis import free_port
from relay import Relay
from test_claim import ClaimCase

# Every copy holds the lock of its index as long as it lives, and writes its start and stop to the log.
WITNESS = """me="$BERTH_DEPLOYMENT_ID $BERTH_INDEX $BERTH_GENERATION $BERTH_NODE_ID $$"
exec 9>>"$W/lock.$BERTH_DEPLOYMENT_ID.$BERTH_INDEX"
if ! flock -n 9; then echo "OVERLAP $me" >> "$W/log"; exit 9; fi
echo "start $me" >> "$W/log"
trap 'echo "stop $me" >> "$W/log"; exit 0' TERM
while :; do sleep 0.2 9>&-; done"""

Start = collections.namedtuple("Start", "id index generation node pid")


class ReplicaCase(ClaimCase):
    lease_ms = 3000
    interval_ms = 300

    def cluster(self, server, names):
        self.wires, agents = {}, {}
        for name in names:
            self.wires[name] = Relay(server.port)
            self.addCleanup(self.wires[name].close)
            agents[name] = self.node(self.wires[name].url, name)
        eventually("all nodes are members", lambda: len(server.get("/v1/terminals").json["terminals"]) == len(names), 60)
        for agent in agents.values():
            eventually(f"{agent.node_id} knows of all nodes", lambda: f"nodes={len(names)} " in agent.log, 60)
        return agents

    def starts(self):
        """All starts so far. Fails if two copies of one index ever ran at once."""
        lines = [line.split() for line in self.lines("log")]
        self.assertEqual([line for line in lines if line[0] == "OVERLAP"], [])
        return [Start(*line[1:]) for line in lines if line[0] == "start"]

    def cli(self, server, *args, code=0):
        done = berth(*args, env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"})
        self.assertEqual(done.returncode, code, f"berth {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
        return done

    def kill_node(self, agent):
        """Kills the agent and everything that runs on its node with SIGKILL."""
        _, *runs = self.tree_of(agent.node_id)
        agent.kill()
        for pid in runs:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile, or with its shim
                os.kill(pid, signal.SIGKILL)

    def put(self, server, name, status=201, command=WITNESS, **spec):
        return self.ok(server.call("PUT", f"/v1/deployments/{name}",
                                   {"command": command, "env": {"W": str(self.dir)}, "stop_grace_ms": 500, **spec}), status)

    def copies(self, server, name):
        """{index: (node, generation)} in the table."""
        found = self.ok(server.get(f"/v1/deployments/{name}"))
        return {copy["index"]: (copy["address"], copy["generation"]) for copy in found["copies"]}

    def settled(self, server, name, count, seconds=90):
        """Waits until each index runs once, on the node and in the generation that the table says."""
        def all_run():
            table = self.copies(server, name)
            living = [start for start in self.living() if start.id == name]
            return len(living) == count and table == {
                int(start.index): (start.node, int(start.generation)) for start in living} and table

        return eventually(f"{count} copies of {name} run once each, where the table says", all_run, seconds)


class Copies(ReplicaCase):
    @tags("load")
    def test_three_on_three_nodes(self):
        server = self.serve()
        agents = self.cluster(server, "abc")
        self.put(server, "web", count=3)
        first = self.settled(server, "web", 3)
        self.assertEqual(sorted(first), [0, 1, 2])
        self.assertEqual({node for node, _ in first.values()}, set("abc"), "each node must have one copy")
        self.assertEqual(len(self.starts()), 3, "each copy must be started once")
        eventually("all copies are ready", lambda: re.search(r"web +deployment +3 of 3 ready", self.cli(server, "deploy", "ls").stdout))
        # One copy by its name.
        self.assertIn("created", self.cli(server, "deploy", "history", "web#1").stdout)
        self.assertIn("web#1", self.cli(server, "deploy", "show", "web#1").stdout)
        self.cli(server, "deploy", "logs", "web#1")
        self.cli(server, "deploy", "restart", "web#1", code=3)
        # Scaling up and down does not touch the copies that stay.
        self.cli(server, "deploy", "scale", "web", "5")
        five = self.settled(server, "web", 5)
        self.assertEqual({index: five[index] for index in first}, first)
        self.assertEqual(sorted(collections.Counter(node for node, _ in five.values()).values()), [1, 2, 2])
        self.cli(server, "deploy", "scale", "web", "3")
        self.assertEqual(self.settled(server, "web", 3), first)
        # A node is killed with everything that runs on it.
        gone = next(index for index, (node, _) in first.items() if node == "c")
        self.kill_node(agents["c"])
        second = eventually("the killed node's index has moved",
                            lambda: (table := self.settled(server, "web", 3))[gone][0] in ("a", "b") and table, 90)
        self.assertEqual({index: second[index] for index in second if index != gone},
                         {index: first[index] for index in first if index != gone})
        self.assertGreater(second[gone][1], first[gone][1])

    @tags("load")
    def test_no_index_twice_over_partitions(self):
        server = self.serve()
        self.cluster(server, "abc")
        self.put(server, "web", count=3)
        before = self.settled(server, "web", 3)
        for name in "abca":
            moved = [index for index, (node, _) in before.items() if node == name]
            self.wires[name].cut()
            if moved:
                eventually("the copies of the node run elsewhere", lambda: all(
                    node not in (name, None) for node, _ in self.copies(server, "web").values()), 90)
            after = self.settled(server, "web", 3)
            for index in moved:
                self.assertGreater(after[index][1], before[index][1])
            self.wires[name].heal()
            eventually("all nodes are members again", lambda: len(server.get("/v1/terminals").json["terminals"]) == 3, 90)
            before = self.settled(server, "web", 3)
        self.assertGreater(len(self.starts()), 3)


class Updates(ReplicaCase):
    """One copy after the other, as long as the new version is healthy."""

    def versions(self, server, name="web"):
        return [copy["version"] for copy in self.ok(server.get(f"/v1/deployments/{name}"))["copies"]]

    def update_of(self, server):
        return self.ok(server.get("/v1/deployments/web")).get("update", {}).get("state")

    @tags("load")
    def test_a_good_version_goes_round(self):
        server = self.serve()
        self.cluster(server, "abc")
        self.put(server, "web", count=3)
        self.settled(server, "web", 3)
        eventually("all copies are ready", lambda: "3 of 3 ready" in self.cli(server, "deploy", "ls").stdout)
        changed = self.put(server, "web", 200, env={"W": str(self.dir), "NEW": "1"})
        self.assertEqual((changed["count"], changed["update"]["state"], changed["update"]["good_version"]), (3, "rolling", 1))
        least = 3

        def over():
            nonlocal least
            living = {start.index for start in self.living()}
            least = min(least, len(living))
            return self.update_of(server) is None and self.versions(server) == [2, 2, 2]

        eventually("all copies run the new version", over, 90)
        self.assertGreaterEqual(least, 2, "more than one copy was replaced at a time")
        self.settled(server, "web", 3)
        order = [start.index for start in self.starts()][3:]
        self.assertEqual(order, ["0", "1", "2"])
        # An operator goes back to version 1.
        self.assertIn("goes back to version 1", self.cli(server, "deploy", "rollback", "web").stdout)
        eventually("all copies run version 1 again", lambda: self.update_of(server) is None and self.versions(server) == [1, 1, 1], 90)

    @tags("load")
    def test_a_bad_version_stops_and_goes_back_by_itself(self):
        self.bad_version()

    @tags("load")
    @unittest.skipUnless(postgres.programs(), "no PostgreSQL here")
    def test_the_same_with_postgresql(self):
        pg = postgres.Postgres(self.dir)
        self.addCleanup(pg.close)
        self.bad_version(database=pg.url)

    def bad_version(self, **settings):
        server = self.serve(**settings)
        for name in "abcd":
            self.node(server, name, restart_min_ms=3000, restart_max_ms=3000)
        self.put(server, "web", count=4, max_unavailable=2)
        self.settled(server, "web", 4)
        eventually("all copies are ready", lambda: "4 of 4 ready" in self.cli(server, "deploy", "ls").stdout)
        before = self.copies(server, "web")
        pids = {start.index: start.pid for start in self.living()}
        self.put(server, "web", 200, command=f'echo "$BERTH_INDEX" >> {self.dir}/bad; exit 3', count=4, max_unavailable=2)
        eventually("the update is rolled back", lambda: self.update_of(server) == "rolled_back", 90)
        eventually("all copies run the good version on their nodes", lambda: self.settled(server, "web", 4) == before, 90)
        bad = set(self.lines("bad"))
        self.assertTrue(bad and len(bad) <= 2, f"at most max_unavailable copies may run the bad version: {bad}")
        # One of the two may have been stopped for the new version and restarted with the old one before it ran the new one.
        replaced = {start.index for start in self.living() if start.pid != pids[start.index]}
        self.assertTrue(bad <= replaced and len(replaced) <= 2, f"replaced {replaced}, but only {bad} ran the bad version")
        shown = self.cli(server, "deploy", "show", "web").stdout
        self.assertIn("Update: rolled_back, 4 of 4 copies run version 1. Version 2 is not well: index", shown)
        self.assertIn("rolled back", self.cli(server, "deploy", "history", "web").stdout)
        # A health check that never passes is a failure as well.
        self.put(server, "web", 200, count=4, max_unavailable=1, env={"W": str(self.dir), "V": "3"},
                 health={"command": "exit 1", "interval_ms": 100, "failures": 2})
        eventually("the second update is rolled back",
                   lambda: self.update_of(server) == "rolled_back" and self.versions(server) == [1, 1, 1, 1], 90)


class Services(ReplicaCase):
    """Where copies listen: in the server's answers, and in a file on each node."""

    def where(self, server, name="web"):
        return {copy["index"]: (copy["node"], copy["port"])
                for copy in self.ok(server.get(f"/v1/services/{name}"))["copies"]}

    def in_file(self, name, service="web"):
        try:
            known = json.loads((self.dir / f"agent-{name}" / "services.json").read_text())
        except OSError:
            return None
        return {copy["index"]: (copy["node"], copy["port"]) for copy in known["services"].get(service, [])}

    @tags("load")
    def test_ports_answers_and_files(self):
        server = self.serve()
        first = free_port()
        agents = {}
        self.wires = {}
        for name, ports in zip("abc", (first, first + 16, first + 32)):
            self.wires[name] = Relay(server.port)
            self.addCleanup(self.wires[name].close)
            # Each agent has its own ports: otherwise agents on one machine would give the same port to two copies that do not listen yet.
            agents[name] = self.node(self.wires[name].url, name, port_min=ports, port_max=ports + 15, services_interval_ms=200,
                                     service_address="127.0.0.1")
        for agent in agents.values():
            eventually(f"{agent.node_id} knows of all nodes", lambda: "nodes=3 " in agent.log, 60)
        self.problem(server.get("/v1/services/web"), 404, "NOT_FOUND")
        self.put(server, "web", count=3, command='cd "$W" && exec python3 -m http.server --bind 127.0.0.1 "$BERTH_PORT"',
                 health={"http": "http://127.0.0.1:$BERTH_PORT/", "interval_ms": 200, "start_ms": 60000})
        eventually("all copies are ready", lambda: "3 of 3 ready" in self.cli(server, "deploy", "ls").stdout, 90)
        known = self.where(server)
        self.assertEqual(({node for node, _ in known.values()}, sorted(known)), (set("abc"), [0, 1, 2]))
        self.assertEqual(len({port for _, port in known.values()}), 3, "on one machine every copy needs its own port")
        copies = self.ok(server.get("/v1/services/web"))["copies"]
        self.assertEqual({(copy["address"], copy["healthy"], copy["version"]) for copy in copies}, {("127.0.0.1", True, 1)})
        for _, port in known.values():
            socket.create_connection(("127.0.0.1", port), 10).close()
        for name in "abc":
            eventually(f"the file of {name} has the server's list", lambda: self.in_file(name) == known, 60)
        # A dead node is not listed any more once its lease has ended.
        gone = next(index for index, (node, _) in known.items() if node == "c")
        self.kill_node(agents["c"])
        killed = time.monotonic()
        lease = self.lease_ms * SLOW / 1000
        asked = 0
        while asked <= killed + lease + 1:
            asked = time.monotonic()
            named = self.where(server).get(gone)
            if asked > killed + lease:
                self.assertNotEqual(named, known[gone], "the server lists a dead copy after its lease has ended")
            time.sleep(0.05)
        eventually("the copy is listed on another node", lambda: self.where(server).get(gone, ("c",))[0] in ("a", "b"), 90)
        eventually("the files have the server's list", lambda: self.in_file("a") == self.in_file("b") == self.where(server), 60)
        # A node that is cut off does not go on listing copies.
        self.wires["a"].cut()
        eventually("the file of the cut-off node is empty", lambda: self.in_file("a") == {}, 90)
        self.wires["a"].heal()
        eventually("the file of the node has the server's list again",
                   lambda: self.in_file("a") == self.where(server) and len(self.where(server)) == 3, 90)
