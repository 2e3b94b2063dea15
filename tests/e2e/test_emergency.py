"""A machine that runs out of memory, simulated by files that the test rewrites: which jobs are still accepted, which are ended and in which
order, and that it recovers without an operator."""
import pathlib
import re
import time

from harness import SLOW, eventually, tags
from test_agent import GATE, AgentCase, Machine, write

MEASURED_MS = 100


def fields(line):
    """A log line as {name: text}."""
    return {name: text.strip('"') for name, text in re.findall(r'(\w+)=("[^"]*"|\S+)', line)}


class EmergencyCase(AgentCase):
    def sick(self, server, node_id="sick", **settings):
        return self.agent(server, node_id, **{"monitor_interval_ms": MEASURED_MS, "slots_fixed": 8, **settings})

    def level(self, server, node_id, level, seconds=10):
        eventually(f"{node_id} is at {level}", lambda: server.node(node_id)["level"] == level, seconds)

    def hold(self, server, type, **more):
        """A job that runs until the gate file exists."""
        job = self.run_task(server, GATE.format(gate=self.dir / "gate"), type=type, **more)
        self.running(server, job)
        return job

    def kills(self, agent):
        return [fields(line) for line in agent.events("emergency.kill")]

    def forced(self, server, agent, priority):
        """Sends false heartbeats that the node is well, so that the server sends it a job it must refuse. Returns the line with which the
        agent refuses it."""
        def refused():
            self.ok(server.post("/v1/node/heartbeat", {"node_id": agent.node_id, "level": "normal", "health": "ready",
                                                       "max": 8}))
            self.task(server, command=f"touch {self.dir / 'ran'}", priority=priority)
            return agent.events("job.refused")

        line = eventually("the agent refuses a job", refused)[0]
        self.assertFalse((self.dir / "ran").exists())
        return line


