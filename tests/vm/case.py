"""What the cases share: the machine, which the runner has started, and berth in it. A case leaves the machine as it was."""
import unittest

NEXT = "0.2.0"  # the version of berth_next (tests/meson.build); its package is in /mnt/next


class Case(unittest.TestCase):
    vm = None  # set by the runner
    longMessage = True

    @property
    def evidence(self):
        """What helps to understand a failure: logs, failed units, the end of dmesg."""
        return self.vm.run("journalctl --no-pager --quiet --boot --lines 60 --unit 'berth*'; systemctl --no-pager --failed --plain "
                           "--no-legend; dmesg | tail -n 10", limit_s=60).out

    def sh(self, command, user=None, limit_s=120):
        return self.vm.sh(command, user, limit_s)

    def run_as(self, user, command, limit_s=120):
        """Runs a command in a session of that user: logged in by PAM, in a scope of its own."""
        return self.vm.sh(command, user, limit_s)

    def eventually(self, what, condition, limit_s=120):
        return self.vm.eventually(what, condition, limit_s)


# Where instructions are emulated, processor load and durations mean nothing. So leases are long enough that nothing is lost because the
# machine is slow, and the store has enough time that nothing is refused. `slots_fixed` is set because room for jobs is not tested.
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


# The users that work runs as, for pgrep in bash.
WORKERS = "$(echo berth-job berth-job-{1..16} | tr ' ' ,)"


class Installed(Case):
    """berth installed from its package, server and agent under the shipped units, with no state from before. Jobs may name commands."""

    settings = {"agent": AGENT, "server": SERVER}

    @classmethod
    def setUpClass(cls):
        """The package stays installed for the next class, because removing and installing it takes as long as a boot."""
        if cls.vm.run("dpkg-query --show berth").code != 0:
            cls.install("present")
        cls.vm.sh("chmod 1777 /srv")  # the directory that work and cases share; each run has its own /tmp
        for name, text in cls.settings.items():
            cls.vm.sh(f"cat /usr/share/berth/etc/{name}.yaml - > /etc/berth/{name}.yaml <<'END'\n{text}END")
        cls.vm.sh("systemctl enable --now --quiet berth-server berth-agent")
        cls.connected()

    @classmethod
    def tearDownClass(cls):
        """Ends all deployments and jobs and removes their data."""
        cls.clear()
        cls.vm.sh("systemctl stop 'berth*.service' && rm -rf /var/lib/berth/* /var/lib/berth-agent/*")

    @classmethod
    def clear(cls):
        for row in cls.vm.http("GET", "/v1/deployments").json["deployments"]:
            cls.vm.http("DELETE", f"/v1/deployments/{row['id']}")
        for job in cls.vm.http("GET", "/v1/jobs?limit=500").json["jobs"]:
            if job["state"] not in ("DONE", "FAILED"):
                cls.vm.http("POST", f"/v1/jobs/{job['job_id']}/cancel", {})
        cls.vm.eventually("no job or copy runs",
                          lambda: cls.vm.run(f"pgrep --uid {WORKERS} --full 'sleep infinity|berth-witness'").code == 1)

    @classmethod
    def install(cls, which):
        """Installs the package of the `present` or the `next` version."""
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
        """The server's answer, which must be a success."""
        answer = self.vm.http("POST", path, body)
        self.assertIn(answer.code, (200, 201, 202), answer)
        return answer.json

    def submit(self, command, **more):
        """The id of a new job with this command. It may wait, because an emulated machine is busy for minutes."""
        return self.post("/v1/dispatch/task", {"type": "task", "command": command, "queue_ms": 600000, **more})["job_id"]

    def job(self, job_id):
        return self.vm.http("GET", f"/v1/jobs/{job_id}").json

    def ended(self, job_id, limit_s=300):
        """The job once it has ended."""
        def over():
            found = self.job(job_id)
            return found if found.get("state") in ("DONE", "FAILED") else None
        return self.eventually(f"{job_id} ends", over, limit_s)

    def deploy(self, name, **spec):
        """Puts a deployment. On a very slow machine the database may not answer in time; then the request is repeated."""
        def put():
            answer = self.vm.http("PUT", f"/v1/deployments/{name}", spec)
            return answer if answer.code != 503 else None
        answer = self.eventually(f"{name} is stored", put)
        self.assertIn(answer.code, (200, 201), answer)

    def copy_of(self, name):
        """The only copy of a deployment; {} until its node has reported it."""
        copies = self.vm.http("GET", f"/v1/deployments/{name}").json["copies"]
        return copies[0] if copies else {}

    def main_pid(self, unit):
        return int(self.sh(f"systemctl show --value --property MainPID {unit}"))
