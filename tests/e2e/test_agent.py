"""A real server and real agents: jobs run as processes, and no job is lost or doubled when either side dies. The agents read their
machine's load from a directory of files, so the load of the real machine does not matter."""
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import ssl
import subprocess
import tempfile
import threading
import time

from harness import BINARY, OWN_WORK, SLOW, Case, clean_env, eventually, freeze, live, tags

# A job waits until this file exists.
GATE = 'while [ ! -e "{gate}" ]; do sleep 0.05; done'


def write(path, text):
    """Replaces the file in one step, so that nobody reads half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)


class Machine:
    """A host_root: 8 cores, 16 GB, no load."""

    def __init__(self, root):
        self.proc = pathlib.Path(root) / "proc"
        self.proc.mkdir(parents=True)
        self.memory()
        write(self.proc / "loadavg", "0.10 0.10 0.10 1/100 1234\n")
        cpus = "".join(f"cpu{i} 100 0 100 90000 0 0 0 0 0 0\n" for i in range(8))
        write(self.proc / "stat", "cpu  800 0 800 720000 0 0 0 0 0 0\n" + cpus)

    def memory(self, free_percent=75):
        total = 16000000
        write(self.proc / "meminfo", f"MemTotal: {total} kB\nMemAvailable: {total * free_percent // 100} kB\n"
                                     "SwapTotal: 0 kB\nSwapFree: 0 kB\n")


class Agent:
    """A `berth agent`. Settings become flags: slots_fixed=2; `config` is the text of its configuration file."""

    def __init__(self, case, server, node_id, data_dir=None, config=None, machine=None, prefix=(), env=None, **settings):
        self.node_id = node_id
        self.dir = case.dir / (data_dir or f"agent-{node_id}")
        self.machine = machine or Machine(tempfile.mkdtemp(prefix="host-", dir=case.dir))
        flags = {"server": server if isinstance(server, str) else f"http://127.0.0.1:{server.port}",
                 "node_id": node_id, "data_dir": self.dir, "host_root": self.machine.proc.parent,
                 "slots_fixed": 4, "allow_commands": True, "allow_deployments": True, "gpu_command": "", "log_level": "debug", **OWN_WORK, **settings}
        command = [BINARY, "agent"]
        for name, value in flags.items():
            if value is None:  # set in the configuration file
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--" + name.replace("_", "-"), text]
        if config:
            path = case.dir / f"agent-{node_id}.yaml"
            path.write_text(config)
            command += ["--config", str(path)]
        handle, name = tempfile.mkstemp(prefix=f"log-{node_id}-", dir=case.dir)
        self.log_path = pathlib.Path(name)
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *prefix, *command], stdin=subprocess.DEVNULL,
                                        stdout=handle, stderr=handle, env=dict(clean_env(), **(env or {})))
        os.close(handle)
        live.add(self.process)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def connected(self):
        def there():
            if self.process.poll() is not None:
                raise AssertionError(f"the agent exited {self.process.returncode}:\n{self.log}")
            return "event=agent.connected" in self.log

        eventually(f"agent {self.node_id} is connected", there, 60)
        return self

    def events(self, event):
        return [line for line in self.log.splitlines() if f"event={event} " in line + " "]

    def kill(self):
        self.process.kill()
        self.process.wait()
        live.discard(self.process)

    def stop(self, seconds=30):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds * SLOW)
        finally:
            live.discard(self.process)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class AgentCase(Case):
    def setUp(self):
        super().setUp()
        self.agents = []
        self.addCleanup(self.end_agents)

    def agent(self, server, node_id="a1", **settings):
        agent = Agent(self, server, node_id, **settings)
        self.agents.append(agent)
        return agent.connected()

    def end_agents(self):
        """Kills the agents first, then everything that their shims still run."""
        for agent in self.agents:
            self.tails += agent.log.splitlines()[-25:]
            if agent.process in live:
                agent.kill()
        mark = f"={self.dir}/".encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                pass

    def tearDown(self):
        for agent in self.agents:
            if agent.process in live:
                self.assertEqual(agent.stop(), 0, f"SIGTERM:\n{agent.log[-3000:]}")
            for word in ("AddressSanitizer", "runtime error:", "Assertion"):
                self.assertNotIn(word, agent.log)
        super().tearDown()

    def run_task(self, server, command, type="dev", **fields):
        """Dispatches a command; the answer as JSON."""
        answer = self.task(server, type=type, command=command, **fields)
        self.assertIn(answer.status, (200, 202), str(answer))
        return answer.json

    def ended(self, server, job, seconds=20):
        """The job, once it is DONE or FAILED."""
        def over():
            found = server.job(job["job_id"], wait="1s")
            return found if found["state"] in ("DONE", "FAILED") else None

        return eventually(f"job {job['job_id']} ends", over, seconds)

    def running(self, server, job, seconds=20):
        return self.state_of(server, job, "ACKED", seconds)

    def lines(self, name):
        path = self.dir / name
        return path.read_text().split("\n")[:-1] if path.exists() else []


class Loaded(AgentCase):
    def test_what_a_job_loads_is_told(self):
        """A job changes loaded_file, the agent reports the new content, and jobs that prefer it go to this agent."""
        server = self.start()
        file = self.dir / "loaded"
        self.agent(server, "cold")
        agent = self.agent(server, "warm", loaded_file=file, config='labels: {gpu: "1"}\n')
        self.assertEqual(server.node("warm")["loaded"], [])
        job = self.run_task(server, f"echo whisper-v3 > {file}.new && mv {file}.new {file}", requires="gpu=1")
        self.assertEqual(self.ended(server, job)["state"], "DONE")
        eventually("the server shows whisper-v3 as loaded", lambda: server.node("warm")["loaded"] == ["whisper-v3"])
        for _ in range(4):
            job = self.run_task(server, "true", prefers=["whisper-v3"])
            self.assertEqual(job["node_id"], "warm")
            self.assertEqual(self.ended(server, job)["state"], "DONE")
            self.assertSlots(server, "warm", 0, 0)
        file.write_text("two words\n")
        eventually("the agent refuses the file", lambda: agent.events("agent.loaded_refused"))
        self.assertEqual(server.node("warm")["loaded"], ["whisper-v3"])
        file.unlink()
        eventually("the server shows nothing as loaded", lambda: server.node("warm")["loaded"] == [])


class Running(AgentCase):
    def test_a_command_and_its_result(self):
        server = self.start()
        self.agent(server)
        job = self.run_task(server, 'cat; echo " and $BERTH_TYPE $BERTH_NODE_ID $BERTH_ATTEMPT_ID"; echo oops >&2; '
                                    'cat "$BERTH_PAYLOAD_FILE"', payload={"n": [1, 2]})
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["node_id"]), ("DONE", "a1"), found)
        self.assertEqual(found["result"]["exit_code"], 0)
        self.assertEqual(found["result"]["tail"], '{"n": [1, 2]} and dev a1 1\noops\n{"n": [1, 2]}')
        for name in ("user_ms", "system_ms", "rss_kb_max"):
            self.assertGreaterEqual(found["result"][name], 0)
        self.assertSlots(server, "a1", 0, 0)

    def test_a_list_is_no_shell(self):
        server = self.start()
        self.agent(server)
        job = self.run_task(server, ["printf", "%s|", "a b", "$HOME", "*"])
        self.assertEqual(self.ended(server, job)["result"]["tail"], "a b|$HOME|*|")

    def test_the_result_file_becomes_the_output(self):
        server = self.start()
        self.agent(server)
        good = self.run_task(server, 'printf \'{ "rows": [1,\\n 2] }\\n\' > "$BERTH_RESULT_FILE"')
        bad = self.run_task(server, 'echo nonsense > "$BERTH_RESULT_FILE"')
        self.assertEqual(self.ended(server, good)["result"]["output"], {"rows": [1, 2]})
        result = self.ended(server, bad)["result"]
        self.assertNotIn("output", result)
        self.assertIn("JSON", result["output_error"])

    def test_executors_of_the_configuration(self):
        server = self.start()
        self.agent(server, allow_commands=False, config="""
