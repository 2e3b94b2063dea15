"""Commands in running text and in alerts. Commands of berth are typed like the blocks, with values for their placeholders; targets of make
exist; units that systemctl names are shipped in the package."""
import os
import re
import shutil
import subprocess
import unittest

from fences import spans
from harness import BINARY, ROOT, SLOW, Node, berth, calm_machine, clean_env, eventually, tags
from prometheus import RULES
from redis import Redis, free_port
from test_agent import AgentCase
from test_docs import PAGES, RUN

TEXTS = [*PAGES, RULES / "berth-alerts.yml"]  # alerts tell the operator what to do, too
# Commands that the text only names. Typed without arguments they would run for ever or print a usage error.
NAMED = {"berth dev", "berth server", "berth agent", "berth run", "berth node cordon", "berth node rm"}
# What stands for a placeholder, by the words around it; the longest match wins.
MEANT = {"job explain ID": "job explain {job}", "deploy show ID": "deploy show web", "node show ID": "node show us", "NODE TYPE": "us dev",
         "--node NODE": "--node us", "node undrain n1": "node undrain us", "https://scheduler:7420": "{url}", "--token-file …": "--token-file {token}",
         "redis://…": "{redis}", "/etc/berth/server.yaml": "{root}/ops/etc/server.yaml", "/var/lib/berth/": "{here}/", "delete ID": "delete web",
         "restart ID": "restart web", "disable ID": "disable web", "enable ID": "enable web"}
ENDLESS = re.compile(r"berth (server|agent|dev)\b")


def typed(pages, begin):
    """{command: the page it is on}, with every alternative of `a|b`, and without the brackets of [optional] parts."""
    found = {}
    for page in pages:
        for _, span in spans(page.read_text()):
            if span.startswith(begin):
                choice = re.search(r"\S+\|\S+", span) if begin == "berth " else None
                for one in choice.group().split("|") if choice else ("",):
                    text = span.replace(choice.group(), one) if choice else span
                    found.setdefault(re.sub(r"[][]", "", text), page.name)
    return found


