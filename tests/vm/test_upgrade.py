"""Ten jobs and ten deployments while server, agent and spawner are restarted, killed, and above all upgraded."""
from case import NEXT, Installed

# Where jobs and deployments write that they began, and where jobs wait for their exit code. Waiting at a pipe costs nothing.
WITNESS = "/srv/berth-witness"


class Rounds(Installed):
    """Everything that can happen to server and agent while jobs and deployments run: no process is touched, none is started twice, and
    every exit code arrives."""

    COUNT = 10

    def test_upgrade_and_back(self):
        self.rounds((self.upgrade, self.go_back))

    def test_twenty(self):
        some = (self.restart_agent, self.kill_agent, self.restart_spawner, self.kill_spawner, self.upgrade, self.restart_server, self.kill_server,
                self.go_back, self.kill_agent, self.restart_agent)
        self.rounds(some * 2)

    test_twenty.tags = {"long"}

    def rounds(self, rounds):
        self.sh(f"rm -rf {WITNESS}; mkdir -m 1777 {WITNESS}; cd {WITNESS}; for i in $(seq {self.COUNT}); do mkfifo -m 666 end$i; done")
        jobs = [self.submit(f"echo $$ >> {WITNESS}/job{i}; read code < {WITNESS}/end{i}; exit $code", title="berth-witness",
                            max_attempts=1) for i in range(1, self.COUNT + 1)]
        for i in range(1, self.COUNT + 1):
            self.deploy(f"witness{i}", command=f"echo $$ >> {WITNESS}/copy{i}; exec sleep infinity")
        names = [f"{kind}{i}" for kind in ("job", "copy") for i in range(1, self.COUNT + 1)]
        self.eventually("all jobs and copies run", lambda: len(self.processes()) == len(names), 300)
        before = self.processes()
        for number, what in enumerate(rounds, 1):
            what()
            self.connected()
            self.assertEqual(self.processes(), before, f"after {number}: {what.__name__}")
        self.sh(f"cd {WITNESS}; for i in $(seq {self.COUNT}); do echo $((i + 10)) > end$i; done")
        for i, job in enumerate(jobs, 1):
            self.assertEqual((self.ended(job)["reason"], self.job(job)["attempt_id"]), (f"EXIT_{i + 10}", 1), self.job(job))
        for i in range(1, self.COUNT + 1):
            self.assertEqual(self.eventually(f"the copy of witness{i} is shown", lambda: self.copy_of(f"witness{i}"))["restarts"], 0)
        self.assertEqual({name: pid for name, pid in self.processes().items() if name.startswith("copy")},
                         {name: pid for name, pid in before.items() if name.startswith("copy")})

    def processes(self):
        """{name of a job or copy: [(pid, the kernel's start time of the process, None if it has ended)] of every start}."""
        text = self.sh(f"cd {WITNESS}; grep --no-messages . job* copy*; cat $(sed 's|.*|/proc/&/stat|' job* copy* 2>&-) /dev/null 2>&-; true")
        births = {line.split()[0]: line.rsplit(")", 1)[1].split()[19] for line in text.splitlines() if ")" in line}
        found = {}
        for name, pid in (line.split(":") for line in text.splitlines() if ")" not in line):
            found.setdefault(name, []).append((pid, births.get(pid)))
        return found

    def replaced(self, unit, doing):
        """Runs `doing`; afterwards the unit must be active with another main process."""
        before = self.main_pid(unit)
        self.sh(doing, limit_s=600)
        self.eventually(f"{unit} has another main process", lambda: self.main_pid(unit) not in (0, before) and
                        self.vm.run(f"systemctl is-active {unit}").out == "active\n", 300)

    def restart_agent(self):
        self.replaced("berth-agent", "systemctl restart berth-agent")

    def kill_agent(self):
        self.replaced("berth-agent", "systemctl kill --kill-who=main --signal=KILL berth-agent")

    def restart_spawner(self):
        self.replaced("berth-spawner", "systemctl restart berth-spawner")

    def kill_spawner(self):
        self.replaced("berth-spawner", "systemctl kill --kill-who=main --signal=KILL berth-spawner")

    def restart_server(self):
        self.replaced("berth-server", "systemctl restart berth-server")

    def kill_server(self):
        self.replaced("berth-server", "systemctl kill --kill-who=main --signal=KILL berth-server")

    def upgrade(self):
        self.replaced("berth-agent", "dpkg --force-confold --install /mnt/next/berth_*.deb")
        self.assertIn(NEXT, self.sh("berth version"))
        self.eventually("the node shows the next version", lambda: [node["agent_version"] for node in self.nodes()] == [NEXT])

    def go_back(self):
        self.replaced("berth-agent", "dpkg --force-confold --install /mnt/present/berth_*.deb")
        self.assertNotIn(NEXT, self.sh("berth version"))
