"""What the cases share: the machine, which the runner has started, and berth in it. A case leaves the machine as it found it."""
import unittest

NEXT = "0.2.0"  # the version of berth_next (tests/meson.build), which is in the package below /mnt/next


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


# How busy the processor is says nothing where instructions are emulated, and how long something takes neither: leases are so long
# that nothing is lost because this machine was slow, and the store has so much time that nothing is refused. `slots_fixed` because the
# room for jobs is not what is tried.
AGENT = """allow_commands: true
allow_deployments: true
slots_fixed: 32
resources: {load_warning_pct: 1000, load_danger_pct: 1001, load_critical_pct: 1002}
"""
SERVER = """running_lease_ms: 15m
deploy_lease_ms: 15m
reservation_ttl_ms: 60s
store_timeout_ms: 60s
database_timeout_ms: 60s
"""


# Whom work runs as, for pgrep in bash.
WORKERS = "$(echo berth-job berth-job-{1..16} | tr ' ' ,)"


class Installed(Case):
    """berth from its package, server and agent under the shipped units, with nothing from before. Jobs may name commands."""

    settings = {"agent": AGENT, "server": SERVER}

    @classmethod
    def setUpClass(cls):
        """The package stays for the next class; to take it away and bring it again costs as much as a boot."""
        if cls.vm.run("dpkg-query --show berth").code != 0:
            cls.install("present")
        cls.vm.sh("chmod 1777 /srv")  # where work and cases meet: /tmp is each run's own
        for name, text in cls.settings.items():
            cls.vm.sh(f"cat /usr/share/berth/etc/{name}.yaml - > /etc/berth/{name}.yaml <<'END'\n{text}END")
        cls.vm.sh("systemctl enable --now --quiet berth-server berth-agent")
        cls.connected()

    @classmethod
    def tearDownClass(cls):
        """All deployments and jobs end, then nothing is left of them."""
        cls.clear()
        cls.vm.sh("systemctl stop 'berth*.service' && rm -rf /var/lib/berth/* /var/lib/berth-agent/*")

    @classmethod
    def clear(cls):
        for row in cls.vm.http("GET", "/v1/deployments").json["deployments"]:
            cls.vm.http("DELETE", f"/v1/deployments/{row['id']}")
        for job in cls.vm.http("GET", "/v1/jobs?limit=500").json["jobs"]:
            if job["state"] not in ("DONE", "FAILED"):
                cls.vm.http("POST", f"/v1/jobs/{job['job_id']}/cancel", {})
        cls.vm.eventually("nothing runs", lambda: cls.vm.run(f"pgrep --uid {WORKERS} --full 'sleep infinity|berth-witness'").code == 1)

    @classmethod
    def install(cls, which):
        """The package of the `present` version, or of the `next` one."""
        cls.vm.sh(f"dpkg --force-confold --install /mnt/{which}/berth_*.deb", limit_s=600)

    @classmethod
    def nodes(cls):
        answer = cls.vm.http("GET", "/v1/nodes")
        return answer.json["nodes"] if answer.code == 200 else []

    @classmethod
    def connected(cls):
        cls.vm.eventually("the agent is connected", lambda: any(
            node["reached_by"] == "websocket" and node["health"] == "ready" for node in cls.nodes()), 300)

    def post(self, path, body):
        """What the server answers; it must agree."""
        answer = self.vm.http("POST", path, body)
        self.assertIn(answer.code, (200, 201, 202), answer)
        return answer.json

    def submit(self, command, **more):
        """A job that runs this, by its id. It may wait: an emulated machine is busy for minutes."""
        return self.post("/v1/dispatch/task", {"type": "task", "command": command, "queue_ms": 600000, **more})["job_id"]

    def job(self, job_id):
        return self.vm.http("GET", f"/v1/jobs/{job_id}").json

    def ended(self, job_id, limit_s=300):
        """The job when it is over."""
        def over():
            found = self.job(job_id)
            return found if found.get("state") in ("DONE", "FAILED") else None
        return self.eventually(f"{job_id} ends", over, limit_s)

    def deploy(self, name, **spec):
        """On a machine that is very slow the database may not answer in time: then it is said again, as anybody would."""
        def put():
            answer = self.vm.http("PUT", f"/v1/deployments/{name}", spec)
            return answer if answer.code != 503 else None
        answer = self.eventually(f"{name} is taken in", put)
        self.assertIn(answer.code, (200, 201), answer)

    def copy_of(self, name):
        """How the one copy of a deployment is; nothing until a node told."""
        copies = self.vm.http("GET", f"/v1/deployments/{name}").json["copies"]
        return copies[0] if copies else {}

    def main_pid(self, unit):
        return int(self.sh(f"systemctl show --value --property MainPID {unit}"))
