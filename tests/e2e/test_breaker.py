"""Breakers: a node that keeps failing one type of work gets no more of it until a probe has succeeded."""
import pathlib
import time

import test_agent
from harness import SLOW, Case, Node, eventually, in_parallel, tags


class Breaker(Case):
    """Nodes have a label with their own id, so that a task can be sent to one of them."""

    def node(self, server, node_id="n1", **facts):
        return Node(server, node_id, **{"allowed_types": ["dev", "talk"], "labels": {"id": node_id},
                                        "max_concurrent_jobs": 50, **facts})

    def beside(self, server):
        """Adds another node, because the breaker of a pool's last node is never shut."""
        self.node(server, "n2")

    def send(self, server, node_id="n1", type="dev", **fields):
        return self.task(server, type=type, requires=f"id={node_id}", max_attempts=1, **fields)

    def take(self, node):
        """The next job of the node, after its ACK."""
        job = eventually("a job arrives", lambda: node.poll(wait="1s", most=1))[0]
        self.ok(node.ack(job))
        return job

    def fails(self, server, node, count=3, type="dev", reason="EXIT_1"):
        for _ in range(count):
            self.ok(self.send(server, node.id, type))
            self.ok(node.fail(self.take(node), reason))

    def works(self, server, node, type="dev"):
        self.ok(self.send(server, node.id, type))
        self.ok(node.done(self.take(node)))

    def shut(self, server, node_id="n1", type="dev"):
        """Checks that a dispatch is refused because of a breaker, and that the answer says so."""
        body = self.problem(self.send(server, node_id, type), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"].get("BREAKER_OPEN"), 1, body)
        self.assertIn(f"keeps failing work of type {type}", body["detail"])

    def breakers(self, server):
        return {(b["node_id"], b["type"]): b for b in self.ok(server.get("/v1/breakers"))["breakers"]}

    def state(self, server, node_id="n1", type="dev"):
        breaker = self.breakers(server).get((node_id, type))
        return (breaker["state"], breaker["failures"]) if breaker else None

    def half_open(self, server, node_id="n1", type="dev"):
        eventually("the breaker is half-open",
                   lambda: self.state(server, node_id, type)[0] == "HALF_OPEN")

    def events(self, server, name):
        return [line for line in server.log.splitlines() if f"event={name} " in line]


class Opening(Breaker):
    def test_three_failures_open_only_that_one(self):
        server = self.start()
        n1, n2 = self.node(server), self.node(server, "n2")
        self.fails(server, n1, 2)
        self.assertEqual(self.state(server), ("CLOSED", 2))
        self.works(server, n1)
        self.assertEqual(self.breakers(server), {})
        self.fails(server, n1, 3)
        found = self.breakers(server)
        self.assertEqual(list(found), [("n1", "dev")])
        breaker = found["n1", "dev"]
        self.assertEqual((breaker["state"], breaker["failures"], breaker["probe_until_ms"]), ("OPEN", 3, None))
        self.assertLess(abs(time.time() * 1000 - breaker["opened_ms"]), 60000)
        self.shut(server)
        self.assertSlots(server, "n1", 0, 0)
        # The node still gets other work, and another node still gets this work.
        self.works(server, n1, "talk")
        self.works(server, n2)
        self.shut(server)
        opened = self.events(server, "breaker.open")
        self.assertEqual(len(opened), 1, opened)
        for word in ("node_id=n1", "type=dev", "reason=failure_threshold_reached"):
            self.assertIn(word, opened[0])
        metrics = server.metrics()
        self.assertEqual(metrics["berth_breakers_open"], 1)
        self.assertEqual(metrics['berth_breaker_events_total{event="open"}'], 1)
        self.assertGreaterEqual(metrics['berth_reserve_total{result="BREAKER_OPEN"}'], 2)

    def test_others_get_the_work(self):
        server = self.start()
        n1 = self.node(server)
        self.node(server, "n2")
        self.fails(server, n1)
        for _ in range(10):
            self.assertEqual(self.ok(self.task(server))["node_id"], "n2")

    def test_whose_failure_it_was(self):
        rows = [("EXIT_3", 1), ("SIGNAL_SEGV", 1), ("OOM", 1), ("START_FAILED", 1), ("TIMEOUT", 1),
                ("MODEL_LOAD_FAILED", 1), ("CANCELLED", 0), ("EMERGENCY", 0), ("SHIM_LOST", 0),
                ("NODE_OVERLOADED", 0), ("rate_limit", 0)]
        server = self.start()
        node = self.node(server)
        for reason, count in rows:
            with self.subTest(reason=reason):
                self.fails(server, node, 1, reason=reason)
                self.assertEqual(self.state(server), ("CLOSED", 1) if count else None)
                self.works(server, node)

    def test_a_refusal_is_no_failure(self):
        server = self.start()
        node = self.node(server)
        for _ in range(4):
            self.ok(self.send(server))
            job = eventually("a job arrives", lambda: node.poll(wait="1s"))[0]
            self.ok(node.fail(job, "NODE_OVERLOADED"))
        self.assertEqual(self.breakers(server), {})

    def test_face_to_face_takes_part(self):
        server = self.start()
        node = Node(server, "n1")
        for _ in range(2):
            self.placed(server)
            self.ok(node.fail(self.take(node)))
            self.ok(node.fail(self.take(node)))  # the second attempt has no other node to go to
        self.assertEqual(self.state(server, type="f2f"), ("OPEN", 4))
        self.placed(server)  # the probe
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"BREAKER_OPEN": 1})
        # A dispatch that wants only this node gets the reason.
        body = self.problem(self.dispatch(server, preferred_node_id="n1", strict=True), 503,
                            "PREFERRED_NODE_UNAVAILABLE")
        self.assertIn("keeps failing", body["detail"])

    def test_a_shut_pool_is_told_once_a_minute(self):
        server = self.start()
        self.fails(server, self.node(server))
        self.ok(self.send(server))  # the probe
        for _ in range(5):
            self.shut(server)
        warnings = self.events(server, "breaker.pool_shut")
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("pool_id=dev", warnings[0])
        self.assertIn("level=warn", warnings[0])

    def test_off(self):
        server = self.start(breaker_threshold=0)
        node = self.node(server)
        self.fails(server, node, 6)
        self.assertEqual(self.breakers(server), {})

    def test_a_retry_goes_back_when_all_others_are_shut(self):
        server = self.start()
        n1, n2 = self.node(server), self.node(server, "n2")
        self.fails(server, n1)
        job = self.ok(self.task(server, max_attempts=2))
        self.assertEqual(job["node_id"], "n2")
        self.ok(n2.fail(self.take(n2)))
        again = self.take(n2)
        self.assertEqual((again["job_id"], again["attempt_id"]), (job["job_id"], 2))
        self.ok(n2.done(again))
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")