executors:
  shout: {command: tr, args: [a-z, A-Z]}
  where: {command: /bin/sh, args: ["-c", "pwd; echo $WORD"], cwd: /, env: {WORD: hello}}
""")
        shout = self.ok(self.task(server, type="shout", payload="quiet"))
        self.assertEqual(self.ended(server, shout)["result"]["tail"], '"QUIET"')
        where = self.ok(self.task(server, type="where"))
        self.assertEqual(self.ended(server, where)["result"]["tail"], "/\nhello\n")

    def test_face_to_face(self):
        server = self.start()
        self.agent(server, semantic_langs="en,zh", config="""
nmt_pairs: [[en, zh]]
executors:
  f2f: {command: cat}
""")
        found = self.ended(server, self.placed(server))
        self.assertEqual(found["state"], "DONE", found)
        payload = json.loads(found["result"]["tail"])
        self.assertEqual((payload["session_id"], payload["src"], payload["tgt"], payload["audio_ref"]),
                         ("room-888", "en", "zh", "blob://a"))

    def test_a_failure_is_retried_on_another_agent(self):
        server = self.start()
        self.agent(server, "a1")
        self.agent(server, "a2")
        job = self.run_task(server, 'echo "attempt $BERTH_ATTEMPT_ID"; [ $BERTH_ATTEMPT_ID = 2 ] || exit 3')
        found = self.ended(server, job)
        self.assertEqual(found["state"], "DONE", found)
        first, second = found["attempts"]
        self.assertEqual((first["reason"], second["outcome"]), ("EXIT_3", "done"))
        self.assertNotEqual(first["node_id"], second["node_id"])

    def test_how_it_ended_is_told(self):
        server = self.start()
        self.agent(server, slots_fixed=8)
        cases = {"exit 3": "EXIT_3", "kill -SEGV $$": "SIGNAL_SEGV", "kill -KILL $$": "SIGNAL_KILL"}
        jobs = {command: self.run_task(server, command, max_attempts=1) for command in cases}
        missing = self.run_task(server, ["/no/such/program"], max_attempts=1)
        for command, reason in cases.items():
            found = self.ended(server, jobs[command])
            self.assertEqual((found["state"], found["reason"]), ("FAILED", reason), command)
        found = self.ended(server, missing)
        self.assertEqual((found["state"], found["reason"]), ("FAILED", "START_FAILED"))
        self.assertIn("/no/such/program", found["result"]["detail"])

    def test_secrets_by_name(self):
        """Secrets of an executor, a job and a deployment: processes get them only where a rule allows it, and they are in no log, answer or
        file of the agent."""
        server = self.start()
        keys = self.dir / "keys"
        keys.mkdir(mode=0o700)
        for name in ("api-key", "ci-key"):
            (keys / name).write_text(f"sesame of {name}\n")
            (keys / name).chmod(0o600)
        show = 'echo "$KEY" | tr a-z n-za-m; cat "$BERTH_SECRETS_DIR"/* | tr a-z n-za-m'  # rot13, so that the secret is not in the output
        config = f"""secrets_dir: {keys}
