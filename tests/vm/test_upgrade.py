"""Ten jobs and ten deployments under everything that happens to server, agent and spawner, upgrades above all."""
from case import NEXT, Installed

# Where jobs and deployments say that they began, and wait for what they shall do. A pipe costs nothing while they wait.
WITNESS = "/srv/berth-witness"


class Rounds(Installed):
    """Everything that happens to server and agent, under jobs and deployments: nothing that runs is touched, none starts twice, and every
    exit code arrives."""

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
        self.eventually("all run", lambda: len(self.processes()) == len(names), 300)
        before = self.processes()
        for number, what in enumerate(rounds, 1):
            what()
            self.connected()
            self.assertEqual(self.processes(), before, f"after {number}: {what.__name__}")
        self.sh(f"cd {WITNESS}; for i in $(seq {self.COUNT}); do echo $((i + 10)) > end$i; done")
        for i, job in enumerate(jobs, 1):
            self.assertEqual((self.ended(job)["reason"], self.job(job)["attempt_id"]), (f"EXIT_{i + 10}", 1), self.job(job))
        for i in range(1, self.COUNT + 1):
            self.assertEqual(self.eventually("it is told of", lambda: self.copy_of(f"witness{i}"))["restarts"], 0)
        self.assertEqual({name: pid for name, pid in self.processes().items() if name.startswith("copy")},
                         {name: pid for name, pid in before.items() if name.startswith("copy")})

    def processes(self):
        """Of each job and copy: every start it ever had, by process number and, if that lives, the kernel's time of its birth."""
        text = self.sh(f"cd {WITNESS}; grep --no-messages . job* copy*; cat $(sed 's|.*|/proc/&/stat|' job* copy* 2>&-) /dev/null 2>&-; true")
        births = {line.split()[0]: line.rsplit(")", 1)[1].split()[19] for line in text.splitlines() if ")" in line}
        found = {}
        for name, pid in (line.split(":") for line in text.splitlines() if ")" not in line):
            found.setdefault(name, []).append((pid, births.get(pid)))
        return found

    def replaced(self, unit, doing):
        """The unit has another process afterwards, and is active."""
        before = self.main_pid(unit)
        self.sh(doing, limit_s=600)
        self.eventually(f"{unit} is another", lambda: self.main_pid(unit) not in (0, before) and
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
        self.eventually("the agent is the next one", lambda: [node["agent_version"] for node in self.nodes()] == [NEXT])

    def go_back(self):
        self.replaced("berth-agent", "dpkg --force-confold --install /mnt/present/berth_*.deb")
        self.assertNotIn(NEXT, self.sh("berth version"))