@tags("load")
class Inline(AgentCase):
    def setUp(self):
        super().setUp()
        self.place = self.dir / "place"
        (self.place / "bin").mkdir(parents=True)
        (self.place / "bin" / "berth").symlink_to(BINARY)
        (self.place / "token").write_text("nobody asks for it\n")
        self.env = {**clean_env(), "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}", "HOME": str(self.place), "NO_COLOR": "1",
                    "XDG_CONFIG_HOME": str(self.place), "XDG_RUNTIME_DIR": str(self.place), "BERTH_HOST_ROOT": calm_machine(self.dir)}

    def world(self):
        """A server with an agent, a deployment, a job that is done, and one type of job that keeps failing."""
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.start("shared", store=redis.url)
        server = self.start()
        self.agent(server, "us", allowed_types="task,dev", config="executors: {dev: {command: 'false'}}")
        job = self.ended(server, self.run_task(server, "echo hello", type="task"))["job_id"]
        for _ in range(3):
            self.ended(server, self.ok(self.task(server, max_attempts=1)))
        Node(server, "poll")
        self.env["BERTH_ADDR"] = f"127.0.0.1:{server.port}"
        return {"job": job, "url": f"http://127.0.0.1:{server.port}", "token": self.place / "token", "redis": redis.url, "root": ROOT,
                "here": self.place}

    def swapped(self, command, world):
        for old in sorted(MEANT, key=len, reverse=True):
            command = command.replace(old, MEANT[old])
        return command.format(**world)

    def runs(self, command, about):
        """The command exits with 0 and prints something; a command that serves comes up and stops cleanly."""
        if ENDLESS.match(command):
            self.serves(command, about)
            return
        done = subprocess.run(["bash", "-c", command], cwd=self.place, env=self.env, capture_output=True, text=True, timeout=60 * SLOW,
                              input="a-token-that-somebody-made\n")
        self.assertEqual(done.returncode, 0, f"{about}\n{command}\n{done.stdout}{done.stderr}")
        self.assertTrue(done.stdout.strip(), f"{about}: {command} says nothing")
        self.assertNotIn("…", command, about)

    def serves(self, command, about):
        log = self.place / "log"
        with log.open("w") as to:
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command.split()], cwd=self.place, stdout=to, stderr=to, env={
                **self.env, "BERTH_LISTEN": f"127.0.0.1:{free_port()}", "BERTH_NODE_ID": "another", "BERTH_DATA_DIR": str(self.place / "data")})
        try:
            eventually(f"{about}: {command} is up", lambda: re.search("event=(server.ready|server.listening|agent.connected)", log.read_text())
                       or process.poll() is not None, 20)
        finally:
            process.terminate()
            code = process.wait(20 * SLOW)
        self.assertEqual(code, 0, f"{about}: {command}\n{log.read_text()}")

    def test_berth(self):
        world, seen = self.world(), set()
        for span, page in typed(TEXTS, "berth ").items():
            if span in NAMED:
                seen.add(span)
                self.assertEqual(berth(*span.split()[1:], "--help").returncode, 0, span)
                continue
            if "deploy" in span:  # an earlier command may have removed it
                path = self.place / "web.yaml"
                path.write_text("{id: web, command: sleep 1000}")
                self.assertEqual(berth("deploy", "apply", path, env=self.env).returncode, 0)
            command = self.swapped(span, world)
            self.assertFalse(re.search(r"\b(ID|NODE|TYPE)\b|…", command), f"{page}: `{span}`: MEANT has no value for a placeholder")
            self.runs(command, page)
        self.assertEqual(seen, NAMED)

    def test_make(self):
        """Every target exists. The targets are not made here; test_docs.py runs the blocks."""
        seen = 0
        for span, page in [*typed(TEXTS, "make ").items(), *typed(TEXTS, "sudo make ").items()]:
            words = re.findall(r'"[^"]*"|[^\s"]+(?:"[^"]*")?', span.removeprefix("sudo "))
            done = subprocess.run(["make", "-n", *[word.replace('"', "") for word in words[1:]]], cwd=ROOT, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{page}: {span}: {done.stderr}")
            seen += 1
        self.assertGreater(seen, 5)

    def test_ci_runs_what_the_readme_says(self):
        """`make test` is not typed, because it runs this test: .ci/run must have exactly that command."""
        lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith(("#", "set ", "cd "))]
        self.assertEqual(lines, ["make test"])
        self.assertRegex((ROOT / "README.md").read_text(), r"(?m)^make test +#")
        done = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("tests/run", done.stdout)

    def test_units_and_programs(self):
        """systemctl and journalctl name units of the package; scripts and manual pages that are named exist."""
        shipped = {path.stem for path in (ROOT / "ops/systemd").glob("*.service")}
        for begin in ("systemctl ", "journalctl "):
            for span, page in typed(TEXTS, begin).items():
                units = set(re.findall(r"berth-\w+", span))
                self.assertTrue(units and units <= shipped, f"{page}: {span}")
        for span, page in typed(RUN, "node tests").items():
            self.assertTrue((ROOT / span.split()[1]).is_file(), f"{page}: {span}")
        for span, page in typed(RUN, "man ").items():
            self.assertEqual(berth("man", span.split("-")[1]).returncode, 0, f"{page}: {span}")

    @unittest.skipUnless(shutil.which("redis-cli"), "there is no redis-cli")
    def test_redis_cli(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.start(store=redis.url)
        for span, page in typed(TEXTS, "redis-cli ").items():
            command = span.replace("redis-cli", f"timeout -s INT 5 redis-cli -u {redis.url}")
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            self.assertIn(done.returncode, (0, 124), f"{page}: {span}: {done.stderr}")
            self.assertTrue(done.stdout.strip(), f"{page}: {span} says nothing")
            if "FUNCTION LIST" in span:
                self.assertIn("berth_v3_", done.stdout)
