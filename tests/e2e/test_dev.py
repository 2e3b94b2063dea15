"""`berth dev`: a server with an agent. When it ends, nothing that it started is left."""
import os
import pathlib
import pty
import pwd
import re
import signal
import subprocess
import unittest

from harness import BINARY, OWN_WORK, SLOW, Case, berth, calm_machine, clean_env, eventually, live, settings_env
from test_agent import AgentCase, alive

# It leaves its parent, session and process group, and ignores what a terminal sends.
DAEMON = "setsid sh -c 'trap \"\" INT HUP; sleep 600 & echo $! > {file}.new; mv {file}.new {file}; wait' &"


class DevCase(Case):
    def setUp(self):
        super().setUp()
        self.env = {"BERTH_HOST_ROOT": calm_machine(self.dir), **settings_env(OWN_WORK)}
        self.process = None
        self.addCleanup(self.end)

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        live.discard(self.process)

    def dev(self, *flags):
        """Starts `berth dev`; commands find it through `env`."""
        self.log_path = self.dir / "dev.log"
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", BINARY, "dev", "--listen", "127.0.0.1:0", "--data-dir", self.dir / "data", *flags],
                cwd=self.dir, env={**clean_env(), **self.env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        live.add(self.process)
        found = eventually("berth dev listens", lambda: re.search(r"event=server\.listening addr=(\S+)", self.log), 30)
        self.env["BERTH_ADDR"] = f"http://{found.group(1)}"
        eventually("the agent of berth dev is connected", lambda: self.log.count("event=agent.connected"), 30)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def say(self, *words, code=0):
        done = berth(*words, env=self.env)
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, *words):
        return self.say("job", "submit", "-o", "name", *words).strip()

    def ended(self, *numbers):
        """Sends the signals, each after the one before was logged; returns the exit code."""
        for count, number in enumerate(numbers, 1):
            os.killpg(self.process.pid, number)
            if count < len(numbers):
                eventually(f"signal number {count} is logged", lambda: self.log.count("event=agent.stopping") >= count)
        code = self.process.wait(60 * SLOW)
        self.assertNotIn("AddressSanitizer", self.log)
        return code

    def pid_in(self, file):
        return int(eventually(f"{file.name} is written", lambda: file.exists() and file.read_text().strip()))


class Dev(DevCase):
    def test_what_a_command_exits_with_shuts_nothing(self):
        """The failing jobs run on the only node; they must not shut it for this type."""
        self.dev()
        for _ in range(4):
            self.say("job", "submit", "--wait=30s", "--", "sh", "-c", "exit 1", code=7)
        job = self.submit("--wait=30s", "--", "echo", "hello")
        self.assertEqual(self.say("job", "logs", job), "hello\n")
        self.assertEqual(self.ended(signal.SIGINT), 0)

    def test_ctrl_c_ends_what_it_started(self):
        self.dev()
        job_file, daemon_file, copy_file = (self.dir / name for name in ("job.pid", "daemon.pid", "copy.pid"))
        job = self.submit("--", "sh", "-c", f"echo $$ > {job_file}; exec sleep 600")
        tree = self.submit("--", "sh", "-c", DAEMON.format(file=daemon_file) + " sleep 600")
        spec = self.dir / "web.yaml"
        spec.write_text(f"id: web\ncommand: echo $$ > {copy_file}; exec sleep 600\n")
        self.say("deploy", "apply", spec)
        pids = [self.pid_in(file) for file in (job_file, daemon_file, copy_file)]
        self.assertEqual(self.ended(signal.SIGINT), 0)
        said = next(line for line in self.log.splitlines() if "ending" in line)
        for name in (f"job {job}", "deployment web"):
            self.assertIn(name, said)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertEqual(self.left(), [])
        # The next berth dev does not run these jobs, but runs the deployment again.
        copy_file.unlink()
        self.dev()
        states = {one: self.say("job", "show", one, "-o", "json") for one in (job, tree)}
        self.assertIn('"state":"FAILED"', states[job])
        self.assertIn('"reason":"CANCELLED"', states[job])
        for text in states.values():
            self.assertRegex(text, '"state":"(FAILED|DONE)"')
        again = self.pid_in(copy_file)
        self.assertEqual(self.ended(signal.SIGTERM), 0)
        self.assertFalse(alive(again))

    def left(self):
        """The command lines of processes with this case's directory in their environment."""
        mark, found = f"={self.dir}/".encode(), []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append((path.parent / "cmdline").read_bytes())
            except OSError:
                pass
        return found

    def test_the_second_one_waits_for_no_grace(self):
        self.dev()
        deaf = self.dir / "deaf.pid"
        self.submit("--", "sh", "-c", f"trap '' TERM; echo $$ > {deaf}; while :; do sleep 600; done")
        pid = self.pid_in(deaf)
        self.assertEqual(self.ended(signal.SIGINT, signal.SIGINT), 0)
        self.assertFalse(alive(pid))
        self.assertEqual(self.left(), [])

    def test_kill_9_ends_nothing(self):
        """A killed berth dev leaves its jobs running, and the next one adopts them."""
        self.dev()
        file = self.dir / "job.pid"
        job = self.submit("--", "sh", "-c", f"echo $$ > {file}; exec sleep 600")
        pid = self.pid_in(file)
        self.process.kill()
        self.process.wait()
        self.dev()
        self.assertIn('"state":"ACKED"', self.say("job", "show", job, "-o", "json"))
        self.assertTrue(alive(pid))
        self.assertEqual(self.ended(signal.SIGINT), 0)
        self.assertFalse(alive(pid))


