"""README.md and docs/: every block of code is run as it is printed, in a prepared environment where everything it names exists. Every other
command, setting, metric and file that the pages name exists too. fences.py explains the kinds of blocks."""
import json
import os
import pathlib
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from fences import KINDS, Shell, fences, messages, outside, pattern_of
from harness import REPORTS, ROOT, SLOW, Case, Node, berth, calm_machine, eventually, tags
from postgres import Postgres, programs
from redis import Redis, free_port
from sshd import Sshd, sshd_program
from test_agent import write
from test_cluster import Host
from test_tls import TlsCase

RUN = [ROOT / "README.md"] + sorted((ROOT / "docs").glob("*.md"))
PAGES = RUN + [ROOT / "ARCHITECTURE.md", ROOT / "PROTOCOL.md", ROOT / "SECURITY.md"]

# The project's files in a checkout, and the build directory.
CHECKOUT = {"ARCHITECTURE.md", "HACKING.md", "Makefile", "PROTOCOL.md", "README.md", "SECURITY.md", "bench", "build", "docs", "examples", "meson.build", "meson_options.txt", "ops", "src", "tests", "tools", "web"}
# Lines that are not typed, because they would run this very test.
NOT_RUN = {"make test": ".ci/run types it (test_inline.py)"}
# Commands that are simulated.
OTHERWISE = {
    "apt-get": "it says what it would do (--simulate): it would install the package, and has all that it needs; then the package is "
               "unpacked, and test_package.py installs it into a root of its own",
    "systemctl": "there is no systemd in a test: the command of a unit that is shipped is started, ended and signalled in its place, and "
                 "test_package.py has the units verified",
    "sudo -u": "the test's own user does it; the one that is named is one the package makes",
}


def units():
    """The units of our package and of Redis' package."""
    there = [*(ROOT / "ops/systemd").glob("*.service"), *pathlib.Path("/lib/systemd/system").glob("redis-server.service")]
    return {path.stem for path in there}


def users():
    """The users that our package makes, and the one of Redis' package if that is installed."""
    made = set(re.findall(r"^ +make_user (\S+)$", (ROOT / "ops/debian/postinst").read_text(), re.M))
    return made | {one.pw_name for one in pwd.getpwall() if one.pw_name == "redis"}


def gpus(script):
    """The output of the script for two cards, as rocm-smi shows them."""
    with tempfile.TemporaryDirectory() as place:
        smi = pathlib.Path(place) / "rocm-smi"
        smi.write_text("#!/bin/sh\ncat <<END\n\ndevice,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\n"
                       "card0,7,17163091968,27934720\ncard1,100,17163091968,17163091968\n\nEND\n")
        smi.chmod(0o755)
        done = subprocess.run(["sh", script], capture_output=True, text=True, check=True, env={"PATH": f"{place}:{os.environ['PATH']}"})
    return json.loads(done.stdout)


def command_lines(page):
    """The commands in the running text and in blocks, one by one, without pipes and redirections."""
    text = page.read_text()
    lines = re.findall(r"`(berth [^`]+)`", "\n".join(outside(text)))
    for fence in fences(page):
        lines += fence.text.splitlines() if fence.language == "sh" else []
    for line in lines:
        for part in re.split(r"[|;&]+|\$\(|<\(", line.split(" # ")[0]):
            words = part.strip().removeprefix("sudo ").removeprefix("-u berth ").strip()
            if words.startswith("berth ") and "…" not in words.split()[1]:
                yield re.split(r"\s[<>]", words)[0].rstrip(")")


class World(Case):
    def test_what_else_stands_in_the_checkout_is_not_in_it(self):
        """A page that is typed in a checkout where `make run` left its data must neither read nor write them."""
        mine = ROOT / "berth-data"
        made = not mine.exists()
        mine.mkdir(exist_ok=True)
        try:
            world = Typed("test_readme")
            world.here = self.dir
            world.checkout()
        finally:
            if made:
                mine.rmdir()
        there = {path.name for path in self.dir.iterdir()}
        self.assertNotIn("berth-data", there)
        self.assertLessEqual({"README.md", "examples", "build", "Makefile"}, there)


