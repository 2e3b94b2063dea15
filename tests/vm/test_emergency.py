"""Memory that really runs out, because of a job or a deployment, with swap and without: the agent ends the one that takes it; small jobs go
on, and the kernel kills nothing."""
from case import Installed, WORKERS

# The hog takes 16 MB at a time until it is ended, in huge pages, because small ones are slow to get where instructions are emulated. Three
# small jobs wait for a file.
HOG = """import mmap
held, filled = [], b"x" * (16 << 20)
while True:
    held.append(mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    held[-1].madvise(mmap.MADV_HUGEPAGE)
    held[-1].write(filled)
"""
GATE = "/run/gate"
SMALL = f"while [ ! -e {GATE} ]; do sleep 1; done"
# Wants to run ten times a second until a file exists; prints the worst delay.
PULSE = """import os, time
worst, last = 0, time.monotonic()
while not os.path.exists("/run/pulse-ends"):
    time.sleep(0.1)
    now = time.monotonic()
    worst, last = max(worst, now - last - 0.1), now
print(worst)
"""


class HogCase(Installed):
    def setUp(self):
        self.vm.write("/run/hog.py", HOG)
        self.vm.write("/run/pulse.py", PULSE)
        self.sh(f"rm -f {GATE}; swapoff -a; systemctl restart berth-agent")  # a restart forgets that the machine was in danger
        self.connected()
        self.kernel_kills = self.count("oom_kill")
        self.since = self.sh("date +%s").strip()

    def tearDown(self):
        self.vm.http("DELETE", "/v1/deployments/hog")
        self.sh(f"touch {GATE}; swapoff -a")
        self.eventually("no job runs", lambda: not self.vm.run(f"pgrep -u {WORKERS} sleep").out)

    def count(self, name):
        return int(self.sh(f"awk '$1 == \"{name}\" {{ print $2 }}' /proc/vmstat"))

    def events(self, name):
        """The agent's log lines with this event since the case began."""
        return [line for line in self.sh(f"journalctl --no-pager --quiet --output cat --unit berth-agent --since @{self.since}").splitlines()
                if f"event={name} " in line]

    def copy(self):
        return next(iter(self.vm.http("GET", "/v1/deployments/hog").json.get("copies", ())), {})

    def start_hog(self, kind):
        if kind == "deployment":
            answer = self.vm.http("PUT", "/v1/deployments/hog", {"command": ["python3", "/run/hog.py"]})
            self.assertEqual(answer.code, 201, answer)
            return None
        return self.submit("python3 /run/hog.py", type=kind, priority=5, max_attempts=1)

    def over(self, hog):
        """The reason why the hog ended, once it has."""
        if hog:
            return self.ended(hog, 600)["reason"]
        return self.eventually("the deployment ends", lambda: self.copy().get("state") == "backoff" and self.copy().get("reason"), 600)

    def one_is_ended(self, kind, swap):
        if swap:
            self.sh("swapon /dev/vdc")
        small = [self.submit(SMALL, type="research", priority=1, max_attempts=1) for _ in range(3)]
        for job in small:
            self.eventually("the job runs", lambda: self.job(job)["state"] == "ACKED")
        reason = self.over(self.start_hog(kind))
        kills = self.events("emergency.kill")
        self.assertIn("Ended to save the machine" if kind == "deployment" else "EMERGENCY", reason)
        self.assertEqual(len(kills), 1, kills)
        self.assertIn(f"type={kind} ", kills[0])
        self.assertEqual([self.job(job)["state"] for job in small], ["ACKED"] * 3)
        self.assertEqual(self.count("oom_kill"), self.kernel_kills)
        return kills[0]


class Hogs(HogCase):
    def test_a_task_without_swap(self):
        self.one_is_ended("task", swap=False)

    def test_a_deployment_with_swap(self):
        self.one_is_ended("deployment", swap=True)


class Pulse(HogCase):
    """Needs a machine that is otherwise idle, because other programs would delay the pulse as well."""
    tags = {"pulse"}
    IDLE_S = 20
    LATE_S = 0.2

    def worst(self, work):
        """The worst delay of the pulse while work() runs."""
        self.sh("rm -f /run/pulse-ends")
        answer = self.vm.send(command="python3 /run/pulse.py", user=None, limit_s=600)
        try:
            work()
        finally:
            self.sh("touch /run/pulse-ends")
        return float(answer.get(timeout=120)["out"])

    def check(self, kind, swap):
        idle = self.worst(lambda: self.sh(f"sleep {self.IDLE_S}"))
        late = self.worst(lambda: print(f"    {self.one_is_ended(kind, swap)}", flush=True))
        print(f"    pulse of 100 ms, {kind}, {'with' if swap else 'without'} swap: late by {late:.3f} s at worst, {idle:.3f} s when idle", flush=True)
        self.assertLessEqual(late, idle + self.LATE_S)

    def test_a_task_with_swap(self):
        self.check("task", True)

    def test_a_task_without_swap(self):
        self.check("task", False)

    def test_research_with_swap(self):
        self.check("research", True)

    def test_research_without_swap(self):
        self.check("research", False)

    def test_a_deployment_with_swap(self):
        self.check("deployment", True)

    def test_a_deployment_without_swap(self):
        self.check("deployment", False)
