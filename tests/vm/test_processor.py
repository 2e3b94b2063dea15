"""Processors that are really kept busy by jobs, with swap turned on: of the jobs that compute the least important one is ended, and idle
jobs are not."""
from case import Installed

# No job computes before all run: the first ones would otherwise make the machine too busy to accept the next.
SPIN = "while [ ! -e /run/start ]; do sleep 1; done; for i in 1 2; do while :; do :; done & done; wait"


class Processors(Installed):
    settings = {"agent": "allow_commands: true\nslots_fixed: 32\n", "server": Installed.settings["server"]}

    def running(self, command, **more):
        """A job with this command, once it runs. While the machine is busy with starting another job it is refused, and submitted again."""
        def begun():
            job = self.submit(command, max_attempts=1, **more)
            found = self.eventually("the job is accepted or refused",
                                    lambda: self.job(job)["state"] in ("ACKED", "FAILED") and self.job(job), 600)
            return found["state"] == "ACKED" and job

        return self.eventually("the job runs", begun, 600)

    def test_all_are_busy(self):
        self.sh("swapon /dev/vdc; rm -f /run/gate /run/start; mkfifo -m 666 /run/gate")
        idle = [self.running("read line < /run/gate || true", type="research", priority=1) for _ in range(3)]
        lesser, greater = [self.running(SPIN, priority=priority) for priority in (3, 5)]
        self.sh("touch /run/start")
        self.assertEqual(self.ended(lesser, 600)["reason"], "EMERGENCY")
        kills = [line for line in self.sh("journalctl --no-pager --quiet --output cat --boot --unit berth-agent").splitlines()
                 if "event=emergency.kill " in line and "by=cpu" in line]
        self.assertEqual(len(kills), 1, kills)
        self.assertIn(lesser, kills[0])
        self.assertEqual([self.job(job)["state"] for job in (greater, *idle)], ["ACKED"] * 4)
        self.vm.http("POST", f"/v1/jobs/{greater}/cancel", {})
        self.sh("echo > /run/gate; swapoff -a")
        for job in idle:
            self.assertEqual(self.ended(job)["state"], "DONE")
        self.eventually("the node is at level normal again", lambda: [node["level"] for node in self.nodes()] == ["normal"], 300)