class LastOfItsPool(Breaker):
    """A pool's last node is never shut: while its breaker is open it gets one probe at a time."""

    def test_one_at_a_time_instead_of_a_pause(self):
        server = self.start()
        node = self.node(server)
        self.fails(server, node)
        for failures in (4, 5):
            answers = in_parallel(8, lambda _: self.send(server).status)
            self.assertEqual(sorted(answers), [200] + [503] * 7)
            self.shut(server)
            self.assertEqual(self.state(server)[0], "HALF_OPEN")
            self.ok(node.fail(self.take(node), "EXIT_1"))
            self.assertEqual(self.state(server), ("OPEN", failures))
        self.works(server, node)
        self.assertEqual(self.breakers(server), {})

    def test_waiting_tasks_go_one_by_one(self):
        server = self.start()
        node = self.node(server)
        self.fails(server, node)
        jobs = [self.ok(self.send(server, queue_ms=60000), status) for status in (200, 202, 202)]
        self.ok(node.fail(self.take(node), "EXIT_1"))
        self.ok(node.done(self.take(node)))
        self.ok(node.done(self.take(node)))
        self.assertEqual([self.state_of(server, job, "FAILED" if job is jobs[0] else "DONE")["state"] for job in jobs],
                         ["FAILED", "DONE", "DONE"])

    def test_the_others_are_gone_or_shut_too(self):
        server = self.start()
        n1, n2, n3 = (self.node(server, f"n{i}") for i in (1, 2, 3))
        self.fails(server, n1)
        self.fails(server, n2)
        self.shut(server)
        self.ok(server.post("/v1/nodes/n3/drain"))
        probe = self.ok(self.task(server, max_attempts=1))
        self.assertIn(probe["node_id"], ("n1", "n2"))

    def test_a_dry_run_says_the_same(self):
        server = self.start()
        node = self.node(server)
        self.fails(server, node)
        self.assertEqual(self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev"}))["outcome"], "PLACED")
        self.ok(self.task(server))
        self.assertEqual(self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev"}))["outcome"], "ALL_CANDIDATES_FULL_OR_FAILED")


class Restart(Breaker):
    def test_kill_during_the_pause_keeps_it_open(self):
        server = self.start()
        node = self.node(server)
        self.beside(server)
        self.fails(server, node)
        self.fails(server, node, 2, "talk")
        before = self.breakers(server)
        server.kill()
        server = self.start()
        node.server = server
        self.assertEqual(self.breakers(server), before)
        eventually("the open breaker is counted", lambda: server.metrics()["berth_breakers_open"] == 1)
        self.shut(server)
        self.fails(server, node, 1, "talk")
        self.shut(server, type="talk")

    def test_kill_with_the_probe_out(self):
        """The probe's lease survives the kill, so it is still the only probe, and its end still decides."""
        server = self.start(breaker_cooldown_ms=300)
        node = self.node(server)
        self.fails(server, node)
        self.half_open(server)
        self.ok(self.send(server))
        probe = self.take(node)
        server.kill()
        server = self.start(breaker_cooldown_ms=300)
        node.server = server
        self.assertIsNotNone(self.breakers(server)["n1", "dev"]["probe_until_ms"])
        answers = in_parallel(8, lambda _: self.send(server).status)
        self.assertEqual(answers, [503] * 8)
        self.ok(node.done(probe))
        self.assertEqual(self.breakers(server), {})
        self.works(server, node)

    def test_the_pause_goes_on_while_nothing_runs(self):
        server = self.start(breaker_cooldown_ms=300)
        node = self.node(server)
        self.fails(server, node)
        opened_ms = self.breakers(server)["n1", "dev"]["opened_ms"]
        server.kill()
        eventually("breaker_cooldown_ms has passed", lambda: time.time() * 1000 > opened_ms + 300)
        server = self.start(breaker_cooldown_ms=300)
        node.server = server
        self.assertEqual(self.state(server), ("HALF_OPEN", 3))
        self.works(server, node)
        self.assertEqual(self.breakers(server), {})


@tags("threads")
class Probe(Breaker):
    def start_half_open(self):
        server = self.start(breaker_cooldown_ms=300)
        node = self.node(server)
        self.fails(server, node)
        self.half_open(server)
        return server, node

    def one_probe(self, server):
        """Sends many dispatches at once and checks that exactly one is placed."""
        answers = in_parallel(16, lambda _: self.send(server))
        placed = [answer.json for answer in answers if answer.status == 200]
        self.assertEqual(len(placed), 1, [str(answer) for answer in answers])
        for answer in answers:
            if answer.status != 200:
                self.problem(answer, 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertIsNotNone(self.breakers(server)["n1", "dev"]["probe_until_ms"])
        return placed[0]

    def test_one_probe_and_its_success_closes(self):
        server, node = self.start_half_open()
        placed = self.one_probe(server)
        self.shut(server)
        probe = self.take(node)
        self.assertEqual(probe["job_id"], placed["job_id"])
        self.shut(server)
        self.ok(node.done(probe))
        self.assertEqual(self.breakers(server), {})
        answers = in_parallel(8, lambda _: self.send(server).status)
        self.assertEqual(answers, [200] * 8)
        closed = self.events(server, "breaker.closed")
        self.assertEqual(len(closed), 1, closed)
        self.assertEqual(len(self.events(server, "breaker.probe")), 1)
        eventually("no open breaker is counted", lambda: server.metrics()["berth_breakers_open"] == 0)

    def test_its_failure_opens_it_again(self):
        server, node = self.start_half_open()
        for round in range(3):
            before = self.breakers(server)["n1", "dev"]
            self.one_probe(server)
            self.ok(node.fail(self.take(node), "EXIT_1"))
            after = self.breakers(server)["n1", "dev"]
            self.assertEqual(after["failures"], 4 + round)
            self.assertGreater(after["opened_ms"], before["opened_ms"])
            self.half_open(server)
        opened = self.events(server, "breaker.open")
        self.assertEqual(len(opened), 4, opened)
        for line in opened[1:]:
            self.assertIn("reason=half_open_probe_failed", line)
        self.works(server, node)
        self.assertEqual(self.breakers(server), {})

    def test_a_probe_that_never_ran_is_not_the_last(self):
        server, node = self.start_half_open()
        self.one_probe(server)
        job = eventually("the probe arrives", lambda: node.poll(wait="1s"))[0]
        self.ok(node.fail(job, "NODE_OVERLOADED"))
        self.one_probe(server)
        job = eventually("the probe arrives", lambda: node.poll(wait="1s"))[0]
        self.ok(server.post(f"/v1/jobs/{job['job_id']}/cancel"))
        self.one_probe(server)
        self.ok(node.done(self.take(node)))
        self.assertEqual(self.breakers(server), {})

    def test_a_probe_whose_ack_never_comes(self):
        server = self.start(breaker_cooldown_ms=300, reservation_ttl_ms=6000)
        node = self.node(server)
        self.fails(server, node)
        self.half_open(server)
        first = self.one_probe(server)
        self.state_of(server, first, "FAILED")
        self.assertEqual(self.state(server), ("HALF_OPEN", 3))
        self.one_probe(server)


class Reset(Breaker):
    def test_an_operator_resets_it(self):
        server = self.start()
        node = self.node(server)
        self.beside(server)
        self.fails(server, node)
        self.shut(server)
        self.assertEqual(self.ok(server.post("/v1/breakers/reset", {"node_id": "n1", "type": "dev"})),
                         {"ok": True})
        self.assertEqual(self.breakers(server), {})
        self.fails(server, node, 2)
        self.works(server, node)

    def test_what_is_not_there(self):
        server = self.start()
        for body in ({"node_id": "n1", "type": "dev"}, {"node_id": "n1", "type": "talk"}):
            self.problem(server.post("/v1/breakers/reset", body), 404, "NOT_FOUND")
        for body, field in (({"type": "dev"}, "node_id"), ({"node_id": "n1"}, "type"),
                            ({"node_id": "n1", "type": 7}, "type"), ({"node_id": "a b", "type": "dev"}, "node_id")):
            problem = self.problem(server.post("/v1/breakers/reset", body), 400, "BAD_FIELD")
            self.assertEqual(problem["field"], field)
        self.problem(server.get("/v1/breakers/reset"), 405, "METHOD_NOT_ALLOWED")
        self.problem(server.get("/v1/breakers?limit=0"), 400, "BAD_FIELD")

    def test_page_by_page(self):
        server = self.start()
        nodes = [self.node(server, f"n{i}") for i in (3, 1, 2)]
        for node in nodes:
            self.fails(server, node, 1, "talk")
            self.fails(server, node, 1, "dev")
        seen, cursor = [], ""
        while cursor is not None:
            page = self.ok(server.get("/v1/breakers?limit=4" + (f"&cursor={cursor}" if cursor else "")))
            seen += [(b["node_id"], b["type"]) for b in page["breakers"]]
            cursor = page["next_cursor"]
        self.assertEqual(seen, [(f"n{i}", type) for i in (1, 2, 3) for type in ("dev", "talk")])


class Queue(Breaker):
    def test_waiting_tasks_go_when_the_pause_is_over(self):
        server = self.start(breaker_cooldown_ms=int(6000 * SLOW))
        node = self.node(server, max_concurrent_jobs=4)
        self.beside(server)
        self.fails(server, node)
        jobs = [self.ok(self.send(server, queue_ms=60000), 202) for _ in range(100)]
        self.assertQueue(server, 100)
        # While they wait the server asks for the slots of one node in each tick, not once for each job.
        asked = server.metrics()['berth_reserve_total{result="BREAKER_OPEN"}']
        begun = time.monotonic()
        self.half_open(server)
        spent = time.monotonic() - begun
        asked = server.metrics()['berth_reserve_total{result="BREAKER_OPEN"}'] - asked
        self.assertLessEqual(asked, 4 * 10 * (spent + 1))
        probe = self.take(node)
        self.assertEqual(probe["job_id"], jobs[0]["job_id"], "the oldest job is the probe")
        self.assertEqual(self.state(server), ("HALF_OPEN", 3))
        self.assertEqual(node.poll(wait="300ms"), [], "there is only one probe")
        self.ok(node.done(probe))
        done = 1
        while done < 100:
            for job in eventually("more jobs arrive", lambda: node.poll(wait="1s")):
                self.ok(node.ack(job))
                self.ok(node.done(job))
                done += 1
        for job in jobs:
            self.state_of(server, job, "DONE")

    def test_a_reset_lets_them_go_at_once(self):
        server = self.start()
        node = self.node(server)
        self.beside(server)
        self.fails(server, node)
        job = self.ok(self.send(server, queue_ms=60000), 202)
        self.assertQueue(server, 1)
        self.ok(server.post("/v1/breakers/reset", {"node_id": "n1", "type": "dev"}))
        self.assertEqual(self.take(node)["job_id"], job["job_id"])


class RealAgent(test_agent.AgentCase):
    EXECUTOR = "labels: {{id: a1}}\nexecutors: {{dev: {{command: /bin/sh, args: ['-c', '{}']}}}}"

    def state(self, server):
        return [(b["node_id"], b["type"], b["state"]) for b in server.get("/v1/breakers").json["breakers"]]

    def test_restart_of_everything(self):
        """Three runs of an executor fail; server and agent are killed and started; then only one job is placed, as the probe."""
        server = self.start()
        Node(server, "n2", allowed_types=["dev"])
        agent = self.agent(server, config=self.EXECUTOR.format("exit 1"))
        for _ in range(3):
            job = self.ok(self.task(server, requires="id=a1", max_attempts=1))
            self.assertEqual(self.state_of(server, job, "FAILED")["reason"], "EXIT_1")
        self.assertEqual(self.state(server), [("a1", "dev", "OPEN")])
        server.kill()
        agent.kill()
        ran, gate = self.dir / "ran", self.dir / "gate"
        executor = self.EXECUTOR.format(f"echo $BERTH_JOB_ID >> {ran}; " + test_agent.GATE.format(gate=gate))
        server = self.start()
        agent = self.agent(server, config=executor)
        self.assertEqual(self.state(server), [("a1", "dev", "OPEN")])
        self.problem(self.task(server, requires="id=a1"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.ok(self.task(server, type="talk", command="true"))
        server.kill()
        agent.kill()
        # The breaker now uses the shorter breaker_cooldown_ms.
        server = self.start(breaker_cooldown_ms=10)
        self.agent(server, config=executor)
        answers = in_parallel(12, lambda _: self.task(server, requires="id=a1"))
        placed = [answer.json for answer in answers if answer.status == 200]
        self.assertEqual(len(placed), 1, [str(answer) for answer in answers])
        eventually("the probe runs", ran.exists)
        self.problem(self.task(server, requires="id=a1"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        gate.touch()
        self.state_of(server, placed[0], "DONE")
        self.assertEqual(self.state(server), [])
        self.assertEqual(ran.read_text().split(), [placed[0]["job_id"]])

    def test_what_a_command_exits_with_is_not_its_nodes(self):
        """A failing command of a job does not count, also if the agent was killed meanwhile; a failing executor of the configuration
        does."""
        server = self.start()
        agent = self.agent(server, config=self.EXECUTOR.format("exit 1"))
        for command in ["exit 1", "kill -9 $$", ["/no/such/program"]]:
            job = self.run_task(server, command, max_attempts=2)
            self.assertEqual(self.ended(server, job)["state"], "FAILED")
        gate = self.dir / "gate"
        job = self.run_task(server, f"touch {gate}.begun; " + test_agent.GATE.format(gate=gate) + "; exit 1", max_attempts=1)
        eventually("the job runs", pathlib.Path(f"{gate}.begun").exists)
        agent.kill()
        gate.touch()
        self.agent(server, config=self.EXECUTOR.format("exit 1"))
        self.assertEqual(self.ended(server, job)["reason"], "EXIT_1")
        self.assertEqual(self.state(server), [])
        self.ended(server, self.ok(self.task(server, max_attempts=1)))
        self.ended(server, self.run_task(server, "true"))
        self.assertEqual([(b["state"], b["failures"]) for b in server.get("/v1/breakers").json["breakers"]], [("CLOSED", 1)])