class Admission(EmergencyCase):
    def test_at_warning_only_high_priority_is_dispatched(self):
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server)
        agent.machine.memory(free_percent=25)
        self.level(server, "sick", "warning")
        self.assertEqual(server.node("sick")["health"], "ready")
        body = self.problem(self.task(server, command="true", priority=6), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"].get("LEVEL"), 1, body)
        for priority in (7, 9):
            job = self.run_task(server, "true", priority=priority)
            self.assertEqual(self.ended(server, job)["state"], "DONE")
        self.assertEqual(agent.events("job.refused"), [])

    def test_at_warning_the_agent_itself_refuses_the_rest(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        agent = self.sick(server)
        agent.machine.memory(free_percent=25)
        self.level(server, "sick", "warning")
        line = self.forced(server, agent, priority=6)
        self.assertIn("reason=NODE_OVERLOADED", line)
        self.assertIn("level warning because of its memory", line)
        high = self.run_task(server, "true", priority=7)
        self.assertEqual(self.ended(server, high)["state"], "DONE")

    def test_at_danger_nothing_is_taken_and_what_runs_goes_on(self):
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server)
        job = self.hold(server, "research")
        agent.machine.memory(free_percent=15)
        self.level(server, "sick", "danger")
        eventually("the node is degraded", lambda: server.node("sick")["health"] == "degraded")
        answer = self.task(server, command="true", priority=9)
        body = self.problem(answer, 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(sum(body["reasons"].values()), 1, body)
        self.assertTrue({"LEVEL", "NOT_READY"} & set(body["reasons"]), body)
        self.assertEqual(server.get("/v1/cluster/status")["servers"]["sick"]["slots_available"], 0)
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, job)["state"], "DONE")
        self.assertEqual(self.kills(agent), [])

    def test_at_danger_the_agent_itself_refuses_everything(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        agent = self.sick(server)
        agent.machine.memory(free_percent=15)
        self.level(server, "sick", "danger")
        self.assertIn("reason=NODE_OVERLOADED", self.forced(server, agent, priority=9))


class Small(EmergencyCase):
    """A machine so small that the formula allows no slot: two cores."""

    def small(self, server, **settings):
        machine = Machine(self.dir / "host")
        write(machine.proc / "stat", "cpu  200 0 200 180000 0 0 0 0 0 0\n" + "".join(f"cpu{i} 100 0 100 90000 0 0 0 0 0 0\n" for i in range(2)))
        return self.sick(server, "small", machine=machine, slots_fixed="off", **settings)

    def test_it_carries_one_at_a_time(self):
        server = self.start(heartbeat_ms=1000)
        agent = self.small(server)
        job = self.hold(server, "task")
        detail = self.problem(self.task(server, command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(server.node("small")["max"], 1, detail)
        slots = fields(agent.events("agent.slots")[0])
        self.assertEqual((slots["slots"], slots["free"], slots["level"]), ("1", "1", "normal"), slots)
        self.assertIn("cpu 1: (2.00 cores - load 0.10) / 1.20", slots["reason"])
        self.assertIn("slots_min 1: at least 1 at level normal (slots_min), 0 in use", slots["reason"])
        waits = self.ok(self.task(server, command="true", queue_ms=60000), 202)
        (self.dir / "gate").touch()
        for one in (job, waits):
            self.assertEqual(self.ended(server, one)["state"], "DONE")

    def test_without_the_minimum_it_says_why_there_is_none(self):
        server = self.start(heartbeat_ms=1000)
        agent = self.small(server, slots_min=0)
        problem = self.problem(self.task(server, command="true"), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertIn("No node has a slot: 1 offers 0 (small: less 1 (safety_buffer))", problem["detail"])
        self.assertIn("level=warn event=agent.slots node_id=small slots=0 ", agent.events("agent.slots")[0])


class Killing(EmergencyCase):
    def test_the_least_important_first_and_the_protected_never(self):
        """The agent cannot know here how much a job would free, so it ends one job, measures again, and ends the next as long as the
        figures stay bad."""
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server, protected_types="f2f,dev")
        dev = self.hold(server, "dev", priority=0, max_attempts=1)
        jobs = {priority: self.hold(server, type, priority=priority, max_attempts=1)
                for priority, type in ((5, "talk"), (2, "research"), (8, "research"))}
        agent.machine.memory(free_percent=5)
        eventually("all jobs without protection are ended", lambda: len(self.kills(agent)) == 3, 40)
        kills = self.kills(agent)
        self.assertEqual([kill["job_id"] for kill in kills], [jobs[priority]["job_id"] for priority in (2, 5, 8)])
        for kill, priority in zip(kills, (2, 5, 8)):
            self.assertEqual((kill["level"], kill["by"], kill["reason"]), ("critical", "memory", "emergency_degradation"))
            self.assertEqual(int(kill["priority"]), priority)
            self.assertEqual((kill["number"], kill["count"]), ("1", "1"), kill)
            self.assertEqual(int(kill["score"]), priority * 1000 + int(kill["age_ms"]) // 1000)
            self.assertEqual(int(kill["mem_free_percent"]), 5)
            self.assertAlmostEqual(int(kill["missing_kib"]), 800000, delta=8)
        for job in jobs.values():
            found = self.ended(server, job)
            self.assertEqual((found["state"], found["reason"]), ("FAILED", "EMERGENCY"), found)
            evidence = found["result"]["emergency"]
            self.assertEqual((evidence["reason"], evidence["level"]), ("emergency_degradation", "critical"), found)
        eventually("the agent logs that it has nothing left to end", lambda: agent.events("emergency.unresolved"), 20)
        self.assertEqual(server.job(dev["job_id"])["state"], "ACKED")
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, dev)["state"], "DONE")

    def test_as_many_as_free_what_is_missing(self):
        """800 MB are missing and each job has 300 MB: three are ended together, the fourth is not."""
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server)
        command = f'echo "$BERTH_JOB_ID $PPID" >> {self.dir / "shims"}; ' + GATE.format(gate=self.dir / "gate")
        jobs = [self.run_task(server, command, type="research", priority=priority, max_attempts=1)
                for priority in (4, 1, 3, 2)]
        eventually("all jobs run", lambda: len(self.lines("shims")) == 4)
        self.put_process(agent, "self", agent.process.pid, 0)
        for line in self.lines("shims"):
            self.put_process(agent, line.split()[1], line.split()[1], 300000)
        usage = "/v1/nodes/sick/rpc/NodeUnit/InspectResourceUsage"
        eventually("the jobs' memory is measured", lambda: server.post(usage).json.get("memory_mb", 0) > 1100)
        agent.machine.memory(free_percent=5)
        eventually("three jobs are ended", lambda: len(self.kills(agent)) >= 3)
        agent.machine.memory(free_percent=60)
        kills = self.kills(agent)
        self.assertEqual([kill["job_id"] for kill in kills], [jobs[i]["job_id"] for i in (1, 3, 2)])
        self.assertEqual([(kill["number"], kill["count"]) for kill in kills], [("1", "3"), ("2", "3"), ("3", "3")])
        for i in (1, 2, 3):
            self.assertEqual(self.ended(server, jobs[i])["reason"], "EMERGENCY")
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, jobs[0])["state"], "DONE")
        self.assertEqual(len(self.kills(agent)), 3)

    def test_who_causes_it_and_not_five_small_ones(self):
        """A job of the default type with 3 GB runs among small ones of lower priority: only it is ended."""
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server)
        command = f'echo "$BERTH_JOB_ID $PPID" >> {self.dir / "shims"}; ' + GATE.format(gate=self.dir / "gate")
        small = [self.run_task(server, command, type="research", priority=priority, max_attempts=1)
                 for priority in (0, 1, 2, 5, 5)]
        hog = self.run_task(server, command, max_attempts=1)
        eventually("all jobs run", lambda: len(self.lines("shims")) == 6)
        self.put_process(agent, "self", agent.process.pid, 0)
        for job, pid in (line.split() for line in self.lines("shims")):
            self.put_process(agent, pid, pid, 3000000 if job == hog["job_id"] else 2000)
        usage = "/v1/nodes/sick/rpc/NodeUnit/InspectResourceUsage"
        eventually("the jobs' memory is measured", lambda: server.post(usage).json.get("memory_mb", 0) > 2900)
        agent.machine.memory(free_percent=9)  # just below the bound, so little is missing
        eventually("the hog is ended", lambda: self.ended(server, hog)["reason"] == "EMERGENCY")
        agent.machine.memory(free_percent=60)
        self.assertEqual([kill["job_id"] for kill in self.kills(agent)], [hog["job_id"]])
        self.assertEqual(int(self.kills(agent)[0]["gives_kib"]), 3000000)
        evidence = server.job(hog["job_id"])["result"]["emergency"]
        self.assertEqual((evidence["memory_kib"], evidence["by"]), (3000000, "memory"), evidence)
        (self.dir / "gate").touch()
        for job in small:
            self.assertEqual(self.ended(server, job)["state"], "DONE")

    def test_a_deployment_that_causes_it_is_ended_and_rests(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000, view_drop_ms=3000,
                            deploy_lease_ms=int(9000 * SLOW), deploy_renew_ms=int(1000 * SLOW))
        agent = self.sick(server, claim_interval_ms=500)
        job = self.hold(server, "task", priority=5, max_attempts=1)
        self.ok(server.call("PUT", "/v1/deployments/hog", {"command": ["sleep", "600"]}), 201)
        eventually("the copy runs", lambda: self.copy(server, "hog").get("state") == "running", 30)
        shim = int(pathlib.Path(f"/proc/{self.copy(server, 'hog')['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1])
        self.put_process(agent, "self", agent.process.pid, 0)
        self.put_process(agent, shim, shim, 3000000)
        usage = "/v1/nodes/sick/rpc/NodeUnit/InspectResourceUsage"
        eventually("the copy's memory is measured", lambda: server.post(usage).json.get("memory_mb", 0) > 2900)
        agent.machine.memory(free_percent=5)
        eventually("the copy is ended and backs off", lambda: self.copy(server, "hog").get("state") == "backoff")
        kills = self.kills(agent)
        self.assertEqual([(kill.get("deployment_id"), kill.get("job_id")) for kill in kills], [("hog", None)])
        copy = self.copy(server, "hog")
        self.assertIn("Ended to save the machine, which was at level critical because of its memory", copy["reason"])
        self.assertGreaterEqual(int(fields(agent.events("copy.failed")[0])["retry_ms"]), 60000)
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, job)["state"], "DONE")

    def copy(self, server, id):
        return next(iter(self.ok(server.get(f"/v1/deployments/{id}"))["copies"]), {})

    def put_process(self, agent, name, pid, rss_kib):
        """Adds a process to the simulated machine."""
        place = agent.machine.proc / str(name)
        place.mkdir()
        write(place / "stat", f"{pid} (job) S 1 {pid} {pid} 0 -1 0 0 0 0 0 10 10 0 0 20 0 1 0 100 0 {rss_kib // 4} 0\n")

    def test_killed_jobs_run_elsewhere_and_are_done(self):
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server, killable_types="research,talk")
        jobs = [self.hold(server, "talk", priority=1), self.hold(server, "research", priority=2)]
        dev = self.hold(server, "dev", max_attempts=1)
        self.agent(server, "sound", slots_fixed=8)
        agent.machine.memory(free_percent=4)
        for job in jobs:
            eventually("the job runs on the other node", lambda: server.job(job["job_id"])["node_id"] == "sound", 20)
        (self.dir / "gate").touch()
        for job in jobs:
            found = self.ended(server, job)
            self.assertEqual((found["state"], found["node_id"], found["attempt_id"]), ("DONE", "sound", 2), found)
            self.assertEqual(found["attempts"][0]["reason"], "EMERGENCY", found)
        self.assertEqual((self.ended(server, dev)["state"], server.job(dev["job_id"])["node_id"]), ("DONE", "sick"))


