"""Real agents whose GPUs are a file that the test rewrites: which job gets which GPU, what other programs leave of them, what a job sees of
its own, and that no agent takes more than it has."""
import json
import os
import time

from harness import SLOW, eventually
from test_agent import GATE, AgentCase, write

VRAM_MB = 23034
NEED = {"vram_mb": 7000}


class GpuCase(AgentCase):
    def cards(self, *free_mb, processes=None, path="gpus.json"):
        """GPUs 0, 1, ... of 23 GB, each with that much free; processes: {id: [(pid, MB), ...]}."""
        rows = []
        for number, free in enumerate(free_mb):
            row = {"id": number, "model": "L4", "vram_mb": VRAM_MB, "vram_free_mb": free, "util": 10}
            if processes and number in processes:
                row["processes"] = [{"pid": pid, "vram_mb": mb} for pid, mb in processes[number]]
            rows.append(row)
        write(self.dir / path, json.dumps(rows))

    def gpu_agent(self, server, *free_mb, node_id="g1", **settings):
        self.cards(*(free_mb or (VRAM_MB, VRAM_MB)))
        return self.agent(server, node_id, **{"gpu_command": f"cat {self.dir / 'gpus.json'}", "slots_fixed": 16, **settings})

    def vram(self, server, node_id="g1"):
        """{id: {capacity, usable, promised, left}}"""
        resources = server.node(node_id)["resources"] or {}
        return {gpu["id"]: gpu["vram_mb"] for gpu in resources.get("gpus", [])}

    def hold(self, server, gate="gate", **more):
        job = self.run_task(server, GATE.format(gate=self.dir / gate), **{"needs": NEED, **more})
        self.running(server, job)
        return server.job(job["job_id"])

    def seen_by(self, server, script='env', **more):
        """The environment that a job prints, and the job."""
        job = self.run_task(server, f"{script} > {self.dir / 'seen'}", **more)
        found = self.ended(server, job)
        self.assertEqual(found["state"], "DONE", found)
        return dict(line.split("=", 1) for line in self.lines("seen") if "=" in line), found