class Pages(unittest.TestCase):
    def test_every_command_exists_with_its_flags(self):
        known, seen = {}, 0
        for page in PAGES:
            for line in command_lines(page):
                words = shlex.split(line, comments=True)[1:]
                if "--" in words:
                    words = words[:words.index("--")]
                if words == ["COMMAND", "--help"] or words == ["--help"]:
                    continue
                names = []
                for word in words:
                    if word.startswith("-") or len(names) == 2 or not word.isalpha() or not word.islower():
                        break
                    names.append(word)
                while names and tuple(names) not in known:
                    done = berth(*names, "--help")
                    if done.returncode == 0 and (len(names) < 2 or f"berth {' '.join(names)}" in done.stdout):
                        known[tuple(names)] = done.stdout
                    else:
                        names.pop()
                self.assertTrue(names, f"{page.name}: {line}")
                seen += 1
                for flag in (word.split("=")[0] for word in words if word.startswith("--")):
                    self.assertIn(flag, known[tuple(names)], f"{page.name}: {line}")
        self.assertGreater(seen, 60)

    def test_every_link_leads_somewhere(self):
        for page in PAGES:
            for name in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
                self.assertTrue((page.parent / name).exists(), f"{page.name} points to {name}")

    def test_every_block_says_what_it_is(self):
        for page in PAGES:
            found = fences(page)
            for fence in found:
                self.assertIn(fence.kind, KINDS, f"{fence}: a block of the kind {fence.kind!r}")
                if fence.kind == "text messages":
                    self.assertTrue(messages(fence.text), str(fence))
            self.assertEqual(page.read_text().count("```"), 2 * len(found), f"{page.name}: a fence that is not closed")
            for number, line in enumerate(outside(page.read_text()), 1):
                self.assertFalse(line.startswith("    "), f"{page.name}:{number}: code without a fence is never tested")

    def test_every_page_is_typed(self):
        """Every page with commands has a case below, and what is not run or simulated is still in a page."""
        shown = ""
        for page in RUN:
            blocks = [fence.text for fence in fences(page) if fence.kind == "sh"]
            self.assertTrue(not blocks or hasattr(Typed, f"test_{page.stem.lower()}"), f"no case types {page.name}")
            shown += "".join(blocks)
        for what in [*NOT_RUN, *OTHERWISE]:
            self.assertIn(what, shown)

    def test_the_comparison_can_fail(self):
        """Tests the checker itself: a placeholder is bound once, other text must match, messages must be JSON."""
        match = pattern_of('{"job_id":"<job_id>","node_id":"<node_id>"}', {"job_id": "j1"})
        self.assertTrue(match.fullmatch('{"job_id":"j1","node_id":"n7"}'))
        self.assertFalse(match.fullmatch('{"job_id":"j2","node_id":"n7"}'))
        self.assertFalse(match.fullmatch('{"job_id":"j1","node_id":"n 7"}'))
        self.assertTrue(pattern_of("HTTP/1.1 503 ...\nx", {}).fullmatch("HTTP/1.1 503 Service\nx"))
        self.assertEqual(messages('a {"b":...,"c":[...], ...} -> {"d":{...}}'), [
            {"b": "...", "c": ["..."], "...": "..."}, {"d": {"...": "..."}}])
        self.assertRaises(ValueError, messages, '{"b":}')


