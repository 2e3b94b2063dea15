"""berth as its package installs it: users, units, settings, limits, and a reboot. test_restarts.py has restarts."""
from case import AGENT, SERVER, Installed


class Units(Installed):
    def test_the_package_is_whole(self):
        self.assertEqual(self.sh("systemctl is-active berth-server berth-agent").split(), ["active", "active"])
        self.assertEqual(self.sh("systemd-analyze verify --man=no $(systemctl list-unit-files --no-legend 'berth*' | cut -d' ' -f1) 2>&1 | "
                                 "grep -i berth || true"), "")
        self.assertIn("berth", self.sh("id berth && id berth-agent && id berth-job"))

    def test_a_job(self):
        job = self.ended(self.submit("id -un; exit 3", max_attempts=1))
        self.assertEqual((job["state"], job["reason"], job["result"]["exit_code"]), ("FAILED", "EXIT_3", 3), job)
        job = self.ended(self.submit("id -un"))
        self.assertEqual((job["state"], job["result"]["tail"]), ("DONE", job["result"]["tail"]), job)
        self.assertRegex(job["result"]["tail"], r"^berth-job-\d+\n$")

    def test_limits_are_kept(self):
        """The kernel enforces limits, and the copies show what it did."""
        self.deploy("greedy", command="exec python3 -c 'x = b\"x\" * (200 << 20); import time; time.sleep(1000)'", limits={"memory_mb": 64})
        self.deploy("bomb", command="for i in 1 2 3 4 5 6 7 8 9; do sleep infinity & done; wait", limits={"pids": 5})
        self.deploy("spinner", command="echo $$ > /srv/spinner.pid; while :; do :; done", limits={"cpu_percent": 10})
        copy = self.eventually("the greedy copy was ended and restarted",
                               lambda: self.copy_of("greedy") if self.copy_of("greedy").get("restarts", 0) > 0 else None)
        self.assertIn("memory", copy["reason"].lower(), copy)
        self.eventually("the bomb's log shows that fork failed",
                        lambda: "fork" in self.vm.http("GET", "/v1/deployments/bomb/logs").json.get("text", ""))
        self.eventually("the spinner is throttled", lambda: "nr_throttled 0\n" not in self.sh(
            "cat /sys/fs/cgroup$(cut -d: -f3 /proc/$(cat /srv/spinner.pid)/cgroup)/cpu.stat 2>/dev/null || echo nr_throttled 0"))
        for name in ("greedy", "bomb", "spinner"):
            self.vm.http("DELETE", f"/v1/deployments/{name}")


class Reboots(Installed):
    """To the server the agent after a reboot is another one: it waits until the lease of the earlier one has ended."""
    settings = {"agent": AGENT, "server": SERVER.replace("deploy_lease_ms: 15m", "deploy_lease_ms: 1m")}

    def test_reboot(self):
        """Deployments run again. The ends of jobs are known, also of a job that ended while the server was stopped."""
        self.sh("rm -f /srv/end /srv/always /srv/untold")
        self.deploy("always", command="echo >> /srv/always; exec sleep infinity")
        told = self.submit("exit 3", max_attempts=1)
        self.ended(told)
        untold = self.submit("echo > /srv/untold; until [ -e /srv/end ]; do sleep 1; done; exit 5", max_attempts=1)
        self.eventually("the job and the deployment run",
                        lambda: self.vm.run("test -s /srv/untold").code == 0 and self.copy_of("always").get("state") == "running")
        self.sh("systemctl stop berth-server && touch /srv/end")
        self.eventually("the job has ended", lambda: self.vm.run("grep -rlsa 'srv/untol[d]' /proc/[0-9]*/cmdline").code != 0)
        self.vm.reboot()
        self.connected()
        self.assertEqual(self.ended(told)["reason"], "EXIT_3")
        self.assertEqual(self.ended(untold)["reason"], "EXIT_5")
        self.eventually("the deployment runs again", lambda: self.copy_of("always").get("state") == "running" and
                        self.sh("wc -l < /srv/always").strip() == "2", 300)
        self.assertEqual(self.vm.run("pgrep --count --uid berth-job --exact sleep").out.strip(), "1")
        self.vm.http("DELETE", "/v1/deployments/always")
