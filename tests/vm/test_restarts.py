"""Running work goes on, whatever happens to the agent, the spawner and the process that keeps their group; and new work can start again at
once."""
import time

from case import Installed

JOBS = 5
# Writes a line with its pid for each start.
DEPLOYMENT = {"type": "deployment", "command": "echo $$ >> /srv/web.starts; exec sleep 1000", "enabled": True,
              "limits": {"memory_mb": 64, "pids": 20, "cpu_percent": 50}}


class Restarts(Installed):
    def setUp(self):
        self.sh(f"cd /srv && rm -f *.starts go* && for i in $(seq 0 {JOBS - 1}); do mkfifo -m 666 go$i; done; systemctl start berth-server berth-agent")
        self.connected()

    def start_work(self):
        """Starts jobs that wait at a pipe, which costs nothing, and a deployment; returns the pids of their processes."""
        self.jobs = [self.submit(f"echo $$ >> /srv/job{i}.starts; read line < /srv/go{i}; exit {i}", max_attempts=1)
                     for i in range(JOBS)]
        self.deploy("web", **DEPLOYMENT)
        self.eventually("all jobs and the deployment run", lambda: len(self.starts()) == JOBS + 1 and
                        all(self.job(job)["state"] == "ACKED" for job in self.jobs))
        return self.starts()

    def starts(self):
        return self.sh("cat /srv/*.starts 2>/dev/null || true").split()

    def check(self, before, what):
        """Checks that everything that ran still runs, nothing was started twice, and the agent runs something new."""
        begun = time.monotonic()
        self.connected()
        seconds = time.monotonic() - begun
        job = self.ended(self.submit("true"))
        self.assertEqual(job["state"], "DONE", (what, job))
        self.assertEqual(self.starts(), before, what)
        self.sh("kill -0 " + " ".join(before))
        print(f"    {what}: connected after {seconds:.1f} s, new work done after {time.monotonic() - begun:.1f} s", flush=True)

    def end_work(self):
        self.sh(f"for i in $(seq 0 {JOBS - 1}); do echo > /srv/go$i; done")
        for i, job in enumerate(self.jobs):
            ended = self.ended(job)
            self.assertEqual((ended["state"], ended["reason"]), ("DONE", None) if i == 0 else ("FAILED", f"EXIT_{i}"), ended)
        self.vm.http("DELETE", "/v1/deployments/web", None)
        self.eventually("the deployment has ended", lambda: self.vm.run("kill -0 $(cat /srv/web.starts)").code != 0)

    def test_whatever_is_killed(self):
        before = self.start_work()
        pids = " ".join(before)
        for line in self.sh(f"for pid in {pids}; do cat /proc/$pid/cgroup; done").split():
            self.assertIn("/system.slice/berth-runs.service/berth-", line)
        group = "/sys/fs/cgroup$(cut -d: -f3 /proc/$(cat /srv/web.starts)/cgroup)"
        self.assertEqual(self.sh(f"cd {group} && cat memory.max pids.max cpu.max").split("\n"), [str(64 << 20), "20", "50000 100000", ""])
        self.assertEqual(set(self.sh(f"for pid in {pids}; do cat /proc/$pid/oom_score_adj; done").split()), {"0"})
        for user in self.sh(f"stat -c %U {' '.join('/proc/' + pid for pid in before)}").split():
            self.assertRegex(user, r"^berth-job(-\d+)?$")
        for what in ("systemctl restart berth-agent", "kill -9 $(systemctl show --value -p MainPID berth-agent)",
                     "systemctl restart berth-spawner", "kill -9 $(systemctl show --value -p MainPID berth-spawner)",
                     "kill -9 $(cat /sys/fs/cgroup/system.slice/berth-runs.service/berth-self/cgroup.procs)", "systemctl daemon-reexec",
                     "systemctl restart berth-spawner berth-agent"):
            self.sh(what)
            self.check(before, what)
        self.assertEqual(self.sh("systemctl is-active berth-runs berth-spawner berth-agent").split(), ["active"] * 3)
        self.assertNotIn("219/CGROUP", self.evidence)
        self.end_work()

    def test_stopping_the_runs_ends_everything(self):
        before = self.start_work()
        self.sh("systemctl stop berth-agent berth-spawner berth-runs")
        for pid in before:  # the processes may take a moment to be reaped
            self.eventually(f"process {pid} has ended", lambda: self.vm.run(f"kill -0 {pid}").code != 0)
        self.vm.http("DELETE", "/v1/deployments/web", None)
        self.sh("systemctl start berth-agent")
        self.connected()
        for job in self.jobs:
            # systemd signals shims and jobs at the same time: some jobs end before their shim ends them.
            self.assertIn(self.ended(job)["reason"], ("STOPPED", "SIGNAL_TERM"))
        self.assertEqual(self.ended(self.submit("true"))["state"], "DONE")