class Confined(EmergencyCase):
    """An agent in a container: a small memory limit on a big machine."""

    def limit(self, agent_machine, limit_mb, used_mb):
        root = agent_machine.proc.parent
        group = root / "sys" / "fs" / "cgroup" / "app"
        for place in (group, agent_machine.proc / "self"):
            place.mkdir(parents=True, exist_ok=True)
        write(agent_machine.proc / "self" / "cgroup", "0::/app\n")
        write(agent_machine.proc / "self" / "mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        write(group / "memory.current", f"{used_mb << 20}\n")
        write(group / "memory.max", f"{limit_mb << 20}\n")

    def figures(self, server):
        return server.get("/v1/cluster/status")["servers"]["small"]

    def test_a_group_with_room_is_not_in_danger(self):
        machine = Machine(self.dir / "host")
        self.limit(machine, 1024, 10)
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server, "small", machine=machine)
        card = self.figures(server)
        self.assertEqual((card["level"], card["mem_total_gb"], card["mem_free_gb"]), ("normal", 1, 0.99), card)
        self.limit(machine, 1024, 960)
        self.level(server, "small", "critical")
        self.assertEqual(fields(agent.events("level.change")[0])["mem_free_percent"], "6")

    def test_a_machine_that_is_full_outside_the_group_is(self):
        """5 % of the machine is more than the group may use, and it is critical all the same."""
        machine = Machine(self.dir / "host")
        self.limit(machine, 512, 10)
        server = self.start(heartbeat_ms=1000)
        self.sick(server, "small", machine=machine)
        self.assertEqual(self.figures(server)["level"], "normal")
        machine.memory(free_percent=5)
        self.level(server, "small", "critical")
        self.assertEqual(self.figures(server)["mem_total_gb"], 0.5)


