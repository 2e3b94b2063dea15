"""Several instances on one Redis: any client and any node may use any of them."""
import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time

import wsclient
from fleet import Submitter, Worker
from harness import SLOW, Case, Events, Listener, Node, WsNode, berth, eventually, freeze, tags
from redis import Cluster, Redis
from relay import CallRelay, EarRelay
from test_agent import Agent


class Instances(Case):
    """Three instances, numbered 0 to 2, on one Redis."""

    count = 3

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.all = [self.instance(i) for i in range(self.count)]
        eventually("every instance has subscribed", lambda: self.listeners() == self.count)

    def instance(self, number, **settings):
        return self.start(f"data{number}", store=self.redis.url, **settings)

    def listeners(self):
        return int(self.redis.say("PUBSUB", "NUMSUB", "sched:{f}:ev").split()[-1])

    def views(self, node_ids):
        """Whether every running instance shows exactly these nodes."""
        want = sorted(node_ids)
        return all([node["node_id"] for node in server.get("/v1/nodes?limit=1000").json["nodes"]] == want
                   for server in self.all if server.process.poll() is None)

    def empty(self, server, node_id):
        """Waits, because counts that changed through another instance are read once a second."""
        eventually(f"no slot of {node_id} is taken", lambda: server.slots(node_id) == (0, 0))