@tags("load")
class Typed(TlsCase):
    """Types one page after the other into a shell."""

    def setUp(self):
        super().setUp()
        self.place = self.dir / "place"
        for name in ("here", "etc/berth", "lib", "backup", "units", "home"):
            (self.place / name).mkdir(parents=True)
        self.here, self.port = self.place / "here", free_port()
        self.swaps = {"/etc/berth": self.place / "etc/berth", "/var/lib/": f"{self.place}/lib/", "/backup": self.place / "backup",
                      "berth.example.net:7420": f"127.0.0.1:{self.port}", ":7420": f":{self.port}"}
        self.env = {"HOME": str(self.place / "home"), "XDG_CONFIG_HOME": str(self.place / "home"), "UNITS": str(self.place / "units"),
                    "XDG_RUNTIME_DIR": str(self.place / "home"), "BERTH_HOST_ROOT": calm_machine(self.dir),
                    "BERTH_ADDR": f"http://127.0.0.1:{self.port}"}

    def checkout(self, *without):
        """Makes the shell's directory look like a checkout: links to the project's files and to the build directory, but not to other files
        there, such as the data that `make run` left."""
        for name in CHECKOUT - set(without):
            (self.here / name).symlink_to(ROOT / name)

    def examples(self):
        """Replaces the link by copies of the example settings that have this test's port."""
        (self.here / "examples").unlink()
        (self.here / "examples").mkdir()
        for path in (ROOT / "examples").iterdir():
            (self.here / "examples" / path.name).write_text(path.read_text().replace(":7420", f":{self.port}"))

    def serve(self, **settings):
        """A server on the port that the pages name."""
        return self.start(listen=f"127.0.0.1:{self.port}", **settings)

    def typed(self, block, where):
        """The block without lines that are not run here; those are printed as skipped."""
        lines = []
        for line in block.splitlines():
            reason = next((why for what, why in NOT_RUN.items() if line.startswith(what)), None)
            if reason:
                print(f"skipped {where}: {line.split('  ')[0]}: {reason}", flush=True)
            else:
                lines.append(line)
            self.otherwise |= {what for what in OTHERWISE if f"{what} " in line}
            self.assertLessEqual(set(re.findall(r"(?:sudo -u|install -o|-g) (\S+)", line)), users(), f"{where}: {line}")
            for asked in re.findall(r"systemctl \w+((?: [\w-]+)+)", line):
                self.assertLessEqual({unit for unit in asked.split() if not unit.startswith("--")}, units(), f"{where}: {line}")
        return "\n".join(lines)

    def read(self, name, before=(), after=()):
        """Types a page. `before` and `after` map the name of a section, or a part of a command, to what is done before or after it."""
        self.shell = Shell(self.place, self.env, self.swaps)
        self.addCleanup(self.shell.kill)
        self.addCleanup(lambda: self.tails.extend(self.shell.log().splitlines()[-40:]))
        found, known, section, self.otherwise = fences(ROOT / name), {}, None, set()
        for at, fence in enumerate(found):
            for key, scene in dict(before).items():
                if key in fence.text or (key == fence.section != section):
                    scene()
            section = fence.section
            if fence.kind.endswith("FILE"):
                self.save(fence)
            elif fence.kind == "text log":
                self.logged(fence, known)
            elif fence.kind == "sh":
                follower = found[at + 1] if at + 1 < len(found) else None
                expects = follower is not None and follower.kind == "text" and follower.follows
                printed, failed = self.shell.run(self.typed(fence.text, fence), known)
                if expects:
                    match = pattern_of(follower.text, known).fullmatch(printed)
                    self.assertTrue(match, f"{fence}\n{fence.text}\nexpected:\n{follower.text}\ngot:\n{printed}")
                    known.update(match.groupdict())
                else:
                    self.assertEqual(failed, "", f"{fence}\n{fence.text}\nprinted:\n{printed}")
            elif fence.kind == "text":
                self.assertTrue(fence.follows and found[at - 1].kind == "sh", f"{fence}: of which command?")
            for key, scene in dict(after).items():
                if key in fence.text:
                    scene()
        self.shell.close()
        for what in sorted(self.otherwise):
            print(f"skipped {name}: {what}: {OTHERWISE[what]}", flush=True)
        for line in self.shell.log().splitlines():
            self.assertFalse(REPORTS.search(line) or "event=invariant" in line, line)

    def save(self, fence):
        """Saves a file of the page; settings and deployments are checked by the program that reads them."""
        path = self.here / self.shell.swapped(fence.about)
        path.write_text(self.shell.swapped(fence.text))
        if path.name == "server.yaml":
            done = berth("config", "show", "--config", path)
            self.assertEqual(done.returncode, 0, f"{fence}: {done.stderr}")
        elif path.name == "agent.yaml":  # the unknown flag is reported only after the file was read
            done = berth("agent", "--config", path, "--nobody-knows")
            self.assertIn("Unknown flag --nobody-knows", done.stderr, str(fence))
        elif path.name == "gpus.sh":
            self.assertEqual(gpus(path), [{"id": 0, "vram_mb": 16368, "vram_free_mb": 16341, "util": 7}, {"id": 1, "vram_mb": 16368, "vram_free_mb": 0, "util": 100}])
        else:
            self.assertIn(path.name, ("worker.sh", "web.yaml"), f"{fence}: who reads it?")

    def logged(self, fence, known):
        for line in fence.text.splitlines():
            pattern = pattern_of(line, known)
            eventually(f"{fence}: a log of a server has the line {line}",
                       lambda: any(pattern.search(server.log) for server in self.servers))

    def certificate(self):
        """A certificate that the system does not trust; its CA is in /etc/berth."""
        self.authority()
        for path, name in zip(self.signed("server", "/CN=berth.example.net"), ("cert.pem", "key.pem")):
            shutil.copy(path, self.place / "etc/berth" / name)
        shutil.copy(self.dir / "ca.pem", self.place / "etc/berth/ca.pem")

    def test_readme(self):
        self.checkout()
        self.env.update(BERTH_LISTEN=f"127.0.0.1:{self.port}", BERTH_DATA_DIR=str(self.dir / "data"))
        self.read("README.md", before={"berth job submit": lambda: eventually(
            "the agent is connected", lambda: '"reached_by":"websocket"' in berth("node", "ls", "-o", "json", env=self.env).stdout)})

    def test_clients(self):
        self.checkout()
        server = self.serve()
        self.read("docs/clients.md", before={"client.py run": lambda: eventually(
            "the worker has registered", lambda: server.get("/v1/nodes/shell-1").status == 200)})

    def test_deployments(self):
        self.checkout()
        server = self.serve(deploy_lease_ms=int(3000 * SLOW), deploy_renew_ms=int(500 * SLOW))
        member = {"claim_interval_ms": 200, "restart_min_ms": 100}
        one = self.agent(server, "n1", **member)
        self.agent(server, "n2", **member)

        def running():
            eventually("the deployment runs", lambda: "hello" in berth("deploy", "logs", "hello", env=self.env).stdout, 20)

        def gone():
            self.assertEqual(one.stop(), 0)
            eventually("the lease of n1 has run out", lambda: any(
                lease["address"] == "n1" and lease["left_ms"] < 0
                for lease in server.post("/v1/deployments/view", {"node_id": "n2"}).json["leases"]), 30)

        self.read("docs/deployments.md", before={"logs hello": running, "deploy release n1": gone,
                                                 "node drain n1": lambda: self.agent(server, "n1", **member)})

    def test_monitoring(self):
        server = self.serve()
        Node(server, "n1")
        self.read("docs/monitoring.md")
        self.assertEqual(len(list(self.here.glob("berth-debug-*.tar.gz"))), 1)

    def test_security(self):
        self.read("docs/security.md")

    def test_redis(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.serve(store=redis.url, reservation_ttl_ms=60000)
        Node(server, "n1", max_concurrent_jobs=3)
        self.placed(server)
        self.swaps["redis://127.0.0.1:6379/0"] = redis.url

        def as_that_user():
            """A server that connects as the user with the ACL can do everything: it runs the whole life of a job."""
            other = self.start("other", store=redis.url.replace("//", "//berth@"), env={"BERTH_STORE_PASSWORD": "secret"})
            node = Node(other, "n2", semantic_langs=["fr"], nmt_pairs=[["fr", "zh"]])
            job = self.placed(other, src="fr", session="room-888")
            self.ok(node.ack(job))
            self.ok(node.done(job))
            eventually("each server knows the node of the other",
                       lambda: server.get("/v1/nodes/n2").status == other.get("/v1/nodes/n1").status == 200)
            self.assertEqual(other.stop(), 0)
            self.assertEqual(redis.say("ACL", "LOG"), "", "the ACL denied a command")

        self.read("docs/redis.md", after={"berth store dump": as_that_user})

    def test_operators(self):
        """A cluster of two agents, and a second server for the section about tokens."""
        self.checkout("Makefile")
        self.examples()
        us = self.here / "examples/agent-us.yaml"
        us.write_text(us.read_text().replace("cat; echo'", "cat; exit 1'", 1))
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        other = free_port()
        hosts = {name: Host(self.dir / f"machine-{name}", *figures) for name, figures in
                 (("us", (8, 15, 11, "6.20")), ("hk", (4, 7.6, 6.2, "0.50")))}
        self.certificate()
        self.swaps = {"redis://10.0.0.5:6379/0": redis.url, "10.0.0.": "127.0.0.1", **self.swaps,
                      **{f"berth agent --config examples/agent-{name}.yaml":
                         f"env BERTH_HOST_ROOT={host.proc.parent} berth agent --config examples/agent-{name}.yaml --log-level debug"
                         for name, host in hosts.items()}}
        (self.here / "us.token").write_text("nobody asks for it\n")
        (self.here / "Makefile").write_text("all test:\n\t@echo made\n")
        (self.here / "crawl.sh").write_text("#!/bin/sh\n")
        (self.here / "crawl.sh").chmod(0o755)
        (self.place / "home/prod.token").write_text("of another server\n")
        (self.place / "etc/berth/agent.yaml").write_text("slots_fixed: 4\n")
        (self.place / "units/berth-server").write_text(f"berth server --listen 127.0.0.1:{other} --data-dir {self.place}/lib/alone")

        def alone():
            (self.here / "us.token").unlink()  # --out does not replace a file
            self.shell.type(f"systemctl start berth-server; export BERTH_ADDR=http://127.0.0.1:{other}")

        def connected():
            """Waits until hk takes work; us is too loaded."""
            eventually("hk takes work", lambda: re.search(r"^takes_work +true$", berth("node", "show", "hk", env=self.env).stdout, re.M))

        def together():
            self.shell.type(f"export BERTH_ADDR={self.env['BERTH_ADDR']}")
            eventually("both agents have reported measurements",
                       lambda: berth("status", "--wide", env=self.env).stdout.count("cores - load") == 2)

        def broken():
            """us has room again, and its jobs of type dev fail."""
            write(hosts["us"].proc / "loadavg", "0.10 0.10 0.10 1/100 1\n")
            for _ in range(3):
                done = berth("job", "submit", "--type", "dev", "--priority", "9", "--queue", "20s", "--max-attempts", "1", "--wait=20s",
                             env=self.env)
                self.assertEqual(done.returncode, 7, done.stderr)

        self.read("docs/operators.md", before={
            "Why does it not run?": connected, "Tokens": alone, "Servers by name": lambda: self.shell.type("unset BERTH_ADDR BERTH_TOKEN"),
            "What is going on": together, "breaker ls": broken})

    def ssh(self, name, root):
        """How `ssh root@NAME` is spelt here: to an sshd of the test, with files below `root`."""
        if os.getuid() == 0 and sshd_program():
            server = Sshd(self.dir / "ssh", name, {"ROOT": root})
            self.addCleanup(server.close)
            return f"ssh -F {server.ssh_config} root@{name} sh"
        print(f"skipped docs/install.md: ssh root@{name}: only root may run an sshd for root, and it must be installed; a shell gets the "
              "script", flush=True)
        return f"env ROOT={root} sh"

    @unittest.skipUnless(programs(), "there is no PostgreSQL")
    def test_install(self):
        self.checkout()
        self.certificate()
        etc, lib = self.place / "etc", self.place / "lib"
        database = Postgres(self.dir)
        self.addCleanup(database.close)
        redis = free_port()
        (etc / "redis").mkdir()
        (lib / "redis").mkdir()
        (etc / "redis/redis.conf").write_text(f"port {redis}\nbind 127.0.0.1\ndir {lib}/redis\nappendonly yes\nsave \"\"\n")
        (self.place / "units/redis-server").write_text(f"redis-server {etc}/redis/redis.conf")
        self.swaps = {"redis://10.0.0.5:6379": f"redis://127.0.0.1:{redis}", "postgresql://berth@db/berth": database.url,
                      "/etc/redis": etc / "redis", "ssh root@us sh": self.ssh("us", self.dir / "far"),
                      "-o berth -g berth ": "", "-o redis -g redis ": "", **self.swaps}
        settings = etc / "berth/server.yaml"
        addr = {"BERTH_ADDR": f"https://127.0.0.1:{self.port}", "BERTH_CA_FILE": str(etc / "berth/ca.pem")}

        def store(text):
            """Replaces the stores in the settings: the page's sections about stores and about back-ups assume different machines."""
            said = settings.read_text()
            settings.write_text(re.sub(r"^(store|database):.*\n", "", said, flags=re.M) + text)
            self.shell.type("systemctl restart berth-server")

        def shared():
            """Switches to Redis and PostgreSQL, and adds what the back-up must contain."""
            self.shell.type("systemctl start redis-server")
            store(f"store: redis://127.0.0.1:{redis}/0\ndatabase: {database.url}\n")
            self.remember(addr)

        self.read("docs/install.md", before={
            "enable --now": self.unpacked, "cp -a /etc/berth": lambda: (store(""), self.remember(addr, lib / "berth")),
            "--rdb": shared,
            "stop berth-server": lambda: self.forget(addr)}, after={
            "ssh root@us": self.arrived, " start berth-server": lambda: self.remembers(addr)})

    def ask(self, addr, *args):
        """The output of a command, with the token that the page made."""
        done = berth(*args, env={**addr, "BERTH_TOKEN": (self.here / "ops.token").read_text().strip()})
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return done.stdout

    def remember(self, addr, data_dir=None):
        """Adds what the back-up must contain: a deployment and a job."""
        path = self.dir / "kept.yaml"
        path.write_text("{id: kept, command: sleep 1000, selector: no=where}")
        self.ask(addr, "deploy", "apply", path)
        self.ask(addr, "node", "register", "n1", "--semantic", "en,zh", "--nmt", "en:zh", "--max", "9")
        self.kept = self.ask(addr, "job", "submit", "--src", "en", "--tgt", "zh", "-o", "name").strip()
        if data_dir:  # for a moment the last changes are only in the journal
            eventually("store.db has the job", lambda: self.kept in berth("store", "dump", "--data-dir", data_dir).stdout)

    def forget(self, addr):
        """Makes changes that are not in the back-up."""
        self.ask(addr, "deploy", "delete", "kept")
        self.lost = self.ask(addr, "job", "submit", "--src", "en", "--tgt", "zh", "-o", "name").strip()

    def remembers(self, addr):
        self.assertIn("kept", self.ask(addr, "deploy", "ls", "-o", "name"))
        jobs = self.ask(addr, "job", "ls", "-o", "name").split()
        self.assertIn(self.kept, jobs)
        self.assertNotIn(self.lost, jobs)

    def unpacked(self):
        """Unpacks the package as if it were installed: its programs, units and settings."""
        root = self.place / "root"
        package = max((ROOT / "build").glob("berth_*.deb"), key=os.path.getmtime)
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        (root / "usr/lib").mkdir(exist_ok=True)
        (root / "usr/lib/systemd").symlink_to(root / "lib/systemd")  # /lib is /usr/lib on a real machine
        for name in ("server", "agent"):
            unit = (root / f"lib/systemd/system/berth-{name}.service").read_text()
            command = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1).replace("/usr/bin", f"{root}/usr/bin")
            # the spawner is a unit too; without it the agent starts its own
            command = command.replace(" --spawner /run/berth-spawner/socket", "")
            (self.place / f"units/berth-{name}").write_text(self.shell.swapped(command))
            settings = (root / f"etc/berth/{name}.yaml").read_text()
            (self.place / f"etc/berth/{name}.yaml").write_text(self.shell.swapped(settings))
        self.shell.type(f"PATH={root}/usr/bin:$PATH")

    def arrived(self):
        """Starts the agent that ssh brought to the other machine, as systemd would."""
        far = self.dir / "far"
        self.assertEqual((far / "etc/berth/agent.token").stat().st_mode & 0o777, 0o600)
        self.shell.type(f"serve us {far}/usr/local/bin/berth agent --config {far}/etc/berth/agent.yaml --data-dir {self.dir}/us "
                        f"--token-file {far}/etc/berth/agent.token --ca-file {far}/etc/berth/ca.pem")
        self.assertIn("event=agent.connected", (self.shell.logs / "us.log").read_text())