class Sharing(GpuCase):
    def test_six_of_seven_run_three_and_three_and_foreign_memory_is_left_alone(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        self.gpu_agent(server)
        jobs = [self.hold(server, gate=f"gate-{n}") for n in range(6)]
        self.assertEqual(sorted(job["gpus"] for job in jobs), [[0]] * 3 + [[1]] * 3)
        seventh = self.run_task(server, "true", needs=NEED, queue_ms=600000)
        self.assertEqual(server.job(seventh["job_id"])["state"], "NEW")
        reasons = self.explained(server, seventh)
        self.assertRegex(reasons, r"GPU \d: 2 of 22\.5 GB free, needs 6\.8", reasons)
        # Another program takes 20 GB of the first job's GPU; when the job ends, its share there is not free.
        gpu = jobs[0]["gpus"][0]
        free = [VRAM_MB, VRAM_MB]
        free[gpu] -= 20000
        began = time.monotonic()
        self.cards(*free, processes={gpu: [(os.getpid(), 20000)]})
        eventually("the server knows what is usable of the GPU", lambda: self.vram(server)[gpu]["usable"] < VRAM_MB - 5000)
        took = time.monotonic() - began
        self.assertLess(took, 5 * SLOW, "it must not wait for the next heartbeat; on an idle machine it takes two seconds")
        (self.dir / "gate-0").touch()
        self.ended(server, jobs[0])
        eventually("the first job's share is returned", lambda: self.vram(server)[gpu]["promised"] == 14000)
        self.assertEqual(server.job(seventh["job_id"])["state"], "NEW")
        self.assertIn(f"GPU {gpu}:", self.explained(server, seventh))
        # The other GPU is not affected: when one of its jobs ends, the seventh job gets that share.
        other = next(n for n, job in enumerate(jobs) if job["gpus"] != [gpu])
        (self.dir / f"gate-{other}").touch()
        found = self.ended(server, seventh)
        self.assertEqual((found["state"], found["gpus"]), ("DONE", [1 - gpu]), found)
        for n in range(6):
            (self.dir / f"gate-{n}").touch()
        for job in jobs:
            self.ended(server, job)
        eventually("no memory of a GPU is promised any more", lambda: all(gpu["promised"] == 0 for gpu in self.vram(server).values()))

    def explained(self, server, job):
        answer = self.ok(server.get(f"/v1/jobs/{job['job_id']}/explain"))
        return json.dumps(answer)

    def test_a_whole_gpu_is_nobody_elses(self):
        server = self.start()
        self.gpu_agent(server)
        shared = self.hold(server)
        whole = self.hold(server, needs={"gpus": 1})
        self.assertNotEqual(shared["gpus"], whole["gpus"])
        again = self.hold(server)
        self.assertEqual(again["gpus"], shared["gpus"])
        (self.dir / "gate").touch()
        for job in (shared, whole, again):
            self.ended(server, job)

    def test_what_is_used_beyond_a_promise_is_not_given_away(self):
        """With the list of a GPU's processes the agent knows which of them belong to its jobs."""
        server = self.start(heartbeat_ms=1000)
        self.gpu_agent(server, host_root="/", config="resources: {load_warning_pct: 90000, load_danger_pct: 90000, "
                       "load_critical_pct: 90000, mem_warning_pct: 0, mem_danger_pct: 0, mem_critical_pct: 0, "
                       "swap_warning_pct: 1000, swap_danger_pct: 1000, swap_critical_pct: 1000, disk_warning_pct: 0, disk_danger_pct: 0}\n")
        job = self.run_task(server, f"echo $$ > {self.dir / 'pid'}; " + GATE.format(gate=self.dir / "gate"), needs=NEED)
        self.running(server, job)
        pid = int(eventually("the job has written its pid", lambda: self.lines("pid"))[0])
        gpu = server.job(job["job_id"])["gpus"][0]
        for own, foreign, usable in ((6000, 0, VRAM_MB), (9000, 0, VRAM_MB - 2000), (9000, 3000, VRAM_MB - 5000)):
            free = [VRAM_MB, VRAM_MB]
            free[gpu] -= own + foreign
            self.cards(*free, processes={gpu: [(pid, own), (os.getpid(), foreign)]})
            eventually(f"{usable} MB are usable with {own} and {foreign} in use", lambda: usable - VRAM_MB // 64 <=
                       self.vram(server)[gpu]["usable"] <= usable)
        (self.dir / "gate").touch()
        self.ended(server, job)

    def test_a_gpu_that_vanishes_gets_nothing_until_it_is_back(self):
        server = self.start(heartbeat_ms=1000)
        self.gpu_agent(server)
        job = self.hold(server, needs={"gpus": 2})
        self.cards(VRAM_MB)
        eventually("nothing of the missing GPU is usable", lambda: self.vram(server)[1]["usable"] == 0)
        self.assertEqual(self.vram(server)[0]["usable"], VRAM_MB)
        (self.dir / "gate").touch()
        self.ended(server, job)
        self.assertEqual(self.hold(server)["gpus"], [0])
        self.cards(VRAM_MB, VRAM_MB)
        eventually("all of the GPU is usable again", lambda: self.vram(server)[1]["usable"] == VRAM_MB)


class Seeing(GpuCase):
    def test_what_a_job_sees(self):
        server = self.start()
        self.gpu_agent(server, 100, VRAM_MB, VRAM_MB, 100)
        seen, job = self.seen_by(server, needs=NEED)
        gpu = str(job["gpus"][0])
        self.assertIn(gpu, ("1", "2"))
        for name in ("BERTH_GPUS", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            self.assertEqual(seen[name], gpu, name)
        self.assertEqual(seen["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
        self.assertEqual((seen["HIP_VISIBLE_DEVICES"], seen["GPU_DEVICE_ORDINAL"]), ("0", "0"))
        seen, job = self.seen_by(server, needs={"gpus": 2})
        self.assertEqual(job["gpus"], [1, 2])
        self.assertEqual((seen["CUDA_VISIBLE_DEVICES"], seen["HIP_VISIBLE_DEVICES"]), ("1,2", "0,1"))
        seen, job = self.seen_by(server, needs={"cpu": 0.5})
        self.assertEqual((seen["CUDA_VISIBLE_DEVICES"], seen["BERTH_GPUS"], seen["NVIDIA_VISIBLE_DEVICES"]), ("", "", "void"))
        self.assertNotIn("gpus", {name for name, value in job.items() if value})
        seen, _ = self.seen_by(server)
        for name in ("CUDA_VISIBLE_DEVICES", "BERTH_GPUS", "HIP_VISIBLE_DEVICES"):
            self.assertNotIn(name, seen)

    def test_no_gpus_no_variables(self):
        server = self.start()
        self.agent(server, "plain")
        seen, _ = self.seen_by(server, needs={"cpu": 0.5})
        self.assertNotIn("CUDA_VISIBLE_DEVICES", seen)


class Declaring(GpuCase):
    def test_measured_named_and_switched_off(self):
        server = self.start()
        self.agent(server, "measured")
        found = server.node("measured")["resources"]
        self.assertEqual(set(found), {"cpu", "mem_mb"}, found)
        self.assertEqual(found["cpu"]["capacity"], 8)
        self.assertEqual(found["mem_mb"]["capacity"], 16000000 // 1024 - 2048)
        agent = self.gpu_agent(server, config="resources: {licences: 3, cpu: 4, mem_mb: 0, mem_reserve_gb: 1}\n")
        found = server.node("g1")["resources"]
        self.assertEqual({name: row["capacity"] for name, row in found.items() if name != "gpus"}, {"cpu": 4, "licences": 3})
        self.assertEqual([(gpu["id"], gpu["model"]) for gpu in found["gpus"]], [(0, "L4"), (1, "L4")])
        self.assertIn("resources", agent.events("agent.resources")[0])
        # Settings that are reloaded.
        (self.dir / "agent-g1.yaml").write_text("resources: {licences: 5, gpus: []}\n")
        agent.process.send_signal(1)
        eventually("the server shows the new resources", lambda: server.node("g1")["resources"].get("licences", {}).get("capacity") == 5)
        found = server.node("g1")["resources"]
        self.assertEqual(set(found), {"cpu", "mem_mb", "licences"}, found)

    def test_memory_that_others_take_is_told_at_once(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        agent = self.agent(server, "m1", monitor_interval_ms=200)
        before = server.node("m1")["resources"]["mem_mb"]["usable"]
        agent.machine.memory(free_percent=60)
        eventually("the usable memory has fallen", lambda: server.node("m1")["resources"]["mem_mb"]["usable"] < before - 2000)
        waiting = self.run_task(server, "true", needs={"mem_mb": before - 500}, queue_ms=600000)
        self.assertEqual(server.job(waiting["job_id"])["state"], "NEW")


class Admission(GpuCase):
    def forced(self, server, **needs):
        """Sends false heartbeats of a machine four times as large, so that the server sends a job that does not fit. Returns the line with
        which the agent refuses it."""
        large = {"cpu": 32, "mem_mb": 64000, "licences": 9,
                 "gpus": [{"id": 0, "vram_mb": 90000}, {"id": 1, "vram_mb": 90000}]}

        def refused():
            self.ok(server.post("/v1/node/heartbeat", {"node_id": "g1", "health": "ready", "max": 16, "resources": large, "free": large}))
            self.task(server, command=f"touch {self.dir / 'ran'}", needs=needs)
            return self.agents[-1].events("job.refused")

        line = eventually("the agent refuses the job", refused)[0]
        self.assertFalse((self.dir / "ran").exists())
        self.assertIn("reason=NODE_OVERLOADED", line)
        return line

    def test_an_agent_takes_no_more_than_it_has(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        self.gpu_agent(server, config="resources: {licences: 2}\n")
        self.assertIn("mem_mb: ", self.forced(server, mem_mb=40000))

    def test_an_agent_takes_no_more_vram_than_it_has(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        self.gpu_agent(server)
        self.assertRegex(self.forced(server, vram_mb=30000), r"GPU \d: 22\.5 of 22\.5 GB free, needs 29\.3")

    def test_what_was_promised_is_known_after_a_restart(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        agent = self.gpu_agent(server, config="resources: {licences: 2}\n")
        job = self.hold(server, needs={"licences": 2, "slots": 3})
        eventually("three slots are in use", lambda: server.slots("g1") == (0, 3))
        agent.kill()
        self.gpu_agent(server, config="resources: {licences: 2}\n")
        self.assertIn("licences: 0 of 2 free, needs 1", self.forced(server, licences=1))
        (self.dir / "gate").touch()
        self.ended(server, job)


class Emergency(GpuCase):
    def test_who_leaves_too_little_of_a_gpu_is_ended(self):
        """A job that takes far more than it asked for leaves less than was promised to the other job."""
        server = self.start(heartbeat_ms=1000)
        agent = self.gpu_agent(server, host_root="/", monitor_interval_ms=200,
                               config="resources: {load_warning_pct: 90000, load_danger_pct: 90000, load_critical_pct: 90000, "
                               "mem_warning_pct: 0, mem_danger_pct: 0, mem_critical_pct: 0, swap_warning_pct: 1000, "
                               "swap_danger_pct: 1000, swap_critical_pct: 1000, disk_warning_pct: 0, disk_danger_pct: 0}\n")
        pids = {}
        for name in ("modest", "greedy"):
            job = self.run_task(server, f"echo $$ > {self.dir / name}; " + GATE.format(gate=self.dir / "gate"), needs={"vram_mb": 10000},
                                max_attempts=1)
            self.running(server, job)
            pids[name] = (job, int(eventually("the job has written its pid", lambda: self.lines(name))[0]))
        gpu = server.job(pids["modest"][0]["job_id"])["gpus"][0]
        self.assertEqual(server.job(pids["greedy"][0]["job_id"])["gpus"], [gpu])
        # The GPU is full with what was promised: no job is ended.
        free = [VRAM_MB, VRAM_MB]
        free[gpu] = VRAM_MB - 20000 - 2500
        self.cards(*free, processes={gpu: [(pids["modest"][1], 10000), (pids["greedy"][1], 10000)]})
        eventually("the server knows the new figures", lambda: self.vram(server)[gpu]["usable"] < VRAM_MB - 2000)
        seen = server.node("g1")["last_heartbeat_ms"]
        eventually("the agent has measured for 1.5 s more", lambda: server.node("g1")["last_heartbeat_ms"] > seen + 1500)
        self.assertEqual(agent.events("emergency.kill"), [])
        self.assertEqual(server.node("g1")["level"], "normal")
        self.cards(*free, processes={gpu: [(pids["modest"][1], 6000), (pids["greedy"][1], 16000)]})
        found = self.ended(server, pids["greedy"][0])
        self.assertEqual(found["state"], "FAILED")
        line = agent.events("emergency.kill")[0]
        self.assertIn("by=vram", line)
        self.assertIn(f"gpu={gpu}", line)
        self.assertEqual(found["result"]["emergency"]["gpu"], gpu)
        self.assertEqual(server.job(pids["modest"][0]["job_id"])["state"], "ACKED")
        (self.dir / "gate").touch()
        self.assertEqual(self.ended(server, pids["modest"][0])["state"], "DONE")


class Standing(GpuCase):
    def test_what_a_deployment_needs_is_kept_for_it(self):
        """What a deployment needs is reserved for it even before it uses it. A deployment without room waits, and explain shows what is
        missing."""
        server = self.start(heartbeat_ms=1000)
        agent = self.gpu_agent(server, config="resources: {licences: 3}\n")

        def left():
            return {**{name: row["left"] for name, row in server.node("g1")["resources"].items() if name != "gpus"},
                    **{f"gpu{number}": row["left"] for number, row in self.vram(server).items()}}

        before = eventually("the store has counted what is left", lambda: left() if left()["cpu"] is not None else None)
        needs = {"mem_mb": 3000, "licences": 2, "vram_mb": 15000}
        for name in ("first", "second"):
            self.ok(server.call("PUT", f"/v1/deployments/{name}", {"command": f"env > {self.dir / name}; exec sleep 1000", "needs": needs}), 201)
        eventually("one of the deployments runs", lambda: self.lines("first") or self.lines("second"))
        runs, waits = ("first", "second") if self.lines("first") else ("second", "first")
        eventually("the needs of that deployment are subtracted from what is left",
                   lambda: left()["licences"] == 1 and left()["mem_mb"] <= before["mem_mb"] - 2700 and
                   sorted((left()["gpu0"], left()["gpu1"]))[0] <= VRAM_MB - 15000)
        seen = dict(line.split("=", 1) for line in eventually("the copy has written its environment",
                                                              lambda: self.lines(runs)) if "=" in line)
        self.assertIn(seen["CUDA_VISIBLE_DEVICES"], ("0", "1"))
        eventually("explain shows what the other deployment lacks",
                   lambda: "licences: 1 of 3 free, needs 2" in json.dumps(self.ok(server.get(f"/v1/deployments/{waits}/explain"))))
        self.assertEqual(self.ok(server.get(f"/v1/deployments/{waits}"))["generation"], 0, "no node tried to claim it")
        self.assertEqual(self.ok(server.get(f"/v1/deployments/{runs}"))["needs"], needs)
        # The next agent reserves it again.
        agent.kill()
        self.gpu_agent(server, config="resources: {licences: 3}\n")
        eventually("the needs of the deployment are still reserved", lambda: left()["licences"] == 1)
        self.ok(server.call("DELETE", f"/v1/deployments/{runs}"))
        eventually("the other deployment runs", lambda: self.lines(waits), 90)
