"""What the cases share: the machine, which the runner has started, and berth in it. A case leaves the machine as it found it."""
import shlex
import unittest

NEXT = "0.2.0"  # the version of berth_next (tests/meson.build)


class Case(unittest.TestCase):
    vm = None  # the runner's
    longMessage = True

    @property
    def evidence(self):
        """What one wants to see beside a failure."""
        return self.vm.run("journalctl --no-pager --quiet --boot --lines 60 --unit 'berth*'; systemctl --no-pager --failed --plain "
                           "--no-legend; dmesg | tail -n 10", limit_s=60).out

    def sh(self, command, user=None, limit_s=120):
        return self.vm.sh(command, user, limit_s)

    def run_as(self, user, command, limit_s=120):
        """In a session of that user: logged in by PAM, in a scope of its own."""
        return self.vm.sh(command, user, limit_s)

    def eventually(self, what, condition, limit_s=120):
        return self.vm.eventually(what, condition, limit_s)


# CPU in use says nothing here: where instructions are emulated a machine with nothing to do looks busy.
SETTINGS = """allow_commands: true
slots_fixed: 32
resources: {load_warning_pct: 1000, load_danger_pct: 1001, load_critical_pct: 1002}
"""


class Installed(Case):
    """berth from its package, server and agent under the shipped units. Jobs may name commands."""

    @classmethod
    def setUpClass(cls):
        cls.install("present")
        cls.vm.sh(f"printf %s {shlex.quote(SETTINGS)} >> /etc/berth/agent.yaml && systemctl enable --now --quiet berth-server berth-agent")
        cls.connected()

    @classmethod
    def tearDownClass(cls):
        cls.vm.sh("dpkg --purge berth && systemctl reset-failed && rm -rf /etc/berth")

    @classmethod
    def install(cls, which):
        """The package of this version, or of the `next` one."""
        cls.vm.sh(f"dpkg --force-confold --install /mnt/{which}/berth_*.deb", limit_s=300)

    @classmethod
    def nodes(cls):
        answer = cls.vm.http("GET", "/v1/nodes")
        return answer.json["nodes"] if answer.code == 200 else []

    @classmethod
    def connected(cls):
        cls.vm.eventually("the agent is connected", lambda: any(node["reached_by"] == "websocket" for node in cls.nodes()))

    def post(self, path, body):
        """What the server answers; it must agree."""
        answer = self.vm.http("POST", path, body)
        self.assertIn(answer.code, (200, 201), answer)
        return answer.json

    def submit(self, command, **more):
        """A job that runs this, by its id."""
        return self.post("/v1/dispatch/task", {"type": "task", "command": command, "queue_ms": 60000, **more})["job_id"]

    def job(self, job_id):
        return self.vm.http("GET", f"/v1/jobs/{job_id}").json

    def ended(self, job_id, limit_s=120):
        """The job when it is over."""
        def over():
            found = self.job(job_id)
            return found if found["state"] in ("DONE", "FAILED") else None
        return self.eventually(f"{job_id} ends", over, limit_s)

    def main_pid(self, unit):
        return int(self.sh(f"systemctl show --value --property MainPID {unit}"))