executors:
  talk: {{command: sh, args: [-c, {json.dumps(show)}], secrets: {{KEY: api-key}}}}
secrets:
  ci-key: {{types: [talk], deployments: [web]}}
"""
        agent = self.agent(server, config=config, log_level="debug")

        def run(**fields):
            return self.ended(server, self.ok(self.task(server, queue_ms=20000, max_attempts=1, **fields)))

        done = run(type="talk")
        self.assertEqual((done["state"], done["result"]["tail"]), ("DONE", "frfnzr bs ncv-xrl\n" * 2), done)
        done = run(type="talk", secrets=["ci-key"])
        self.assertEqual(done["result"]["tail"], "frfnzr bs ncv-xrl\n" * 2 + "frfnzr bs pv-xrl\n", done)
        self.assertEqual(done["secrets"], ["ci-key"])
        for fields, words in (({"type": "talk", "secrets": ["api-key"]}, "the secret api-key"),
                              ({"type": "talk", "secrets": ["ci-key"], "command": show}, "with a command of its own"),
                              ({"type": "other", "secrets": {"KEY": "ci-key"}, "command": show}, "the secret ci-key")):
            failed = run(**fields)
            self.assertEqual((failed["state"], failed["reason"]), ("FAILED", "START_FAILED"), failed)
            self.assertIn(words, failed["result"]["detail"])
        stranger = run(type="talk", command='env; ls "$BERTH_SECRETS_DIR" "$PWD/.."')
        self.assertNotIn("KEY=", stranger["result"]["tail"])
        (keys / "ci-key").unlink()
        failed = run(type="talk", secrets=["ci-key"])
        self.assertIn("The secret ci-key cannot be read", failed["result"]["detail"])
        self.problem(self.task(server, secrets=["../token"]), 400, "BAD_FIELD")
        for name, wanted in (("web", "cannot be read"), ("other", "No rule of this agent gives the secret ci-key")):
            self.ok(server.call("PUT", f"/v1/deployments/{name}", {"command": "sleep 1000", "secrets": ["ci-key"]}), 201)
            eventually(f"the copy of {name} says why it does not start",
                       lambda: wanted in str(server.get(f"/v1/deployments/{name}")["copies"]), 60)
            self.assertEqual(server.get(f"/v1/deployments/{name}")["secrets"], ["ci-key"])
        everything = agent.log + server.log + json.dumps(server.all_jobs()) + str(server.get("/v1/deployments").json)
        for path in (self.dir / "agent-a1").rglob("*"):
            everything += path.read_text(errors="replace") if path.is_file() else ""
        self.assertNotIn("sesame", everything)

    def test_what_a_run_cannot_have_is_said_at_the_start(self):
        """An agent whose data_dir is in /tmp cannot hide it from its runs, and logs that once at its start."""
        place = tempfile.TemporaryDirectory(prefix="berth-e2e-", dir="/tmp")
        self.addCleanup(place.cleanup)
        server = self.start()
        said = self.agent(server, data_dir=place.name).events("agent.tmp_shared")
        self.assertEqual(len(said), 1)
        self.assertIn("data_dir is in", said[0])
        self.assertIn("runs see the machine's /tmp", said[0])
        self.assertEqual(self.agent(server, "a2", data_dir=f"{place.name}/a2", private_tmp="off").events("agent.tmp_shared"), [])

    def test_a_job_that_fills_the_disk(self):
        server = self.start()
        self.agent(server, job_disk_mb_max=2)
        job = self.run_task(server, "head -c 9000000 /dev/urandom > big; sync big; sleep 1000", max_attempts=1)
        found = self.ended(server, job, 60)
        self.assertEqual((found["state"], found["reason"]), ("FAILED", "DISK_LIMIT"))
        self.assertIn("more than its limit of 2097152 bytes", found["result"]["detail"])
        # The job's end is in the store a moment before it is counted.
        eventually("the kill is counted", lambda: server.metrics()['berth_kills_total{reason="disk_limit"}'] == 1)

    def test_timeout(self):
        server = self.start()
        self.agent(server)
        begun = time.monotonic()
        job = self.run_task(server, "echo begun; sleep 1000", timeout_ms=300, max_attempts=1)
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["reason"]), ("FAILED", "TIMEOUT"))
        self.assertEqual(found["result"]["tail"], "begun\n")
        self.assertGreaterEqual(time.monotonic() - begun, 0.3)

    def test_cancel_ends_the_whole_tree(self):
        server = self.start()
        self.agent(server)
        pids = self.dir / "pids"
        job = self.run_task(server, f'trap "" TERM; echo $$ >> {pids}; (setsid sh -c \'trap "" TERM; echo $$ >> {pids}; '
                                    f'(sleep 1000 & echo $! >> {pids}; wait); sleep 1000\' &) ; sleep 1000')
        started = eventually("three processes of the job run", lambda: len(self.lines("pids")) == 3 and self.lines("pids"))
        self.assertTrue(all(alive(pid) for pid in started))
        self.ok(server.post(f"/v1/jobs/{job['job_id']}/cancel"))
        eventually("all of them have ended", lambda: not any(alive(pid) for pid in started), 20)
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["reason"]), ("FAILED", "CANCELLED"))
        eventually("the slot is free", lambda: server.slots("a1") == (0, 0))

    def test_process_1_of_a_container_keeps_no_zombies(self):
        """Processes that lose their parent become children of process 1, which must reap what killed shims leave."""
        server = self.start()
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] + ([] if os.geteuid() == 0 else ["-r"])
        agent = self.agent(server, prefix=unshare)

        def below(pid):
            found = []
            for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
                try:
                    name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
                except OSError:
                    continue  # it ended meanwhile
                if rest.split()[1] == str(pid):
                    found.append((int(path.parent.name), name, rest.split()[0]))
            return found + [more for child, _, _ in found for more in below(child)]

        jobs = [self.run_task(server, "sleep 1000 & sleep 1000 & sleep 1000 & wait", max_attempts=1) for _ in range(4)]
        for job in jobs:
            self.running(server, job)
        eventually("all twelve processes run", lambda: sum(name == "sleep" for _, name, _ in below(agent.process.pid)) == 12)
        for pid, name, _ in below(agent.process.pid):
            if name == "berth-shim":
                os.kill(pid, signal.SIGKILL)
        for job in jobs:
            self.assertEqual(self.ended(server, job)["reason"], "SHIM_LOST")
        eventually("the agent's only descendants are berth and berth-spawner",
                   lambda: [name for _, name, _ in below(agent.process.pid)] == ["berth", "berth-spawner"])
        agent.kill()

    def test_a_cancelled_job_tells_what_it_did(self):
        server = self.start()
        self.agent(server)
        job = self.run_task(server, "echo half; sleep 1000")
        self.running(server, job)
        eventually("the job's output is there", lambda: server.get(f"/v1/jobs/{job['job_id']}/logs").json.get("text") == "half\n")
        self.ok(server.post(f"/v1/jobs/{job['job_id']}/cancel"))
        result = eventually("the node has reported the job's end", lambda: server.job(job["job_id"]).get("result"))
        self.assertEqual((result["tail"], result["signal"]), ("half\n", 15), result)
        self.assertEqual(server.job(job["job_id"])["reason"], "CANCELLED")

    def test_output_is_read_while_it_runs_and_after(self):
        server = self.start()
        agent = self.agent(server)
        gate = self.dir / "gate"
        job = self.run_task(server, f"echo first; {GATE.format(gate=gate)}; printf 'sec\\303\\266nd'")
        self.running(server, job)

        def logs(**more):
            body = {"job_id": job["job_id"], "attempt_id": 1, "offset": 0, "max": 1000, **more}
            return server.post(f"/v1/nodes/{agent.node_id}/rpc/Job/Logs", body).json

        eventually("the first line can be read", lambda: logs().get("text") == "first\n")
        self.assertFalse(logs()["ended"])
        gate.touch()
        self.ended(server, job)
        self.assertEqual(logs()["text"], "first\nsecönd")
        self.assertTrue(logs()["ended"])
        piece = logs(offset=6, max=4) # in the middle of a character
        self.assertEqual((piece["text"], piece["next"], piece["ended"]), ("sec", 9, False))
        self.assertEqual(logs(offset=9)["text"], "önd")
        self.assertEqual(server.post(f"/v1/nodes/{agent.node_id}/rpc/Job/Logs", {"job_id": "none"}).status, 400)

    def test_usage_is_asked_over_the_connection(self):
        server = self.start()
        self.agent(server, host_root="/", monitor_interval_ms=200)
        path = "/v1/nodes/a1/rpc/NodeUnit/InspectResourceUsage"
        eventually("the agent has measured its usage", lambda: server.post(path, {}).status == 200)
        usage = server.post(path, {}).json
        self.assertGreaterEqual(usage["cpu_percent"], 0)
        self.assertGreater(usage["memory_mb"], 1)


class Refusing(AgentCase):
    """The agent decides last. The test sends false heartbeats in its name, so that the server sends it jobs that it must refuse; its next
    heartbeat corrects them."""

    def lie(self, server, node_id, **facts):
        self.ok(server.post("/v1/node/heartbeat", {"node_id": node_id, **facts}))

    def test_above_its_own_max_it_refuses_and_the_job_moves_on(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        full = self.agent(server, "full", slots_fixed=1)
        gate = self.dir / "gate"
        first = self.run_task(server, GATE.format(gate=gate))
        self.running(server, first)
        self.lie(server, "full", max=10, max_concurrent_jobs=10)
        second = self.run_task(server, "true", queue_ms=60000)
        eventually("the agent refuses the job", lambda: full.events("job.refused"))
        self.assertIn("reason=NODE_OVERLOADED", full.events("job.refused")[0])
        self.agent(server, "free")
        found = self.ended(server, second)
        self.assertEqual((found["state"], found["node_id"], found["attempt_id"]), ("DONE", "free", 1), found)
        gate.touch()
        self.assertEqual(self.ended(server, first)["state"], "DONE")

    def test_a_type_that_is_not_allowed(self):
        server = self.start(heartbeat_ms=60000, heartbeat_stale_ms=200000)
        agent = self.agent(server, "talker", allowed_types="talk")
        self.problem(self.task(server, type="dev", command="true"), 422, "NO_CAPABLE_NODE")
        self.lie(server, "talker", allowed_types=["*"])
        job = self.task(server, type="dev", command="touch " + str(self.dir / "ran"))
        eventually("the agent refuses the job", lambda: agent.events("job.refused"))
        self.assertIn("reason=TYPE_NOT_ALLOWED", agent.events("job.refused")[0])
        if job.status == 200:
            self.assertEqual(self.ended(server, job.json)["state"], "FAILED")
        self.assertFalse((self.dir / "ran").exists())

    def test_commands_only_where_they_are_allowed(self):
        server = self.start()
        agent = self.agent(server, allow_commands=False, config="executors: {dev: {command: 'true'}}")
        self.task(server, type="dev", command="touch " + str(self.dir / "ran"))
        eventually("the agent refuses the job", lambda: agent.events("job.refused"))
        self.assertIn("allow_commands", agent.events("job.refused")[0])
        self.assertFalse((self.dir / "ran").exists())
        self.assertEqual(self.ended(server, self.ok(self.task(server, type="dev")))["state"], "DONE")

    def test_a_machine_in_danger_takes_nothing(self):
        server = self.start()
        agent = self.agent(server, monitor_interval_ms=100)
        agent.machine.memory(free_percent=15)
        eventually("the server shows the node as degraded", lambda: server.node("a1")["health"] == "degraded")
        job = self.task(server, type="dev", command="true")
        self.assertNotEqual(job.status, 200, str(job))


class Protecting(AgentCase):
    """The machine's figures are files, so the test decides how loaded it is."""

    def test_a_warning_lets_only_high_priority_in(self):
        server = self.start()
        agent = self.agent(server, monitor_interval_ms=100)
        agent.machine.memory(free_percent=25)
        eventually("the server shows the level warning", lambda: server.node("a1")["level"] == "warning")
        self.assertEqual(server.node("a1")["health"], "ready")
        low = self.run_task(server, "true", priority=6, queue_ms=60000)
        high = self.run_task(server, "true", priority=7)
        self.assertEqual(self.ended(server, high)["state"], "DONE")
        self.assertNotEqual(server.job(low["job_id"])["state"], "DONE")

    def test_an_emergency_ends_the_least_important(self):
        server = self.start()
        sick = self.agent(server, "sick", monitor_interval_ms=100, protected_types="dev")
        gate = self.dir / "gate"
        wait = GATE.format(gate=gate)
        dev = self.run_task(server, wait, type="dev", max_attempts=1)
        research = self.run_task(server, wait, type="research", priority=3)
        self.running(server, dev)
        self.running(server, research)
        self.agent(server, "sound")
        sick.machine.memory(free_percent=5)
        killed = eventually("the agent ends a job", lambda: sick.events("emergency.kill"))
        self.assertIn(research["job_id"], killed[0])
        self.assertIn("reason=emergency_degradation", killed[0])
        eventually("the ended job runs on the other node", lambda: self.is_on(server, research, "sound"))
        first = server.job(research["job_id"])["attempts"][0]
        self.assertEqual((first["node_id"], first["reason"]), ("sick", "EMERGENCY"))
        self.assertTrue(self.is_on(server, dev, "sick"))  # its type is protected
        self.assertEqual(len(sick.events("emergency.kill")), 1)
        gate.touch()
        for job in (dev, research):
            self.assertEqual(self.ended(server, job)["state"], "DONE")

    def is_on(self, server, job, node_id):
        found = server.job(job["job_id"])
        return found["state"] == "ACKED" and found["node_id"] == node_id


