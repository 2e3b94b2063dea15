"""The cluster of examples/us-hk.yaml: a server with its routes, and the agents us and hk with their configuration, each on its own machine
(a directory of files)."""
import os
import pathlib
import signal
import tempfile
import threading
import time

from harness import SLOW, Node, eventually, freeze
from test_agent import GATE, AgentCase, Machine, write

ROUTES = """
routes:
  dev: [us]
  review: [us]
  automation: [hk, us]
  talk: [hk, us]
  research: [hk, us]
default_route: [us]
"""

RESOURCES = """
resources: {cpuPerProcess: 1.2, memPerProcessGB: 1.5, memReserveGB: 2, loadWarningPct: 60, loadDangerPct: 80,
            loadCriticalPct: 90, memWarningPct: 30, memDangerPct: 20, memCriticalPct: 10}
"""

AGENTS = {
    "us": "name: US VPS\nrole: main\nmaxSlots: 5\nreservedSlots: 1\n"
          "allowedTypes: [dev, review, automation, talk, research]\npriority: 1\n" + RESOURCES,
    "hk": "name: HK VPS\nrole: auxiliary\nmaxSlots: 2\nreservedSlots: 0\n"
          "allowedTypes: [talk, research, automation]\npriority: 2\n" + RESOURCES,
}
MACHINES = {"us": {"cores": 8, "total_gb": 15, "free_gb": 12.5}, "hk": {"cores": 4, "total_gb": 7.6, "free_gb": 6.6}}
ALL_TYPES = ["dev", "review", "automation", "talk", "research"]
CARD = {"name", "role", "online", "offline_reason", "last_seen_ms", "level", "cpu_cores", "cpu_load", "mem_total_gb",
        "mem_free_gb", "figures_reason", "slots_max", "slots_available", "slots_in_use", "tasks_running", "clamps",
        "available_for"}


class Host(Machine):
    """A host_root with this many cores and this much memory."""

    def __init__(self, root, cores, total_gb, free_gb, load="0.30"):
        super().__init__(root)
        gib = 1024 * 1024
        write(self.proc / "loadavg", f"{load} {load} {load} 1/100 1234\n")
        write(self.proc / "meminfo", f"MemTotal: {int(total_gb * gib)} kB\nMemAvailable: {int(free_gb * gib)} kB\n"
                                     "SwapTotal: 0 kB\nSwapFree: 0 kB\n")
        cpu = "100 0 100 90000 0 0 0 0 0 0\n"
        write(self.proc / "stat", f"cpu  {cpu}" + "".join(f"cpu{i} {cpu}" for i in range(cores)))


def descendants(pid):
    """The pids of all descendants of a process. Call it before the process dies, because then they get another parent."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found, last = set(), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last} - found
        found |= last
    return found


class ClusterCase(AgentCase):
    def cluster(self, only=("us", "hk"), routes=ROUTES, **settings):
        """The server and its agents, once the server knows the slots of each agent."""
        (self.dir / "server.yaml").write_text(routes)
        server = self.start(config=self.dir / "server.yaml",
                            **{"heartbeat_ms": 1000, "heartbeat_stale_ms": 15000, **settings})
        return server, {name: self.join(server, name) for name in only}

    def join(self, server, name):
        machine = Host(tempfile.mkdtemp(prefix="host-", dir=self.dir), **MACHINES[name])
        agent = self.agent(server, name, config=AGENTS[name], machine=machine, slots_fixed="off",
                           monitor_interval_ms=200)
        eventually(f"the server shows the slots of {name}", lambda: self.card(server, name)["slots_available"])
        return agent

    def power_off(self, agent):
        """Ends the agent, its shims and its jobs at once, as if the machine had lost power."""
        below = descendants(agent.process.pid)
        freeze(agent.process)  # so that it does not report its runs' ends while they are killed
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        agent.kill()

    def status(self, server):
        return self.ok(server.get("/api/brain/cluster/status"))

    def card(self, server, name):
        return self.status(server)["servers"][name]

    def gate(self, name="gate"):
        return self.dir / name

    def hold(self, server, type, gate="gate", **fields):
        """A job that writes which node runs it and waits for a file; the answer's body once it was placed."""
        command = f'echo "$BERTH_JOB_ID $BERTH_NODE_ID" >> {self.dir / "runs"}; {GATE.format(gate=self.gate(gate))}'
        return self.ok(self.task(server, type=type, command=command, **fields))

    def fill(self, server, type, name, count, **fields):
        """`count` jobs that must all run on that node."""
        jobs = []
        for _ in range(count):
            # The agent reports its free slots with each sample, so a refusal in between does not mean that it is full.
            job = eventually(f"a job of type {type} is placed", lambda: self.try_hold(server, type, **fields))
            self.assertEqual(job["node_id"], name, type)
            self.running(server, job)
            jobs.append(job)
        return jobs

    def try_hold(self, server, type, **fields):
        answer = self.task(server, type=type, command=GATE.format(gate=self.gate()), **fields)
        return answer.json if answer.status == 200 else None

    def full(self, server, name):
        eventually(f"{name} has no free slot", lambda: self.card(server, name)["slots_available"] == 0)

    def all_done(self, server, jobs):
        for job in jobs:
            self.assertEqual(self.ended(server, job)["state"], "DONE")


