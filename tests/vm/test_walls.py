"""What a job tries under the shipped units, on a server with tokens: it cannot reach its agent, other work, or its own limits."""
import json
import pathlib
import shlex

from case import AGENT, Installed

TOKEN = "/etc/berth/agent.token"
STATE = "/var/lib/berth-agent"
SECRETS = "/etc/berth/secrets"
ATTEMPTS = pathlib.Path(__file__).with_name("attempts.py")
ATTEMPTS_MIN = 200

# How many children a job can have.
FORKS = """
import os, time
n = 0
try:
    while n < 2000:
        if os.fork() == 0:
            time.sleep(1000)
        n += 1
except OSError:
    pass
print(n)
"""


class Walls(Installed):
    settings = {"agent": AGENT + f"token_file: {TOKEN}\nsecrets_dir: {SECRETS}\nsecrets: {{api-key: {{types: [task], commands: true}}}}\n",
                "server": Installed.settings["server"]}

    @classmethod
    def setUpClass(cls):
        cls.vm.sh(f"mkdir -p /etc/berth && touch {TOKEN}")  # the agent waits for its token: the server has none yet
        cls.vm.sh(f"echo none > {TOKEN}; mkdir -p {SECRETS}")
        super().setUpClass()
        cls.vm.sh("berth token create boss --scope admin > /root/boss.token")
        cls.vm.sh(f"BERTH_TOKEN=$(cat /root/boss.token) berth token create vm --scope node --node-id vm > {TOKEN} && "
                  f"chown berth-agent: {TOKEN} && chmod 600 {TOKEN} && systemctl restart berth-agent")
        cls.vm.sh(f"echo open-sesame > {SECRETS}/api-key; chown -R berth-agent: {SECRETS}; chmod 700 {SECRETS}; chmod 600 {SECRETS}/api-key")
        cls.vm.eventually("the agent is connected with its token",
                          lambda: cls.boss("node ls -o json", check=False).count('"websocket"'), 300)

    @classmethod
    def tearDownClass(cls):
        cls.vm.sh("! test -e /srv/attempts.py || python3 /srv/attempts.py --no-ipc")
        cls.vm.sh(f"rm -rf {SECRETS} /srv/attempts.py /root/targets.json /tmp/shared /var/tmp/shared /dev/shm/shared; rm -f {TOKEN} /root/boss.token /var/lib/berth/tokens.yaml && systemctl restart berth-server")
        cls.vm.sh("cp /usr/share/berth/etc/agent.yaml /etc/berth/agent.yaml && systemctl restart berth-agent")
        cls.connected()
        super().tearDownClass()

    @classmethod
    def boss(cls, words, check=True, limit_s=120):
        done = cls.vm.run(f"BERTH_TOKEN=$(cat /root/boss.token) berth {words}", limit_s=limit_s)
        if check and done.code != 0:
            raise AssertionError(f"berth {words}: {done}")
        return done.out

    def started(self, command, more=""):
        return self.boss(f"job submit -o name --queue 60s {more} -- sh -c {shlex.quote(command)}", limit_s=700).strip().splitlines()[-1]

    def says(self, command, more=""):
        """The output of a job with this command."""
        job = self.started(command, more + " --wait=600s")
        return self.boss(f"job logs {job}")

    def victim(self):
        """Another job that has something to hide, and its pid."""
        job = self.started("echo $$; exec sleep infinity", """--payload '{"secret":"hidden"}'""")
        pid = int(self.eventually("the job has printed its pid", lambda: self.boss(f"job logs {job}", check=False).strip()))
        return job, pid

    def test_it_is_nobody(self):
        said = self.says("id -un; grep -hE '^(Cap|NoNew)' /proc/self/status; cat /proc/self/oom_score_adj")
        self.assertRegex(said, r"^berth-job-\d+\n")
        self.assertEqual(said.count("\t0000000000000000\n"), 5, said)
        self.assertIn("NoNewPrivs:\t1\n0\n", said)

    def test_a_credential_of_the_unit_is_a_secret(self):
        """LoadCredential in a drop-in for a file that only root can read, instead of secrets_dir."""
        drop_in = "/etc/systemd/system/berth-agent.service.d"
        again = "systemctl daemon-reload && systemctl restart berth-agent"
        self.addCleanup(self.vm.sh, f"rm -rf {drop_in} /root/api-key && mv /etc/berth/agent.yaml.kept /etc/berth/agent.yaml && {again}")
        self.vm.sh("cp -p /etc/berth/agent.yaml /etc/berth/agent.yaml.kept && sed -i /^secrets_dir/d /etc/berth/agent.yaml")
        self.vm.sh(f"mkdir -p {drop_in} && umask 077 && echo from-root > /root/api-key && "
                   f"printf '[Service]\\nLoadCredential=api-key:/root/api-key\\n' > {drop_in}/credential.conf && {again}")
        said = self.says("cat $BERTH_SECRETS_DIR/api-key; echo $KEY", "--secret KEY=api-key")
        self.assertEqual(said, "from-root\nfrom-root\n")

    def test_the_agents_token(self):
        agent = self.main_pid("berth-agent")
        said = self.says(f"cat {TOKEN}; cat /proc/{agent}/environ; cat /proc/{agent}/root{TOKEN}; ls /proc/{agent}/fd; ls /var/lib/berth-agent; "
                         f"ls /var/lib/berth; sudo -n cat {TOKEN}; su -c id < /dev/null; "
                         "curl -s -d '{\"node_id\":\"vm\",\"max_concurrent_jobs\":1000}' http://127.0.0.1:7420/v1/node/register; echo")
        token = self.sh(f"cat {TOKEN}").strip()
        self.assertGreater(len(token), 20)
        self.assertNotIn(token, said)
        self.assertIn('"error":"UNAUTHORIZED"', said, "the job must not be able to register its node")
        self.assertGreaterEqual(said.count("Permission denied"), 5, said)

    def test_another_job(self):
        job, pid = self.victim()
        run = f"/var/lib/berth-agent/runs/{job}.1"
        self.assertIn("hidden", self.sh(f"cat {run}/input"))
        said = self.says(f"cat {run}/input {run}/spec {run}/log.0; ls {run} {run}/work; cat /proc/{pid}/environ; cat /proc/{pid}/cwd/../input; "
                         f"kill -9 {pid}; kill -9 $(cut -d' ' -f4 /proc/{pid}/stat); kill -9 $PPID; kill -9 -1; "
                         f"echo '{{}}' > {run}/work/.result.json; echo tried")
        self.assertNotIn("hidden", said)
        self.assertEqual(self.vm.run(f"kill -0 {pid}").code, 0)
        self.assertIn('"state":"ACKED"', self.boss(f"job show {job} -o json"))
        self.boss(f"job cancel {job}")

    def targets(self):
        """A job with something to hide, and everything that another job must not reach. All of it exists."""
        job = self.started("for dir in . /tmp /dev/shm; do echo note > $dir/note; done; echo $$; exec sleep infinity",
                           """--secret KEY=api-key --payload '{"secret":"hidden"}'""")
        pid = int(self.eventually("the job has printed its pid", lambda: self.boss(f"job logs {job}", check=False).strip()))
        run = f"{STATE}/runs/{job}.1"
        group = "/sys/fs/cgroup" + self.sh(f"cut -d: -f3 /proc/{pid}/cgroup").strip()
        agent = self.main_pid("berth-agent")
        self.vm.sh("cat > /srv/attempts.py <<'END'\n" + ATTEMPTS.read_text() + "END\nchmod 644 /srv/attempts.py")
        ipc = json.loads(self.sh("python3 /srv/attempts.py --ipc"))
        self.sh("for dir in /tmp /var/tmp /dev/shm; do echo shared > $dir/shared; chmod 666 $dir/shared; done")
        own = self.sh(f"find {STATE} /var/lib/berth -maxdepth 1 -type f ! -name '*.new' ! -name '*-journal'").split()
        return {"job": job, "run": run,
                "files": [TOKEN, f"{SECRETS}/api-key", "/etc/berth/server.yaml", *own,
                          *(f"{run}/{name}" for name in ("spec", "exit", "input", "log.0", "work/note", "tmp/note"))],
                "open": ["/etc/berth/agent.yaml", "/usr/bin/berth", "/lib/systemd/system/berth-spawner.service"],
                "directories": [STATE, f"{STATE}/runs", run, f"{run}/work", f"{run}/tmp", f"{run}/secrets", "/var/lib/berth", "/run/berth-spawner", SECRETS],
                "sockets": [f"{run}/sock", "/run/berth-spawner/socket"],
                "processes": {"the agent": agent, "the spawner": self.main_pid("berth-spawner"), "the server": self.main_pid("berth-server"),
                              "the shim of another job": int(self.sh(f"cut -d' ' -f4 /proc/{pid}/stat")), "another job": pid},
                "through": [TOKEN, f"{run}/input", f"{SECRETS}/api-key"],
                "groups": {"the group of another job": group, "the group of all jobs": group.rsplit("/", 1)[0],
                           "the group of shims": group.rsplit("/", 1)[0] + "/.shims", "the machine's group": "/sys/fs/cgroup",
                           "the agent's group": "/sys/fs/cgroup" + self.sh(f"cut -d: -f3 /proc/{agent}/cgroup").strip()},
                "shared": ["/tmp/shared", "/var/tmp/shared", "/dev/shm/shared"], "ipc": ipc,
                "others": [f"/proc/{pid}/root/tmp/note", f"/proc/{pid}/cwd/note", f"/proc/{pid}/root/dev/shm/note",
                           f"/proc/{pid}/root{run}/secrets/api-key"]}

    def attempts(self, said):
        """{name of an attempt: its outcome}."""
        lines = [line for line in said.splitlines() if "\t" in line]
        found = dict(line.split("\t", 1) for line in lines)
        self.assertEqual(len(found), len(lines), "two attempts have the same name")
        return found

    def test_hundreds_of_attempts(self):
        targets = self.targets()
        for path in targets["files"] + targets["open"] + targets["sockets"] + targets["others"]:
            self.sh(f"test -e {path}")
        self.assertEqual(self.vm.run(f"test -e {targets['run']}/secrets/api-key").code, 1, "secrets must exist only in the job's namespace")
        self.vm.sh(f"cat > /root/targets.json <<'END'\n{json.dumps(targets)}\nEND")
        marks = self.marks(targets)
        could = self.attempts(self.sh("cd /root && python3 /srv/attempts.py --control < /root/targets.json", limit_s=600))
        self.assertGreater(len(could), 60)
        self.assertEqual({name: end for name, end in could.items() if end != "succeeded"}, {},
                         "root must succeed, or the attempt proves nothing")

        job = self.started("exec python3 /srv/attempts.py", "--payload @/root/targets.json --wait=600s")
        said = self.boss(f"job logs {job}")
        tried = self.attempts(said)
        self.assertIn('"state":"DONE"', self.boss(f"job show {job} -o json"), said[-2000:])
        self.assertGreaterEqual(len(tried), ATTEMPTS_MIN)
        self.assertEqual({name: end for name, end in tried.items() if end == "succeeded"}, {}, "each of these must be denied")
        hidden = {f"read {way}" for way in self.ways(targets)} | {f"append to {path}" for path in targets["shared"]}
        unknown = {name for name in tried if name.endswith((" by its key", " by its number", " by its name", " by its file"))}
        self.assertEqual(len(unknown), 9)
        odd = {name: end for name, end in tried.items() if end.split()[1] not in ("EPERM", "EACCES", "ENOSYS") and
               not (name in hidden and end.startswith("denied ENOENT")) and not (name in unknown and end.split()[1] in ("ENOENT", "EINVAL"))}
        self.assertEqual(odd, {}, "denied for another reason than missing permission")
        for word in ("sesame", "hidden", self.sh(f"cat {TOKEN}").strip()):
            self.assertNotIn(word, said)
        self.assertEqual(self.marks(targets), marks, "an attempt changed something")
        self.assertEqual(self.vm.run("find / -xdev -name 'planted*' -not -path '/proc/*' | grep .").code, 1)
        self.assertIn('"state":"ACKED"', self.boss(f"job show {targets['job']} -o json"))
        self.boss(f"job cancel {targets['job']}")
        self.eventually("the job's secrets are removed", lambda: self.vm.run(f"test -e {targets['run']}/secrets").code == 1)
        print(f"    {len(tried)} attempts, none succeeded", flush=True)

    @staticmethod
    def ways(targets):
        up = "../" * 20
        return [way for path in targets["shared"]
                for way in (path, up + path[1:], "/proc/self/root" + path, "/proc/self/cwd/" + up + path[1:], "/proc/thread-self/root" + path)]

    def marks(self, targets):
        """Everything that must be the same before and after the attempts."""
        stable = [path for path in targets["files"] if not path.startswith(("/var/lib/berth/", STATE + "/outbox"))]
        return self.sh(f"stat -c '%n %i %a %u %s' {' '.join(stable + targets['open'] + targets['shared'])}; "
                       f"sha256sum {' '.join(targets['shared'])} {TOKEN} {SECRETS}/api-key; for pid in {' '.join(map(str, targets['processes'].values()))}; do "
                       "cut -d' ' -f1,22 /proc/$pid/stat; cat /proc/$pid/oom_score_adj; done; "
                       f"cat {targets['groups']['the group of another job']}/pids.max {targets['groups']['the group of another job']}/memory.max")

    def test_its_own_group(self):
        said = self.says("g=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); echo $g; for to in $g/.. $g/../.shims /sys/fs/cgroup; do "
                         "echo $$ > $to/cgroup.procs; done; echo max > $g/pids.max; echo max > $g/memory.max; mkdir $g/own; echo 0 > $g/cgroup.kill; "
                         "echo -900 > /proc/self/oom_score_adj; cut -d: -f3 /proc/self/cgroup; cat /proc/self/oom_score_adj")
        lines = [line for line in said.splitlines() if not line.startswith("sh:") and "mkdir" not in line]
        self.assertEqual(lines[0], "/sys/fs/cgroup" + lines[1])
        self.assertEqual(lines[2], "0")
        self.assertEqual(len(lines), 3, said)

    def test_bounds_that_nobody_set(self):
        said = self.says("cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); cat pids.max memory.max; exec python3 -c '" + FORKS + "'")
        pids, memory, forks = said.splitlines()[:3]  # a job may read its limits
        self.assertEqual(pids, "512")
        total = int(self.sh("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024  # the kernel took some memory at boot
        self.assertTrue(total * 0.88 < int(memory) < total * 0.92, said)
        self.assertTrue(400 < int(forks) < 512, said)

    def test_it_does_not_outlive_its_end(self):
        job = self.started("(setsid env -i sh -c 'exec sleep 31337' &) ; (env -i setsid sh -c 'trap \"\" TERM; sleep 31338' &); kill -9 $PPID; "
                           "sleep 2; echo over", "--wait=600s")
        self.assertIn("over", self.boss(f"job logs {job}"))
        self.eventually("no process of the job is left", lambda: self.vm.run("pgrep --full 'sleep 3133[78]'").code == 1)