class Secured(AgentCase):
    """TLS and tokens. The test starts its own server, because the harness supports neither."""

    TOKENS = {"ops": ["admin"], "node-token": ["node"], "reader": ["read"]}

    def serve(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.dir / "key.pem",
                        "-out", self.dir / "cert.pem"], check=True, capture_output=True)
        tokens = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "scopes": scopes,
                   **({"node_id": "a1"} if scopes == ["node"] else {})} for name, scopes in self.TOKENS.items()]
        (self.dir / "server.yaml").write_text(json.dumps({"tokens": tokens}))
        log = (self.dir / "server.log").open("wb")
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", BINARY, "server", "--listen", "127.0.0.1:0", "--config", self.dir / "server.yaml",
             "--data-dir", self.dir / "data", "--tls-cert", self.dir / "cert.pem", "--tls-key", self.dir / "key.pem"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=clean_env())
        log.close()
        live.add(process)
        self.addCleanup(self.end, process)
        text = lambda: re.search(r"addr=127\.0\.0\.1:(\d+)", (self.dir / "server.log").read_text())
        return int(eventually("the server listens", text).group(1))

    def end(self, process):
        process.kill()
        process.wait()
        live.discard(process)

    def ask(self, port, method, path, body=None):
        context = ssl.create_default_context(cafile=self.dir / "cert.pem")
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30 * SLOW)
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Authorization": "Bearer ops", "Content-Type": "application/json"})
        reply = connection.getresponse()
        found = json.loads(reply.read())
        connection.close()
        return found

    def secured(self, port, token, ca, node_id="a1"):
        (self.dir / token).write_text(token + "\n")
        agent = Agent(self, f"https://localhost:{port}", node_id, token_file=self.dir / token, ca_file=ca)
        self.agents.append(agent)
        return agent

    def test_tls_and_a_token(self):
        port = self.serve()
        agent = self.secured(port, "node-token", self.dir / "cert.pem").connected()
        job = self.ask(port, "POST", "/v1/dispatch/task", {"type": "dev", "command": "env; id; cat /proc/$PPID/environ"})
        found = eventually("the job ends", lambda: self.over(port, job))
        self.assertEqual(found["state"], "DONE", found)
        self.assertNotIn("node-token", found["result"]["tail"])
        self.assertNotIn("node-token", agent.log.replace(str(self.dir / "node-token"), ""))

    def over(self, port, job):
        found = self.ask(port, "GET", f"/v1/jobs/{job['job_id']}")
        return found if found["state"] in ("DONE", "FAILED") else None

    def test_who_is_not_let_in_does_not_hammer(self):
        port = self.serve()
        for token, node_id, words in (("wrong", "b1", "does not accept the token"), ("reader", "b2", "does not accept the token"),
                                      ("node-token", "b3", "b3")):
            agent = self.secured(port, token, self.dir / "cert.pem", node_id)
            line = eventually(f"the agent with the token {token} is refused", lambda: agent.events("agent.connect_failed"))[0]
            self.assertIn(words, line)
            self.assertGreaterEqual(int(re.search(r"retry_ms=(\d+)", line).group(1)), 10000, line)

    def test_a_certificate_nobody_vouches_for(self):
        port = self.serve()
        (self.dir / "other").mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", self.dir / "other" / "key.pem", "-out", self.dir / "other" / "cert.pem"], check=True, capture_output=True)
        agent = self.secured(port, "node-token", self.dir / "other" / "cert.pem")
        line = eventually("the agent fails to connect", lambda: agent.events("agent.connect_failed"))[0]
        self.assertIn("certificate", line)