class Routing(ClusterCase):
    def test_each_type_goes_where_it_may(self):
        server, _ = self.cluster()
        for type, name in {"dev": "us", "review": "us", "talk": "hk", "research": "hk", "automation": "hk"}.items():
            job = self.run_task(server, "true", type=type)
            self.assertEqual(job["node_id"], name, type)
            self.assertEqual(self.ended(server, job)["node_id"], name, type)

    def test_dev_and_review_never_land_on_hk(self):
        """Also not when us is full and hk is idle."""
        server, _ = self.cluster()
        jobs = self.fill(server, "dev", "us", 4)
        for type in ("dev", "review"):
            body = self.problem(self.task(server, type=type, command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
            self.assertEqual(body["reasons"].get("FULL"), 1, body)
        self.assertEqual(self.card(server, "hk")["slots_in_use"], 0)
        self.gate().touch()
        self.all_done(server, jobs)

    def test_talk_prefers_hk_and_overflows_to_us(self):
        server, _ = self.cluster()
        jobs = self.fill(server, "talk", "hk", 2) + self.fill(server, "talk", "us", 4)
        body = self.problem(self.task(server, type="talk", command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"].get("FULL"), 2, body)
        self.gate().touch()
        self.all_done(server, jobs)
        eventually("both slots of hk are free", lambda: self.card(server, "hk")["slots_available"] == 2)
        self.assertEqual(self.run_task(server, "true", type="talk")["node_id"], "hk")

    def test_a_job_that_may_wait_starts_when_a_slot_is_free(self):
        server, _ = self.cluster()
        first = self.hold(server, "talk", gate="first")
        jobs = self.fill(server, "talk", "hk", 1) + self.fill(server, "talk", "us", 4)
        answer = self.task(server, type="talk", command="echo late", queue_ms=60000)
        waiting = self.ok(answer, 202)
        self.assertEqual(waiting["state"], "NEW")
        self.assertQueue(server, 1)
        self.gate("first").touch()
        found = self.ended(server, waiting)
        self.assertEqual((found["state"], found["node_id"], found["result"]["tail"]), ("DONE", first["node_id"], "late\n"))
        self.gate().touch()
        self.all_done(server, jobs)

    def test_a_retry_that_waits_for_us_does_not_block_hk(self):
        server, _ = self.cluster()
        jobs = self.fill(server, "talk", "hk", 1)
        fails = self.run_task(server, GATE.format(gate=self.gate("fail")) + "; [ $BERTH_NODE_ID = us ]", type="talk",
                              queue_ms=60000)
        self.assertEqual(self.running(server, fails)["node_id"], "hk")
        jobs += self.fill(server, "talk", "us", 4)
        other = self.ok(self.task(server, type="talk", command="true", queue_ms=60000), 202)
        self.gate("fail").touch()
        self.assertEqual(self.ended(server, other)["node_id"], "hk")
        self.assertEqual(server.job(fails["job_id"])["state"], "RETRYING")
        self.gate().touch()
        self.all_done(server, jobs)
        found = self.ended(server, fails)
        self.assertEqual((found["state"], found["node_id"], found["attempt_id"]), ("DONE", "us", 2), found)

    def test_a_type_no_route_names_goes_by_the_default(self):
        server, _ = self.cluster(only=("us",))
        self.problem(self.task(server, type="sweep", command="true"), 422, "NO_CAPABLE_NODE")
        node = {"allowed_types": ["*"], "max_concurrent_jobs": 2, "semantic_langs": None, "nmt_pairs": None,
                "tts_langs": None}
        Node(server, "elsewhere", **node)  # it would take the work, but the default route does not name it
        body = self.problem(self.task(server, type="sweep", command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"].get("ROUTE"), 1, body)
        self.ok(server.post("/v1/node/heartbeat", {"node_id": "us", "allowed_types": ["*"]}))
        self.assertEqual(self.ok(self.task(server, type="sweep", command="true"))["node_id"], "us")

    def test_a_dev_job_forced_to_hk_is_refused_by_its_agent(self):
        """The routes are wrong, and the server got a false heartbeat for hk: the agent decides last."""
        server, agents = self.cluster(routes="routes: {dev: [hk, us]}\n", heartbeat_ms=60000, heartbeat_stale_ms=200000)
        self.ok(server.post("/v1/node/heartbeat", {"node_id": "hk", "allowed_types": ["*"]}))
        job = self.run_task(server, "echo $BERTH_NODE_ID", type="dev", queue_ms=60000)
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["node_id"], found["result"]["tail"]), ("DONE", "us", "us\n"), found)
        refused = agents["hk"].events("job.refused")
        self.assertEqual(len(refused), 1, refused)
        self.assertIn("reason=TYPE_NOT_ALLOWED", refused[0])
        self.assertEqual(found["attempts"][0]["reason"], "TYPE_NOT_ALLOWED", found)

    def test_the_reserved_slot_is_for_interactive_jobs(self):
        server, _ = self.cluster()
        jobs = self.fill(server, "dev", "us", 4)
        eventually("one slot is left", lambda: self.card(server, "us")["slots_available"] == 1)
        self.problem(self.task(server, type="dev", command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        jobs += self.fill(server, "dev", "us", 1, interactive=True)
        self.full(server, "us")
        self.problem(self.task(server, type="dev", command="true", interactive=True), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.gate().touch()
        self.all_done(server, jobs)

    def test_an_interactive_job_does_not_wait_behind_others(self):
        """The slot that is reserved for it does not go to earlier jobs of the queue, which may not use it."""
        server, _ = self.cluster()
        jobs = self.fill(server, "dev", "us", 4)
        first = self.hold(server, "dev", gate="first", interactive=True)
        self.running(server, first)
        self.full(server, "us")
        other = self.ok(self.task(server, type="dev", command="true", queue_ms=60000), 202)
        mine = self.ok(self.task(server, type="dev", command="true", queue_ms=60000, interactive=True), 202)
        self.gate("first").touch()
        self.assertEqual(self.ended(server, mine)["state"], "DONE")
        self.assertEqual(server.job(other["job_id"])["state"], "NEW")
        self.gate().touch()
        self.all_done(server, jobs + [other])

    def test_a_drained_node_ends_its_work_and_gets_no_more(self):
        server, _ = self.cluster()
        job = self.hold(server, "talk")
        self.running(server, job)
        self.ok(server.post("/v1/nodes/hk/drain"))
        self.assertEqual(self.run_task(server, "true", type="talk")["node_id"], "us")
        self.assertEqual(self.card(server, "hk")["available_for"], [])
        self.gate().touch()
        self.assertEqual((self.ended(server, job)["state"], job["node_id"]), ("DONE", "hk"))
        self.assertEqual(self.run_task(server, "true", type="talk")["node_id"], "us")
        self.ok(server.post("/v1/nodes/hk/undrain"))
        eventually("both slots of hk are free", lambda: self.card(server, "hk")["slots_available"] == 2)
        self.assertEqual(self.run_task(server, "true", type="talk")["node_id"], "hk")


class Losing(ClusterCase):
    def test_hk_dies_its_talk_jobs_run_once_on_us_and_it_comes_back(self):
        lease_ms = 6000
        server, agents = self.cluster(running_lease_ms=lease_ms)
        jobs = [self.hold(server, "talk"), self.hold(server, "talk")]
        for job in jobs:
            self.assertEqual(self.running(server, job)["node_id"], "hk")
        eventually("both jobs run on hk", lambda: len(self.lines("runs")) == 2)
        self.power_off(agents["hk"])
        eventually("both jobs run again", lambda: len(self.lines("runs")) == 4, 30)
        self.gate().touch()
        for job in jobs:
            found = self.ended(server, job)
            self.assertEqual((found["state"], found["node_id"], found["attempt_id"]), ("DONE", "us", 2), found)
            self.assertEqual(found["attempts"][0]["reason"], "NODE_LOST", found)
        self.assertEqual(sorted(self.lines("runs")),
                         sorted(f"{job['job_id']} {name}" for job in jobs for name in ("hk", "us")))
        again = self.join(server, "hk")
        eventually("both slots of hk are free", lambda: self.card(server, "hk")["slots_available"] == 2)
        job = self.run_task(server, "true", type="talk")
        self.assertEqual((job["node_id"], self.ended(server, job)["state"]), ("hk", "DONE"), again.log[-2000:])
        self.assertEqual(len(self.lines("runs")), 4)

    def test_dev_waits_while_us_is_away(self):
        server, agents = self.cluster(heartbeat_stale_ms=3000)
        self.power_off(agents["us"])
        eventually("the server has noticed", lambda: "event=node.disconnected node_id=us" in server.log)
        job = self.ok(self.task(server, type="dev", command="echo $BERTH_NODE_ID", queue_ms=120000), 202)
        eventually("us is offline", lambda: not self.card(server, "us")["online"])
        later = self.ok(self.task(server, type="dev", command="echo $BERTH_NODE_ID", queue_ms=120000), 202)
        self.assertEqual(self.run_task(server, "true", type="talk")["node_id"], "hk")
        for waiting in (job, later):
            self.assertEqual(server.job(waiting["job_id"])["state"], "NEW")
        self.join(server, "us")
        for waiting in (job, later):
            found = self.ended(server, waiting)
            self.assertEqual((found["state"], found["result"]["tail"], found["attempt_id"]), ("DONE", "us\n", 1), found)

    def test_a_job_refused_once_is_offered_again(self):
        """The only node of the route refused the job. As it may wait, the job still gets there."""
        server, agents = self.cluster(only=("us",), heartbeat_ms=1500)
        jobs = self.fill(server, "dev", "us", 4)
        liar = {"node_id": "us", "max": 9, "max_concurrent_jobs": 16}

        def refused():
            self.ok(server.post("/v1/node/heartbeat", liar))  # until the agent's next heartbeat
            return agents["us"].events("job.refused")

        waiting = self.task(server, type="dev", command="echo at last", queue_ms=60000).json
        eventually("the agent refuses the job", refused)
        self.gate().touch()
        self.all_done(server, jobs)
        found = self.ended(server, waiting)
        self.assertEqual((found["state"], found["result"]["tail"]), ("DONE", "at last\n"), found)

    def test_a_job_that_is_refused_for_good_does_not_wait_for_ever(self):
        server, agents = self.cluster(only=("us",))
        jobs = self.fill(server, "dev", "us", 4)
        stop = threading.Event()

        def lie():
            while not stop.wait(0.05):
                server.post("/v1/node/heartbeat", {"node_id": "us", "max": 9})

        liar = threading.Thread(target=lie)
        liar.start()
        try:
            job = self.task(server, type="dev", command="true", queue_ms=4000).json
            found = self.ended(server, job, 30)
        finally:
            stop.set()
            liar.join()
        self.assertEqual((found["state"], found["reason"]), ("FAILED", "QUEUE_TIMEOUT"), found)
        refused = agents["us"].events("job.refused")
        self.assertTrue(2 <= len(refused) <= 6 * SLOW, f"offered once in a heartbeat: {refused}")
        self.gate().touch()
        self.all_done(server, jobs)


class Status(ClusterCase):
    def test_every_field_of_an_idle_cluster(self):
        server, _ = self.cluster()
        status = self.status(server)
        self.assertEqual({"servers", "cluster_status", "total_slots", "available_slots", "recommendation"} - set(status), set())
        self.assertEqual(self.ok(server.get("/v1/cluster/status"))["servers"].keys(), status["servers"].keys())
        want = {"us": {"name": "US VPS", "role": "main", "cpu_cores": 8, "mem_total_gb": 15, "mem_free_gb": 12.5,
                       "slots_max": 5, "slots_available": 5},
                "hk": {"name": "HK VPS", "role": "auxiliary", "cpu_cores": 4, "mem_total_gb": 7.59, "mem_free_gb": 6.59,
                       "slots_max": 2, "slots_available": 2}}
        for name, fields in want.items():
            card = status["servers"][name]
            self.assertEqual(CARD - set(card), set(), name)
            common = {"online": True, "offline_reason": None, "level": "normal", "cpu_load": 0.3, "slots_in_use": 0,
                      "tasks_running": [], "figures_reason": None}
            for field, value in {**fields, **common}.items():
                self.assertEqual(card[field], value, f"{name}.{field}")
            self.assertLess(abs(time.time() * 1000 - card["last_seen_ms"]), 15000 * SLOW)
        self.assertEqual(sorted(status["servers"]["us"]["available_for"]), sorted(ALL_TYPES))
        self.assertEqual(sorted(status["servers"]["hk"]["available_for"]), ["automation", "research", "talk"])
        self.assertEqual((status["cluster_status"], status["recommendation"]), ("healthy", "All servers have room"))
        self.assertEqual((status["total_slots"], status["available_slots"]), (7, 7))

    def test_the_clamps_tell_how_the_slots_came_about(self):
        server, _ = self.cluster()
        clamps = {clamp["name"]: clamp for clamp in self.card(server, "us")["clamps"]}
        want = {"cpu": 6, "memory": 7, "raw": 6, "safety_buffer": 5, "max_slots": 5, "in_use": 5, "max_concurrent_jobs": 5,
                "level": 5, "reserved_slots": 4}
        self.assertEqual({name: clamps[name]["value"] for name in want}, want)
        self.assertEqual([clamp["name"] for clamp in self.card(server, "us")["clamps"]], list(want))
        self.assertEqual(clamps["cpu"]["reason"], "(8.00 cores - load 0.30) / 1.20")
        self.assertEqual(clamps["memory"]["reason"], "(12.50 GB free - 2.00) / 1.50")
        self.assertTrue(all(clamp["reason"] for clamp in clamps.values()))
        self.assertTrue(clamps["safety_buffer"]["bites"])

    def test_partial_and_degraded(self):
        server, _ = self.cluster()
        jobs = self.fill(server, "dev", "us", 4) + self.fill(server, "dev", "us", 1, interactive=True)
        self.full(server, "us")
        status = self.status(server)
        self.assertEqual(status["cluster_status"], "partial")
        self.assertEqual(status["recommendation"], "US VPS full; talk, research, automation can go to HK VPS")
        self.assertEqual((status["total_slots"], status["available_slots"]), (7, 2))
        us = status["servers"]["us"]
        self.assertEqual(us["slots_in_use"], 5)
        self.assertEqual(sorted(us["tasks_running"]), sorted(job["job_id"] for job in jobs))
        self.assertEqual(us["available_for"], [])
        jobs += self.fill(server, "talk", "hk", 2)
        self.full(server, "hk")
        status = self.status(server)
        self.assertEqual((status["cluster_status"], status["available_slots"]), ("degraded", 0))
        self.assertEqual(status["recommendation"], "No server has room; work waits")
        self.gate().touch()
        self.all_done(server, jobs)
        eventually("the cluster is healthy", lambda: self.status(server)["cluster_status"] == "healthy")

    def test_silent_servers(self):
        server, agents = self.cluster(heartbeat_stale_ms=3000)
        self.power_off(agents["us"])
        eventually("us is offline", lambda: not self.card(server, "us")["online"], 20)
        status = self.status(server)
        us = status["servers"]["us"]
        self.assertTrue(us["offline_reason"].startswith("no heartbeat"), us)
        self.assertLessEqual(us["last_seen_ms"], time.time() * 1000)  # already set, because its connection closed
        self.assertEqual((us["slots_available"], us["available_for"]), (0, []))
        self.assertEqual(status["cluster_status"], "partial")
        self.assertEqual(status["recommendation"], "US VPS offline; talk, research, automation can go to HK VPS")
        self.power_off(agents["hk"])
        eventually("hk is offline", lambda: not self.card(server, "hk")["online"], 20)
        status = self.status(server)
        self.assertEqual((status["cluster_status"], status["recommendation"]), ("degraded", "No server is online"))

    def test_figures_that_are_none(self):
        """Usage that a node reports is shown to everybody and added up, so figures must be numbers in range."""
        server = self.start()
        for usage, field in (({"mem_total_gb": "x"}, "mem_total_gb"), ({"slots_max": 2**63 - 1}, "slots_max"),
                             ({"clamps": [{"value": "x"}]}, "value")):
            answer = server.post("/v1/node/register", {"node_id": "odd", "usage": usage})
            self.assertEqual(self.problem(answer, 400, "BAD_FIELD")["field"], field)
        for name in ("a", "b"):
            Node(server, name, usage={"slots_max": 1000000, "mem_total_gb": 8.5, "own": {"any": "thing"}})
        status = self.ok(server.get("/v1/cluster/status"))
        self.assertEqual((status["total_slots"], status["servers"]["a"]["mem_total_gb"]), (2000000, 8.5))

    def test_a_server_without_an_agent(self):
        """Nothing is measured there, so the figures are null and have a reason."""
        server = self.start()
        Node(server, "seed", allowed_types=["talk"], max_concurrent_jobs=3)
        card = self.card(server, "seed")
        self.assertEqual(CARD - set(card), set())
        for field in ("cpu_cores", "cpu_load", "mem_total_gb", "mem_free_gb", "level", "clamps"):
            self.assertIsNone(card[field], field)
        self.assertIn("no agent", card["figures_reason"])
        self.assertEqual((card["slots_max"], card["slots_available"], card["online"]), (3, 3, True))
        job = self.ok(self.task(server, type="talk"))
        card = self.card(server, "seed")
        self.assertEqual((card["slots_in_use"], card["tasks_running"], card["slots_available"]), (1, [job["job_id"]], 2))