class Recovery(EmergencyCase):
    @tags("long")
    def test_back_to_normal_without_a_human(self):
        """A level stays for a minute before it falls, so that it does not flap."""
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server)
        agent.machine.memory(free_percent=5)
        self.level(server, "sick", "critical")
        agent.machine.memory(free_percent=75)
        waiting = self.ok(self.task(server, command="true", queue_ms=150000), 202)
        self.level(server, "sick", "normal", 100)
        self.assertEqual(self.ended(server, waiting)["state"], "DONE")
        self.assertEqual(server.node("sick")["health"], "ready")
        changes = [fields(line) for line in agent.events("level.change")]
        self.assertEqual([change["to"] for change in changes], ["critical", "normal"], changes)

    def dance(self, border, percents, seconds=15):
        """Changes the free memory to and fro, faster than heartbeats, for `seconds`. Returns the levels that the agent logged."""
        server = self.start(heartbeat_ms=1000)
        agent = self.sick(server, border)
        self.assertEqual(server.node(border)["level"], "normal")
        begun, turns = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            agent.machine.memory(free_percent=percents[turns % len(percents)])
            turns += 1
            eventually("the agent has had the time for two samples", lambda: time.monotonic() - begun > turns * 2.5 * MEASURED_MS / 1000)
        self.assertGreater(turns, 10)
        changes = [fields(line)["to"] for line in agent.events("level.change")]
        self.assertLessEqual(len(changes), 2, changes)
        return changes

    @tags("long")
    def test_a_value_that_dances_around_the_border_of_warning(self):
        self.dance("warning", (31, 29))

    @tags("long")
    def test_a_value_that_dances_around_the_border_of_danger(self):
        self.dance("danger", (21, 19))

    @tags("long")
    def test_a_value_that_dances_around_the_border_of_critical(self):
        self.assertIn("critical", self.dance("critical", (11, 9)))