class Settings(AgentCase):
    def test_settings_change_while_it_runs(self):
        server = self.start()
        agent = self.agent(server, config="labels: {zone: eu}\nallowed_types: [dev]\n")
        path = self.dir / "agent-a1.yaml"
        self.assertEqual(server.node("a1")["labels"], {"zone": "eu"})
        gate = self.dir / "gate"
        job = self.run_task(server, GATE.format(gate=gate))
        for text, event, words in (
                ("labels: {zone: 7}", "agent.reload_refused", "labels"),
                ("lables: {zone: us}", "agent.reload_refused", "labels"),
                ("labels: {zone: us}\nallowed_types: [dev, ops]\n", "agent.reloaded", "labels,allowed_types"),
                ("labels: {zone: us}\nallowed_types: [dev, ops]\nmonitor_interval_ms: 700\n", "agent.restart_needed",
                 "monitor_interval_ms")):
            write(path, text)
            agent.process.send_signal(signal.SIGHUP)
            line = eventually(f"{event} is logged for {text}", lambda: [line for line in agent.events(event) if words in line])
            self.assertTrue(line)
        eventually("the server shows the new labels", lambda: server.node("a1")["labels"] == {"zone": "us"})
        self.assertEqual(self.ended(server, self.run_task(server, "true", type="ops"))["state"], "DONE")
        gate.touch()  # what ran before was not touched
        self.assertEqual(len(self.ended(server, job)["attempts"]), 1)