@unittest.skipUnless(os.geteuid() == 0, "root")
class DevAsRoot(DevCase):
    """With default settings its work runs as another user, and can read what it needs although the directory is root's alone."""

    def setUp(self):
        super().setUp()
        self.env = {name: value for name, value in self.env.items() if name not in settings_env(OWN_WORK)}
        os.chmod(self.dir, 0o700)
        try:
            self.nobody = pwd.getpwnam("berth-job")
        except KeyError:
            self.nobody = pwd.getpwnam("nobody")

    def output(self, *words):
        return self.say("job", "logs", self.submit("--wait=60s", *words))

    def test_work_is_not_root(self):
        self.dev()
        self.assertEqual(self.output("--", "sh", "-c", "id -u; grep -hE '^(CapEff|NoNewPrivs)' /proc/self/status"),
                         f"{self.nobody.pw_uid}\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n")
        self.assertNotIn("jobs_not_apart", self.log)

    def test_its_files(self):
        self.dev()
        job = self.submit("--wait=60s", "--payload", '{"n":1}', "--", "sh", "-c",
                          'cat "$BERTH_PAYLOAD_FILE"; echo; cp "$BERTH_PAYLOAD_FILE" "$BERTH_RESULT_FILE"; mkdir a; touch a/b; chmod 0 a')
        self.assertEqual(self.say("job", "logs", job), '{"n":1}\n')
        self.assertIn('"output":{"n":1}', self.say("job", "show", job, "-o", "json"))
        work = self.dir / "data" / "agent" / "runs" / f"{job}.1" / "work"
        eventually("the job's working directory is removed", lambda: not work.exists())

    def test_nothing_of_ours(self):
        self.dev()
        secret = self.dir / "data" / "secret"
        secret.write_text("secret")
        said = self.output("--", "sh", "-c", f"cat {secret}; cat ../spec; cat /proc/$PPID/environ; kill -9 $PPID; kill -9 {self.process.pid}; "
                           "sudo -n id; id -u")
        self.assertNotIn("secret\n", said.replace("/secret", ""))
        self.assertTrue(said.endswith(f"\n{self.nobody.pw_uid}\n"), said)
        self.assertIsNone(self.process.poll())

    def test_root_only_where_it_is_allowed(self):
        self.env.update(settings_env({"job_user": "root"}))
        self.dev()
        job = self.submit("--", "id")
        self.say("job", "wait", job, code=7)
        self.assertIn("without allow_root", self.say("job", "show", job, "-o", "json"))
        self.assertEqual(self.ended(signal.SIGINT), 0)
        self.env.update(settings_env({"allow_root": True}))
        self.dev()
        self.assertEqual(self.output("--", "id", "-u"), "0\n")

    def test_deployments_are_not_root(self):
        self.dev()
        spec = self.dir / "web.yaml"
        spec.write_text("id: web\ncommand: id -u; exec sleep 600\n")
        self.say("deploy", "apply", spec)
        eventually("the log shows the user of the copy",
                   lambda: berth("deploy", "logs", "web", env=self.env).stdout == f"{self.nobody.pw_uid}\n", 60)
        self.assertEqual(self.ended(signal.SIGINT), 0)


class AnAgentAtATerminal(AgentCase):
    def test_it_says_what_runs_on(self):
        server = self.start()
        agent = self.agent(server)
        gate = self.dir / "gate"
        job = self.run_task(server, f"touch {gate}.begun; until [ -e {gate} ]; do sleep 0.05; done")
        eventually("the job runs", pathlib.Path(f"{gate}.begun").exists)
        self.assertEqual(agent.stop(), 0)
        self.assertNotIn("run on without it", agent.log, "that is for agents at a terminal")
        # The same at a terminal.
        ours, its = pty.openpty()
        second = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", BINARY, "agent", "--server", f"http://127.0.0.1:{server.port}", "--node-id", "a1",
             "--data-dir", agent.dir, "--host-root", agent.machine.proc.parent, "--slots-fixed", "4", "--allow-commands"],
            env=clean_env(), stdin=its, stdout=its, stderr=its, start_new_session=True)
        os.close(its)
        said = ""
        while "agent.connected" not in said:
            said += os.read(ours, 4096).decode()
        second.send_signal(signal.SIGINT)
        try:
            while True:
                said += os.read(ours, 4096).decode()
        except OSError:  # the agent closed its end
            pass
        os.close(ours)
        self.assertEqual(second.wait(20 * SLOW), 0)
        self.assertRegex(said, rf"berth agent: 1 run on without it: job {job['job_id']}\. ")
        gate.touch()
        self.agent(server)
        self.assertEqual(self.ended(server, job)["state"], "DONE")
