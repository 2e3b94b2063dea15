"""The limits and the weight of a job's control group follow from the job's needs."""
from case import AGENT, Installed

# The emulated processor is always busy, so more cpu is declared than there is.
SETTINGS = AGENT.replace("resources: {", "resources: {cpu: 64, mem_reserve_gb: 0.1, ")
LOOK = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); cat memory.max cpu.weight cpu.max"


class Needs(Installed):
    settings = {**Installed.settings, "agent": SETTINGS}

    def seen(self, **more):
        """(memory.max, cpu.weight, cpu.max) of its group, as a job reads them."""
        job = self.ended(self.submit(LOOK, max_attempts=1, **more))
        self.assertEqual(job["state"], "DONE", job)
        return job["result"]["tail"].split("\n")[:3]

    def test_limits_follow_needs(self):
        memory, weight, quota = self.seen(needs={"cpu": 1.5, "mem_mb": 100})
        self.assertEqual((memory, weight, quota), (str(100 << 20), "150", "max 100000"))
        _, weight, quota = self.seen()
        self.assertEqual((weight, quota), ("100", "max 100000"))

    def test_strict(self):
        self.sh("echo 'cpu_strict: true' >> /etc/berth/agent.yaml && systemctl reload berth-agent")
        self.eventually("the agent uses cpu_strict", lambda: self.seen(needs={"cpu": 0.5})[1:] == ["50", "50000 100000"])