class Dying(AgentCase):
    def printed(self, job):
        """How many bytes of output its shim has written."""
        return sum(path.stat().st_size for path in (self.dir / "agent-a1" / "runs" / f"{job['job_id']}.1").glob("log.*"))

    def test_kill_the_agent_with_running_jobs(self):
        server = self.start(running_lease_ms=60000)
        settings = {"slots_fixed": 23, "max_concurrent_jobs": 23}
        agent = self.agent(server, **settings)
        started, gate, early = self.dir / "started", self.dir / "gate", self.dir / "early"
        # Twenty print from before the kill until after it; three end while there is no agent.
        jobs = [self.run_task(server, f"echo $BERTH_JOB_ID >> {started}; n=0; while [ ! -e {early if i >= 20 else gate} ]; do "
                                      f"echo line $n; n=$((n+1)); sleep 0.25; done; echo end of {i}; exit {i % 2 * 5}",
                              max_attempts=1) for i in range(23)]
        eventually("all jobs print", lambda: len(self.lines("started")) == 23 and all(self.printed(job) for job in jobs), 30)
        agent.kill()
        before = [self.printed(job) for job in jobs[:20]]
        early.touch()
        ended = [self.dir / "agent-a1" / "runs" / f"{job['job_id']}.1" / "exit" for job in jobs[20:]]
        eventually("the shims of the three jobs have written exit records", lambda: all(path.exists() for path in ended))
        eventually("the other jobs go on printing without an agent",
                   lambda: all(self.printed(job) > had + 16 for job, had in zip(jobs, before)))
        during = [self.printed(job) for job in jobs[:20]]
        second = self.agent(server, **settings)
        self.assertEqual(len(second.events("job.adopted")), 20)
        eventually("the adopted jobs go on printing", lambda: all(self.printed(job) > had + 16 for job, had in zip(jobs, during)))
        gate.touch()
        for i, job in enumerate(jobs):
            found = self.ended(server, job)
            self.assertEqual(found["result"]["exit_code"], i % 2 * 5, found)
            self.assertEqual(found["reason"], "EXIT_5" if i % 2 else None)
            self.assertEqual(len(found["attempts"]), 1)
            lines = server.get(f"/v1/jobs/{job['job_id']}/logs").json["text"].splitlines()
            self.assertEqual(lines, [f"line {n}" for n in range(len(lines) - 1)] + [f"end of {i}"])
            if i < 20:
                self.assertGreater(len("\n".join(lines)), during[i])
        self.assertEqual(sorted(self.lines("started")), sorted(job["job_id"] for job in jobs))
        eventually("all slots are free", lambda: server.slots("a1") == (0, 0))

    def test_terminate_the_agent_and_its_jobs_run_on(self):
        server = self.start()
        agent = self.agent(server)
        gate, started = self.dir / "gate", self.dir / "started"
        job = self.run_task(server, f"echo x >> {started}; {GATE.format(gate=gate)}; echo done")
        eventually("the job runs", lambda: self.lines("started"))
        self.assertEqual(agent.stop(), 0)  # while its job still runs
        line = eventually("the server has logged the end of the connection", lambda: re.search("event=node.disconnected .*", server.log))
        self.assertIn("code=1000", line.group(0))
        self.agent(server)
        gate.touch()
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["result"]["tail"]), ("DONE", "done\n"))
        self.assertEqual(self.lines("started"), ["x"])

    def test_kill_the_server_and_results_come_when_it_is_back(self):
        server = self.start()
        agent = self.agent(server)
        gate, started = self.dir / "gate", self.dir / "started"
        jobs = [self.run_task(server, f"echo x >> {started}; {GATE.format(gate=gate)}; exit {i}", max_attempts=1)
                for i in range(3)]
        eventually("all three jobs run", lambda: len(self.lines("started")) == 3)
        port = server.port
        server.kill()
        gate.touch()
        eventually("all three jobs have ended on the agent", lambda: len(agent.events("job.done") + agent.events("job.failed")) == 3)
        agent.kill()  # and the agent too
        server = self.start(listen=f"127.0.0.1:{port}")
        self.agent(server)
        for i, job in enumerate(jobs):
            found = self.ended(server, job)
            self.assertEqual((found["result"]["exit_code"], len(found["attempts"])), (i, 1), found)
        self.assertEqual(len(self.lines("started")), 3)

    def test_a_frozen_agent_gives_up_what_is_not_its_own_any_more(self):
        server = self.start(running_lease_ms=int(6000 * SLOW), heartbeat_ms=1000, heartbeat_stale_ms=3000)
        agents = {name: self.agent(server, name) for name in ("a1", "a2")}
        gate, pids = self.dir / "gate", self.dir / "pids"
        job = self.run_task(server, f"echo $$ >> {pids}; {GATE.format(gate=gate)}", max_attempts=3)
        eventually("the job runs", lambda: self.lines("pids"))
        frozen = agents.pop(server.job(job["job_id"])["node_id"])
        freeze(frozen.process)
        try:
            eventually("the job runs on the other agent", lambda: len(self.lines("pids")) == 2, 30)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        eventually("the first run is ended", lambda: not alive(self.lines("pids")[0]), 20)
        gate.touch()
        found = self.ended(server, job)
        self.assertEqual((found["state"], found["node_id"]), ("DONE", agents.popitem()[0]), found)
        eventually("all slots are free", lambda: server.slots("a1") == server.slots("a2") == (0, 0))

    def test_two_agents_with_one_name(self):
        server = self.start()
        old = self.agent(server, "twin", data_dir="one")
        self.agent(server, "twin", data_dir="two")
        eventually("the old agent is disconnected", lambda: old.events("agent.disconnected"))
        line = old.events("agent.disconnected")[0]
        self.assertIn("code=4001", line)
        self.assertGreaterEqual(int(re.search(r"retry_ms=(\d+)", line).group(1)), 30000)
        found = self.ended(server, self.run_task(server, "true"))
        self.assertEqual(found["state"], "DONE")

    def test_one_directory_for_two_agents(self):
        server = self.start()
        self.agent(server, "a1", data_dir="same")
        second = Agent(self, server, "a1", data_dir="same")
        self.assertEqual(second.process.wait(60 * SLOW), 1)
        live.discard(second.process)
        self.assertIn("same", second.log)

    @tags("load")
    def test_kills_at_any_moment(self):
        """Short jobs run while the agent is killed again and again: no attempt runs twice, and every job ends with its own output."""
        seed = int(os.environ.get("BERTH_E2E_SEED", random.randrange(1 << 32)))
        dice = random.Random(seed)
        server = self.start(running_lease_ms=2000, reservation_ttl_ms=1000, heartbeat_ms=1000,
                            heartbeat_stale_ms=3000)
        started = self.dir / "started"
        agent = self.agent(server, slots_fixed=8)
        jobs, stop = [], threading.Event()

        def submit():
            while not stop.is_set() and len(jobs) < 150:
                answer = self.task(server, command=f"echo $BERTH_JOB_ID $BERTH_ATTEMPT_ID | tee -a {started}",
                                   queue_ms=60000, max_attempts=9)
                if answer.status in (200, 202):
                    jobs.append(answer.json)

        feeder = threading.Thread(target=submit)
        feeder.start()
        try:
            for _ in range(8):
                aim = len(self.lines("started")) + dice.randrange(1, 20)
                eventually("some more jobs have run", lambda: len(self.lines("started")) >= aim or not feeder.is_alive(), 60)
                agent.kill()
                agent = self.agent(server, slots_fixed=8)
        finally:
            stop.set()
            feeder.join()
        for job in jobs:
            found = self.ended(server, job, 120)
            self.assertEqual(found["state"], "DONE", f"seed {seed}: {found}")
            self.assertEqual(found["result"]["tail"], f"{job['job_id']} {found['attempt_id']}\n", f"seed {seed}")
        runs = self.lines("started")
        self.assertEqual(len(runs), len(set(runs)), f"seed {seed}: an attempt ran twice")
        eventually("all slots are free", lambda: server.slots("a1") == (0, 0))