class Stops(Instances):
    def test_a_job_is_on_its_way_to_a_node_of_another(self):
        """The job came out of the queue, so no request owns it: when its instance stops, the job's slot is given back all the same."""
        a, b, _ = self.all
        node = WsNode(b, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        self.ok(a.post("/v1/nodes/n1/cordon"))
        job = self.ok(self.task(a, queue_ms=600000), 202)["job_id"]
        freeze(b.process)
        self.ok(a.post("/v1/nodes/n1/undrain"))
        eventually("the job is on its way to the node", lambda: a.job(job)["state"] == "DISPATCHED")
        self.assertEqual(a.stop(), 0)
        a.check_log()
        b.process.send_signal(signal.SIGCONT)
        node.close()


class Nodes(Instances):
    def test_what_happens_to_a_node_is_seen_everywhere(self):
        a, b, c = self.all
        node = Node(a, "n1", labels={"zone": "x"})
        eventually("all instances know n1", lambda: self.views(["n1"]))
        self.assertEqual(c.node("n1")["labels"], {"zone": "x"})
        node.server = b
        node.register(max_concurrent_jobs=7)
        eventually("all instances show max 7", lambda: all(s.node("n1")["max"] == 7 for s in self.all))
        node.server = a
        self.ok(node.heartbeat(max_concurrent_jobs=5))  # A knew the value 5 before; the others did not
        eventually("all instances show max 5", lambda: all(s.node("n1")["max"] == 5 for s in self.all))
        self.ok(c.post("/v1/nodes/n1/drain", {"reason": "disk"}))
        eventually("all instances show n1 draining", lambda: all(s.node("n1")["health"] == "draining" for s in self.all))
        self.ok(b.post("/v1/node/deregister", {"node_id": "n1"}))
        eventually("no instance shows n1 any more", lambda: self.views([]))
        delay = [s.metrics()["berth_pool_consistency_delay_seconds_count"] for s in self.all]
        self.assertTrue(all(count > 1 for count in delay), delay)

    def test_what_a_node_has_loaded_is_known_everywhere(self):
        a, b, c = self.all
        facts = {"allowed_types": ["*"], "max_concurrent_jobs": 50}
        nodes = [Node(a, f"n{number}", **facts) for number in range(4)]
        eventually("all instances know the nodes", lambda: self.views([node.id for node in nodes]))
        versions = [s.node("n2")["version"] for s in self.all]
        self.ok(nodes[2].heartbeat(loaded=["whisper-v3"]))
        eventually("all instances show what n2 has loaded", lambda: all(s.node("n2")["loaded"] == ["whisper-v3"] for s in self.all))
        self.assertEqual(self.ok(c.post("/v1/dispatch/task", {"type": "dev", "prefers": ["whisper-v3"]}))["node_id"], "n2")
        self.ok(nodes[2].heartbeat(loaded=[]))
        eventually("all instances show that n2 has nothing loaded", lambda: all(s.node("n2")["loaded"] == [] for s in self.all))
        self.assertEqual([s.node("n2")["version"] for s in self.all], versions, "the node's record was written")

    @tags("long")
    def test_a_node_that_beats_at_one_is_alive_for_all(self):
        settings = {name: int(ms * SLOW) for name, ms in
                    dict(heartbeat_ms=1000, heartbeat_stale_ms=4000, view_drop_ms=4000, lost_grace_ms=1000).items()}
        for server in self.all:
            server.stop()
        self.all = [self.instance(f"b{i}", **settings) for i in range(3)]
        a, b, c = self.all
        node = Node(a, "n1", max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        until = time.monotonic() + 6 * SLOW  # longer than a node may be silent
        while time.monotonic() < until:
            self.ok(node.heartbeat())
            self.assertEqual(b.node("n1")["health"], "ready")
            self.assertEqual(c.node("n1")["health"], "ready")
            time.sleep(0.2)
        def placed():
            self.ok(node.heartbeat())
            answer = self.dispatch(c)  # its heartbeats are fresh enough for C, which gets none itself
            return answer if answer.status == 200 else None

        self.assertEqual(eventually("C places a job on n1", placed)["node_id"], "n1")
        # All instances notice its silence.
        eventually("all instances show n1 offline", lambda: all(s.node("n1")["health"] == "offline" for s in self.all))
        Node(a, "n2")
        eventually("all instances know n2", lambda: all(s.get("/v1/nodes/n2").status == 200 for s in self.all))
        self.assertTrue(all(s.node("n1")["health"] == "offline" for s in self.all))
        self.ok(node.heartbeat())
        eventually("all instances show n1 ready", lambda: all(s.node("n1")["health"] == "ready" for s in self.all))

    def test_an_emptied_store_is_seen_by_all(self):
        nodes = [Node(self.all[i % 3], f"n{i}") for i in range(6)]
        eventually("all instances know the nodes", lambda: self.views([node.id for node in nodes]))
        for _ in range(30):
            self.all[0].post("/v1/nodes/n0/drain")  # order and version numbers rise
            self.all[1].post("/v1/nodes/n0/undrain")
        self.redis.say("FLUSHALL")
        eventually("no instance shows a node", lambda: self.views([]))
        for node in nodes[:3]:
            eventually(f"{node.id} can register again", lambda: node.register().status == 200)
        eventually("all instances show the three nodes", lambda: self.views(["n0", "n1", "n2"]))
        self.ok(self.all[2].post("/v1/nodes/n1/drain"))
        eventually("all instances show n1 draining", lambda: all(s.node("n1")["health"] == "draining" for s in self.all))

    def test_connections_of_pub_sub_killed_while_nodes_join_and_leave(self):
        stop = threading.Event()

        def cut():
            while not stop.is_set():
                self.redis.say("CLIENT", "KILL", "TYPE", "pubsub")
                time.sleep(0.02)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            for i in range(40):
                Node(self.all[i % 3], f"n{i:02}")
                if i % 4 == 3:
                    self.ok(self.all[(i + 1) % 3].post("/v1/node/deregister", {"node_id": f"n{i - 1:02}"}))
        finally:
            stop.set()
            thread.join()
        want = [f"n{i:02}" for i in range(40) if i % 4 != 2]
        eventually("all instances show the same nodes as the store", lambda: self.views(want))  # class Deaf measures how soon
        for server in self.all:
            eventually("no instance lags behind", lambda: server.metrics()["berth_instance_version_lag"] == 0)


    def test_all_show_the_version_of_its_record(self):
        """Also when nothing changed in what the node declares."""
        node = Node(self.all[0], "n1")
        self.ok(node.heartbeat(health="degraded"))
        dump = berth("store", "dump", "--store", self.redis.url, "-o", "json")
        (stored,) = json.loads(dump.stdout)["nodes"]
        self.assertGreater(stored["version"], 1)
        eventually("all instances show the version in the store", lambda: self.views(["n1"]) and
                   {server.node("n1")["version"] for server in self.all} == {stored["version"]})


class Deaf(Instances):
    """Between each instance and Redis is a relay that can cut pub/sub while calls pass."""

    def setUp(self):
        Case.setUp(self)
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.wires = [EarRelay(self.redis.port) for _ in range(self.count)]
        for wire in self.wires:
            self.addCleanup(wire.close)
        self.all = [self.start(f"data{i}", store=f"redis://127.0.0.1:{wire.port}/0") for i, wire in enumerate(self.wires)]

    def stored(self):
        """{node: (version, max)} in the store itself."""
        done = berth("store", "dump", "--store", self.redis.url, "-o", "json")
        return {node["node_id"]: (node["version"], node["max"]) for node in json.loads(done.stdout)["nodes"]}

    def viewed(self, server):
        nodes = server.get("/v1/nodes?limit=1000").json["nodes"]
        return {node["node_id"]: (node["version"], node["max"]) for node in nodes}

    def come_and_go(self, until):
        """Nodes join, change and leave at every instance: more than a hundred, and at least until that time."""
        number = 0
        while time.monotonic() < until or number <= 100:
            at = self.all[number % 3]
            node = Node(at, f"n{number:04}", max_concurrent_jobs=1 + number % 5)
            if number % 3 == 1:
                node.server = self.all[(number + 1) % 3]
                self.ok(node.register(max_concurrent_jobs=9))
            if number % 4 == 3:
                self.ok(self.all[(number + 2) % 3].post("/v1/node/deregister", {"node_id": f"n{number - 1:04}"}))
            number += 1
            time.sleep(0.02)
        return number

    def delays(self, server):
        """Changes that were not announced were found by the next look, and their delay is measured from the change, not from the last
        message."""
        values = server.metrics()
        name = "berth_pool_consistency_delay_seconds"
        count = values[f"{name}_count"]
        self.assertGreater(count, 10)
        most = "2.5" if SLOW == 1 else "5"
        self.assertEqual(values[f'{name}_bucket{{le="{most}"}}'], count)
        self.assertLess(values[f'{name}_bucket{{le="0.1"}}'], count)

    @tags("alone")
    def test_pub_sub_cut_while_nodes_join_and_leave(self):
        Node(self.all[0], "first")
        eventually("all instances know the first node", lambda: self.views(["first"]))
        eventually("all instances have subscribed", lambda: self.listeners() == 3)
        for wire in self.wires:
            wire.cut()
        count = self.come_and_go(time.monotonic() + 10)
        eventually("pub/sub of every instance is cut", lambda: all(any(pair.lost for pair in wire.pairs) for wire in self.wires))
        healed = time.monotonic()
        for wire in self.wires:
            wire.heal()
        want = self.stored()
        eventually("all instances show what the store has", lambda: all(self.viewed(server) == want for server in self.all), 1)
        took = time.monotonic() - healed
        eventually("all instances have subscribed again", lambda: self.listeners() == 3)
        print(f"views equal the store {took * 1000:.0f} ms after the heal, {count} nodes came", flush=True)
        self.assertEqual(self.stored(), want)
        for server in self.all:
            self.delays(server)
        Node(self.all[1], "last")
        eventually("all instances know the last node", lambda: all("last" in self.viewed(server) for server in self.all))


class HandOver(Instances):
    @tags("threads")
    def test_a_socket_elsewhere_gets_its_job(self):
        a, b, c = self.all
        node = WsNode(b, "n1", max_concurrent_jobs=4)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        for server in (a, b, c):
            job = self.placed(server)
            message = node.expect("job", job_id=job["job_id"])
            self.assertEqual(message["audio_ref"], "blob://a")
            self.assertTrue(node.report("ack", message)["ok"])
            self.assertTrue(node.report("done", message, result={"at": server.port})["ok"])
            self.assertEqual(self.state_of(a, job, "DONE")["result"], {"at": server.port})
        self.empty(c, "n1")
        node.close()

    def test_ids_of_all_instances_differ(self):
        Node(self.all[0], "n1", max_concurrent_jobs=1000)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        ids = [self.placed(self.all[i % 3])["job_id"] for i in range(120)]
        self.assertEqual(len(set(ids)), 120)

    def test_a_poll_elsewhere_gets_its_job(self):
        a, b, c = self.all
        node = Node(a, "n1", max_concurrent_jobs=9)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        # The job was put into a box at C before the node had polled anywhere; the node polls at B.
        first = self.placed(c)
        node.server = b
        jobs = eventually("the node gets the first job at B", lambda: node.poll("1s"))
        self.assertEqual([job["job_id"] for job in jobs], [first["job_id"]])
        second = self.placed(a)
        jobs = eventually("the node gets the second job at B", lambda: node.poll("1s"))
        self.assertEqual([job["job_id"] for job in jobs], [second["job_id"]])
        for job in (first, second):
            self.ok(node.ack(job))
            self.ok(node.done(job))
        self.empty(a, "n1")

    def emptied(self, node):
        """Empties the store; then the node registers again, and all instances know it."""
        self.redis.say("FLUSHALL")
        eventually("no instance shows the node", lambda: self.views([]))
        eventually("the node can register again", lambda: node.register().status == 200)
        self.ok(node.heartbeat(running_jobs=[]))
        eventually("all instances know n1 again", lambda: self.views(["n1"]))

    def placed_again(self, server):
        """A dispatch, once the nodes have reported what they run."""
        answer = eventually("a job is placed", lambda: next((a for a in [self.dispatch(server)] if a.status != 503), None))
        return self.ok(answer)

    def test_a_poll_after_the_store_was_emptied_gets_the_jobs_of_all(self):
        """The store also lost where the node polls: the instance that places a job must learn it again."""
        a, b, _ = self.all
        node = Node(a, "n1", max_concurrent_jobs=9)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        self.assertEqual(node.poll("0s"), [])
        self.emptied(node)
        job = self.placed_again(b)
        jobs = eventually("the node gets the job at A", lambda: node.poll("1s"), 10)
        self.assertEqual([job["job_id"] for job in jobs], [job["job_id"]])

    def test_a_poll_that_waits_while_the_store_is_emptied_gets_the_jobs_of_all(self):
        a, b, _ = self.all
        node = Node(a, "n1", max_concurrent_jobs=9)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        came = []
        poll = threading.Thread(target=lambda: came.extend(node.poll("50s")))
        poll.start()
        eventually("the store knows that the node polls at A", lambda: b" 2 " in self.redis.say("HGET", "sched:{f}:links", "n1").encode())
        self.emptied(node)
        job = self.placed_again(b)
        poll.join(20 * SLOW)
        self.assertEqual([job["job_id"] for job in came], [job["job_id"]])

    def test_the_last_connection_counts_on_every_instance(self):
        a, b, c = self.all
        old = WsNode(a, "n1")
        new = WsNode(b, "n1")
        self.assertEqual(old.closed(), 4001)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        job = self.placed(c)
        self.assertEqual(new.expect("job")["job_id"], job["job_id"])
        reply = new.report("ack", job)
        self.assertTrue(reply.get("ok"), reply)
        self.assertTrue(new.report("done", job)["ok"])
        new.close()
        eventually("no dispatch is sent to the node", lambda: self.dispatch(c).status == 503)

    def test_who_waits_at_one_hears_of_an_end_at_another(self):
        a, b, c = self.all
        node = WsNode(b, "n1")
        eventually("all instances know n1", lambda: self.views(["n1"]))
        job = self.placed(a)
        message = node.expect("job")
        shown = []
        waits = [threading.Thread(target=lambda s=s: shown.append(s.job(job["job_id"], wait="25s"))) for s in (a, c)]
        for thread in waits:
            thread.start()
        self.assertTrue(node.report("ack", message)["ok"])
        begun = time.monotonic()
        self.assertTrue(node.report("done", message)["ok"])
        for thread in waits:
            thread.join()
        self.assertEqual([job["state"] for job in shown], ["DONE", "DONE"])
        self.assertLess(time.monotonic() - begun, 20)  # the waits did not simply run out
        node.close()

    @tags("threads")
    def test_events_show_the_whole_cluster(self):
        a, b, c = self.all
        node = WsNode(b, "n1")
        eventually("all instances know n1", lambda: self.views(["n1"]))
        events = Events(c)
        eventually("the event stream has begun", lambda: any(name == "hello" for name, _ in events.seen))
        def all_of_it():
            job = self.placed(a)
            message = node.expect("job", job_id=job["job_id"])
            node.report("ack", message)
            node.report("done", message)
            def seen():
                what = [data["what"] for name, data in events.seen
                        if name == "job" and data["job_id"] == job["job_id"]]
                return what if "done" in what else None
            try:
                return eventually("the end of the job arrives as an event", seen, 3)
            except AssertionError:
                return []  # A did not know yet that C wants events; it does for the next job
        eventually("all three events of a job arrive", lambda: sorted(all_of_it()) == ["acked", "dispatched", "done"])
        self.ok(a.post("/v1/nodes/n1/drain"))
        eventually("an event of a node arrives", lambda: any(name == "node" for name, _ in events.seen))
        events.close()
        node.close()

    def test_cancel_and_questions_cross(self):
        a, b, c = self.all
        node = WsNode(b, "n1")
        eventually("all instances know n1", lambda: self.views(["n1"]))
        job = self.placed(a)
        message = node.expect("job")
        self.assertTrue(node.report("ack", message)["ok"])
        self.ok(c.post(f"/v1/jobs/{job['job_id']}/cancel"))
        self.assertEqual(node.expect("cancel")["job_id"], job["job_id"])
        self.assertTrue(node.report("done", message)["ok"])
        self.empty(a, "n1")

        answers = []
        asker = threading.Thread(target=lambda: answers.append(a.post("/v1/nodes/n1/rpc/NodeUnit/InspectResourceUsage")))
        asker.start()
        question = node.expect("rpc")
        node.send("rpc_reply", re=question["id"], result={"cpu_percent": 3})
        asker.join()
        self.assertEqual(self.ok(answers[0]), {"cpu_percent": 3})
        node.close()
        eventually("a question to a node without a connection is refused", lambda: a.post("/v1/nodes/n1/rpc/NodeUnit/X").status == 409)

    def test_room_that_becomes_free_elsewhere_is_used_at_once(self):
        a, b, c = self.all
        node = WsNode(b, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        eventually("all instances know n1", lambda: self.views(["n1"]))
        self.ok(self.task(a))
        message = node.expect("job")
        node.report("ack", message)
        waiting = self.ok(self.task(c, queue_ms=30000), 202)
        eventually("Redis answers PING", lambda: self.redis.say("PING"))
        node.report("done", message)
        message = node.expect("job")
        self.assertEqual(message["job_id"], waiting["job_id"])
        node.report("ack", message)
        node.report("done", message)
        node.close()


class Queue(Instances):
    """No instance owns a waiting job: the store keeps its order and its life."""

    def waits(self, server, **fields):
        answer = server.post("/v1/dispatch/task", {"type": "dev", "queue_ms": 600000, **fields})
        self.assertEqual(answer.status, 202, str(answer))
        return answer.json["job_id"]

    def busy(self):
        """A node with one slot, which is taken, and the job that has it."""
        node = Node(self.all[0], "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        self.ok(self.task(self.all[0]))
        (running,) = node.poll()
        self.ok(node.ack(running))
        return node, running

    def all_know(self, count):
        """Waits until all instances know the waiting jobs: an instance that does not know the first one would place another."""
        for server in self.all:
            if server.process.poll() is None:
                self.assertQueue(server, count)

    def next_of(self, node, running):
        self.ok(node.done(running))
        (job,) = eventually("the node gets the next job", node.poll)
        self.ok(node.ack(job))
        return job

    def test_one_order(self):
        """By priority, then by age, at whichever instance they were submitted."""
        node, running = self.busy()
        a, b, c = self.all
        low = [self.waits(server, priority=1) for server in (b, a, c, a, b)]
        high = [self.waits(server, priority=9) for server in (c, a, b)]
        middle = [self.waits(server, priority=5) for server in (b, c)]
        expected = [*sorted(high), *sorted(middle), *sorted(low)]
        self.all_know(len(expected))
        came = []
        for _ in expected:
            running = self.next_of(node, running)
            came.append(running["job_id"])
        self.assertEqual(came, expected)

    def test_an_instance_dies_and_nothing_is_handed_over(self):
        node, running = self.busy()
        jobs = [self.waits(self.all[2]) for _ in range(3)]
        self.all[2].kill()
        self.all_know(len(jobs))
        begun = time.monotonic()
        for _ in jobs:
            running = self.next_of(node, running)
        self.assertEqual(running["job_id"], max(jobs))
        print(f"three jobs of a dead instance came within {time.monotonic() - begun:.1f} s", flush=True)

    def test_one_bound(self):
        """queue_max counts the waiting jobs of all instances."""
        for server in self.all:
            self.assertEqual(server.stop(), 0)
        self.all = [self.instance(f"bound{i}", queue_max=4) for i in range(self.count)]
        self.busy()
        for i in range(4):
            self.waits(self.all[i % 3])
        for server in self.all:
            self.problem(server.post("/v1/dispatch/task", {"type": "dev", "queue_ms": 60000}), 429, "QUEUE_FULL")


class Why(Instances):
    def test_any_instance_explains_what_another_decided(self):
        one, two, three = self.all
        Node(one, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        job = self.ok(one.post("/v1/dispatch/task", {"type": "dev"}))
        refused = two.post("/v1/dispatch/task", {"type": "dev"})
        self.assertEqual(refused.status, 503, str(refused))
        for server in self.all:  # an instance that is busy for long is left out of the answer
            decisions = eventually("the decision that placed the job is shown",
                                   lambda: self.ok(server.get(f"/v1/jobs/{job['job_id']}/explain"))["decisions"])
            self.assertEqual([(d["outcome"], d["node_id"], d["pool_id"]) for d in decisions], [("PLACED", "n1", "type:dev")])
            found = eventually("the refused job is explained", lambda: (answer := server.get(refused["explain"])).status == 200 and answer)
            self.assertEqual([node["reason"] for node in found["decisions"][0]["nodes"]], ["FULL"])
        self.problem(three.get("/v1/jobs/j0000000000000/explain"), 404, "NOT_FOUND")
        # A frozen instance does not delay the answer for long.
        freeze(two.process)
        self.addCleanup(two.process.send_signal, signal.SIGCONT)
        answer = eventually("the other instances answer", lambda: self.ok(
            answer := three.get(f"/v1/jobs/{job['job_id']}/explain"))["decisions"] and answer)
        self.assertEqual(len(answer["decisions"]), 1)
        self.assertLess(answer.seconds, 20 * SLOW)
        two.process.send_signal(signal.SIGCONT)


class Deaths(Instances):
    def test_a_job_sent_by_a_dead_instance_comes_back(self):
        """The job was put into the box of a node that never polls, and the box is lost with its instance."""
        a, b, c = self.all
        brief = self.instance("brief", reservation_ttl_ms=5000)
        self.all.append(brief)
        node = Node(a, "n1", max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        job = self.placed(brief)
        brief.kill()
        eventually("the slot is reserved", lambda: b.slots("n1") == (1, 0))
        eventually("the job is placed again as attempt 2", lambda: node.heartbeat() and b.job(job["job_id"])["attempt_id"] == 2)
        self.assertSlots(b, "n1", 1, 0)

    def stored(self, node_id):
        """(reserved, running) of a node in the store itself, and the jobs of all leases."""
        dump = json.loads(berth("store", "dump", "--store", self.redis.url, "-o", "json").stdout)
        node = next(node for node in dump["nodes"] if node["node_id"] == node_id)
        return (node["reserved"], node["running"]), [lease["job_id"] for lease in dump["leases"]]

    RESERVED_S = 8

    def kill_between_reserve_and_send(self):
        """A has reserved, but Redis' answer does not arrive. Then A is killed, and B, which has the node's connection. Returns the job, and
        a time before the reservation."""
        a, b, c = self.all
        self.assertEqual(a.stop(), 0)
        wire = CallRelay(self.redis.port)
        self.addCleanup(wire.close)
        a = self.all[0] = self.start("wired", store=f"redis://127.0.0.1:{wire.port}/0", store_call_ms=60000,
                                     reservation_ttl_ms=self.RESERVED_S * 1000)
        node = WsNode(b, "n1", max_concurrent_jobs=1)
        eventually("all instances know n1", lambda: self.views(["n1"]))

        def client():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.dispatch(a)

        wire.arm("lose", "after", "blob://a")
        asker = threading.Thread(target=client)
        begun = time.monotonic()
        asker.start()
        self.assertTrue(wire.met.wait(20 * SLOW), "A has not reserved")
        a.kill()
        b.kill()
        asker.join()
        counts, leases = self.stored("n1")
        self.assertEqual(counts, (1, 0), "the slot is reserved after the kill")
        with self.assertRaises(wsclient.Closed):
            node.expect("job", seconds=5)
        return leases[0], begun

    def test_killed_between_reserve_and_send(self):
        """Neither the node nor a client sends anything: the slot is returned when the reservation has run out."""
        job, begun = self.kill_between_reserve_and_send()
        eventually("the slot is returned", lambda: self.stored("n1") == ((0, 0), []), self.RESERVED_S + 1.5)
        print(f"the slot is back after {time.monotonic() - begun:.1f} s, its time is {self.RESERVED_S} s", flush=True)
        found = self.state_of(self.all[2], {"job_id": job}, "FAILED")
        self.assertEqual([attempt["reason"] for attempt in found["attempts"]][:1], ["ACK_TIMEOUT"])

    def test_killed_between_reserve_and_send_and_nobody_is_left(self):
        """No instance is left either: a new one returns the slot when the reservation has run out, for the same job or for another
        dispatch."""
        job, begun = self.kill_between_reserve_and_send()
        self.all[2].kill()
        fresh = self.instance("fresh")
        node = WsNode(fresh, "n1", max_concurrent_jobs=1)

        def taken():
            answer, first = self.dispatch(fresh), fresh.job(job)
            return answer["job_id"] if answer.status == 200 else first["state"] == "DISPATCHED" and first["attempts"] and job

        placed = eventually("the slot is taken again", taken, 30)
        self.assertGreaterEqual(time.monotonic() - begun, self.RESERVED_S, "the slot was returned before the reservation ran out")
        message = node.expect("job", job_id=placed)
        self.assertTrue(node.report("ack", message)["ok"])
        self.assertTrue(node.report("done", message)["ok"])
        node.close()

    def test_jobs_that_wait_are_adopted(self):
        a, b, c = self.all
        node = Node(b, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        eventually("all instances know n1", lambda: self.views(["n1"]))
        first = self.ok(self.task(b))
        waiting = self.ok(self.task(a, queue_ms=60000), 202)
        self.assertEqual(a.stop(), 0)  # a clean stop, so at once
        self.ok(node.ack(first))
        self.ok(node.done(first))
        jobs = eventually("the node gets the waiting job", lambda: [job for job in node.poll("1s") if job["job_id"] == waiting["job_id"]])
        self.ok(node.ack(jobs[0]))
        self.ok(node.done(jobs[0]))

    def test_a_hello_that_is_read_late(self):
        """The node has closed that connection, and meanwhile runs a job for another instance: the late hello must not void its lease."""
        a, b = self.instance("one-loop", loops=1), self.all[0]
        node = WsNode(b, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        first = self.ok(self.task(b))
        message = node.expect("job", job_id=first["job_id"])
        self.assertTrue(node.report("ack", message)["ok"])
        eventually("A knows that the node runs a job", lambda: a.get("/v1/nodes/n1").status == 200 and a.node("n1")["running"] == 1)
        epoch, late = a.node("n1")["epoch"], wsclient.WebSocket(a.port, "/v1/node/connect", None, 30 * SLOW)
        freeze(a.process)
        self.assertTrue(node.report("done", message)["ok"])
        late.send(json.dumps({"msg": "hello", "protocol": 1, "node_id": "n1", "health": "ready", "max_concurrent_jobs": 1,
                              "allowed_types": ["dev"], "running_jobs": []}))
        late.drop()
        second = self.ok(self.task(b, max_attempts=5))
        message = node.expect("job", job_id=second["job_id"])
        self.assertTrue(node.report("ack", message)["ok"])
        a.process.send_signal(signal.SIGCONT)
        for name in ("n2", "n3"):  # when n3 is registered, A has certainly handled what had arrived while it was frozen
            Node(a, name)
        self.assertEqual(a.node("n1")["epoch"], epoch)
        self.assertTrue(node.report("done", message)["ok"])
        self.assertEqual(len(self.state_of(b, second, "DONE")["attempts"]), 1)
        node.close()

    def test_a_frozen_instance_begins_anew(self):
        """An instance that was frozen for longer than the lease of its number makes new ids afterwards."""
        a, b, c = self.all
        node = Node(b, "n1", max_concurrent_jobs=1000)
        eventually("all instances know n1", lambda: self.views(["n1"]))
        before = self.placed(a)["job_id"]
        freeze(a.process)
        lapsed = self.redis.say("HGETALL", "sched:{f}:instances").split("\n")

        def silent():
            """One instance has not called for longer than the lease of its number (15 s), by Redis' clock."""
            last = [int(line.split()[0]) for line in self.redis.say("HGETALL", "sched:{f}:instances").split("\n")[1::2]]
            return len(last) < 3 or max(last) - min(last) > 15500  # whoever chooses a format forgets those that are gone

        eventually("the lease of its number has run out", silent, 60)
        late = self.instance("late")
        a.process.send_signal(signal.SIGCONT)
        self.ok(node.heartbeat())
        for server in (a, b, late):
            eventually("the instance places jobs", lambda: self.dispatch(server).status == 200)
        numbers = [line.split()[1] for line in self.redis.say("HGETALL", "sched:{f}:instances").split("\n")[1::2]]
        self.assertEqual(len(numbers), 4)
        self.assertEqual(len(set(numbers)), 4)
        self.assertEqual(len(lapsed), 6)
        ids = [self.placed(server)["job_id"] for _ in range(30) for server in (a, b, late)]
        self.assertEqual(len(set(ids + [before])), 91)

    def test_a_callback_is_delivered_once(self):
        target = Listener()
        self.addCleanup(target.close)
        node = Node(self.all[0], "n1", max_concurrent_jobs=100, allowed_types=["dev"])
        eventually("all instances know n1", lambda: self.views(["n1"]))
        for i in range(30):
            job = self.ok(self.task(self.all[i % 3], callback_url=target.url + f"/{i}"))
            node.server = self.all[(i + 1) % 3]
            self.ok(node.ack(job))
            self.ok(node.done(job))
        target.wait(30)
        for i in range(30, 36):  # by then every instance has looked at pending callbacks again
            job = self.ok(self.task(self.all[i % 3], callback_url=target.url + f"/{i}"))
            node.server = self.all[i % 3]
            self.ok(node.ack(job))
            self.ok(node.done(job))
            target.wait(i + 1)
        self.assertEqual(len(target.requests), 36)

    def test_one_probe_in_the_whole_cluster(self):
        for server in self.all:
            server.stop()
        self.all = [self.instance(f"p{i}", breaker_threshold=2, max_retry=1) for i in range(3)]
        node = Node(self.all[0], "n1", max_concurrent_jobs=50, allowed_types=["dev"])
        eventually("all instances know n1", lambda: self.views(["n1"]))
        for i in range(2):
            job = self.ok(self.task(self.all[i]))
            self.ok(node.ack(job))
            self.ok(node.fail(job, reason="EXECUTOR_CRASHED"))
        # n1 is the pool's last node, so a probe is sent without waiting for the pause
        answers = [self.task(self.all[i % 3]).status for i in range(12)]
        self.assertEqual(sorted(answers), [200] + [503] * 11)


class Agents(Instances):
    """A real agent that has the addresses of all instances."""

    def setUp(self):
        super().setUp()
        self.agent = Agent(self, ",".join(f"http://127.0.0.1:{server.port}" for server in self.all), "n1",
                           allowed_types="dev")
        self.addCleanup(self.agent.kill)
        self.agent.connected()
        eventually("all instances know n1", lambda: self.views(["n1"]))

    def end_of_its_instance(self, how):
        """While a job runs, the instance that the agent is connected to ends. The other instances never lose the node."""
        go = self.dir / "go"
        job = self.ok(self.task(self.all[1], command=["sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done; echo ok"]))
        eventually("the job runs", lambda: self.all[2].job(job["job_id"])["state"] == "ACKED")
        how(self.all[0])  # the first address in the agent's list
        begun = time.monotonic()
        eventually("the agent is connected to another instance", lambda: len(self.agent.events("agent.connected")) >= 2)
        away = time.monotonic() - begun
        self.assertEqual(self.all[1].node("n1")["health"], "ready")
        go.touch()
        self.all = self.all[1:]
        shown = self.all[1].job(job["job_id"], wait="20s")
        self.assertEqual((shown["state"], shown["attempt_id"]), ("DONE", 1))
        again = self.ok(self.task(self.all[0], command=["true"]))
        self.assertEqual(self.all[1].job(again["job_id"], wait="20s")["state"], "DONE")
        return away

    def test_the_instance_of_an_agent_is_killed(self):
        self.end_of_its_instance(lambda server: server.kill())

    def test_the_instance_of_an_agent_ends(self):
        away = self.end_of_its_instance(lambda server: self.assertEqual(server.stop(), 0))
        self.assertLess(away, 15 * SLOW, "the instance announced its end, so the agent must not wait for a timeout")

    def test_output_of_a_job_can_be_read_everywhere(self):
        job = self.ok(self.task(self.all[2], command=["echo", "hello"]))
        self.assertEqual(self.all[1].job(job["job_id"], wait="20s")["state"], "DONE")
        for server in self.all:
            self.assertEqual(self.ok(server.get(f"/v1/jobs/{job['job_id']}/logs"))["text"], "hello\n")
            # The node itself answers at every instance: it has no such service.
            self.assertTrue(server.post("/v1/nodes/n1/rpc/Nothing/AtAll")["detail"].startswith("The node says"))


@tags("load")
class Fleet(Instances):
    """Load on all instances while they are disturbed; afterwards everything must be in order."""

    nodes, slots, clients = int(os.environ.get("BERTH_E2E_NODES", "6")), 3, 3

    def instance(self, number, **settings):
        return super().instance(number, reservation_ttl_ms=3000, running_lease_ms=10000, **settings)

    def begin(self, jobs, pause=0.0):
        self.workers = [Worker(self.all, f"n{i}", self.slots, i) for i in range(self.nodes)]
        self.submitters = [Submitter(self.all, jobs // self.clients, f"c{i}", pause) for i in range(self.clients)]
        self.addCleanup(self.all.clear)  # after a failure the threads would otherwise go on, and reach servers of another case
        for thread in self.workers:
            thread.start()
        eventually("all instances know all nodes", lambda: self.views([worker.id for worker in self.workers]))
        for thread in self.submitters:
            thread.start()

    def loaded(self):
        return any(thread.is_alive() for thread in self.submitters)

    def finish(self, seconds=40):
        """Waits for the clients, then for the end of every accepted job, and checks that all is in order."""
        for thread in self.submitters:
            thread.join()
            if thread.failure:
                raise thread.failure
        accepted = {job for thread in self.submitters for job in thread.accepted}
        self.assertEqual(len(accepted), sum(thread.count for thread in self.submitters), "a job id was used twice")
        server = self.all[0]
        ended = set()

        def all_ended():
            """Once few jobs are left, only these are asked for."""
            left = accepted - ended
            jobs = server.all_jobs() if len(left) > 100 else [server.ask(f"/v1/jobs/{job}") for job in left]
            ended.update(job["job_id"] for job in jobs if job["state"] in ("DONE", "FAILED"))
            return accepted <= ended

        try:
            eventually("every accepted job has ended", all_ended, seconds)
        except AssertionError:
            stuck = [server.job(job) for job in sorted(accepted - ended)]
            self.fail(f"{len(stuck)} of {len(accepted)} accepted jobs never ended: {stuck[:3]}")
        for worker in self.workers:
            worker.over.set()
        for worker in self.workers:
            worker.join(20)
            if worker.failure:
                raise worker.failure
            self.assertLessEqual(worker.most, self.slots, f"{worker.id} ran more than it may")
        for worker in self.workers:
            for instance in self.all:
                eventually(f"{worker.id} has no slot taken", lambda: instance.slots(worker.id) == (0, 0), 20)
        jobs = [job for job in server.all_jobs() if job["job_id"] in accepted]
        again = set().union(*(thread.again for thread in self.submitters))
        print(f"{len(accepted)} jobs, {len(again)} accepted at a later try", flush=True)
        self.assertEqual([(job["job_id"], job["reason"]) for job in jobs if job["state"] != "DONE"], [])
        self.assertTrue(any(worker.most > 1 for worker in self.workers))

    def replace(self, number, **settings):
        """Starts another process in place of one that ended; the threads see it in the shared list."""
        self.all[number] = self.instance(f"r{number}-{time.monotonic_ns()}", **settings)

    def test_killed_frozen_and_said_twice(self):
        jobs = int(os.environ.get("BERTH_E2E_JOBS", "1500"))
        dice = random.Random(7)
        self.begin(jobs)
        turn = 0
        while self.loaded():
            victim = turn % 3
            turn += 1
            if dice.random() < 0.5:
                self.all[victim].kill()
                self.replace(victim)
            else:
                frozen = self.all[victim].process
                frozen.send_signal(signal.SIGSTOP)
                time.sleep(dice.uniform(0.5, 2.5))
                frozen.send_signal(signal.SIGCONT)
            time.sleep(dice.uniform(0.5, 1.5))
        self.assertGreater(turn, 1)
        self.finish(60 + jobs // 200)  # listing all jobs takes time as well

    def test_rolling_restart(self):
        """Each instance is stopped after another one has taken its place: no client sees a failure."""
        self.begin(900, pause=0.01)
        for number in range(3):
            gone = self.all[number]
            self.replace(number)  # the new instance starts first
            self.assertEqual(gone.stop(), 0)
            gone.check_log()
        self.finish()
        self.assertLess(max(thread.worst for thread in self.submitters), 10)


class OnCluster(Fleet):
    """The same on a Redis Cluster of six processes."""

    def setUp(self):
        Case.setUp(self)
        self.redis = Cluster(self.dir / "cluster")
        self.addCleanup(self.redis.kill)
        self.all = [self.instance(i) for i in range(self.count)]

    test_rolling_restart = None

    def test_killed_frozen_and_said_twice(self):
        self.begin(450)
        self.all[1].kill()
        self.replace(1)
        self.finish(60)
