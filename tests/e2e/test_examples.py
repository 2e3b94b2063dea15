"""Every example that `--help` prints is typed into a shell, in a prepared environment where everything it names exists. New examples are
tried automatically; one that needs preparation gets a row below."""
import os
import re
import subprocess
import threading

from harness import BINARY, ROOT, SLOW, Node, berth, calm_machine, clean_env, eventually, tags
from redis import Redis
from test_agent import AgentCase

JOB = "j0abcdefghijkl"
# Examples that run until they are ended.
ENDLESS = re.compile(r"berth (dev|server|agent|events$|top$|deploy logs .*-f)|--watch")
# Smaller figures for benchmarks and intervals, which are not the point here.
SMALLER = (("--jobs 20000", "--jobs 200"), ("--conns 10000 --heartbeats-per-s 10000 --secs 10", "--conns 20 --heartbeats-per-s 100 --secs 1"),
           ("--rate 100 --secs 3", "--rate 50 --secs 1"), ("--watch=5s", "--watch=200ms"))
IN_A_JOB = "berth job submit --wait -- make"  # needs the directory in which it runs
# `berth store dump` reads a data directory or a Redis.
STORE = {"store"}
TOKENS, OWN = {"token", "audit"}, {"dev", "server", "agent", "context", "config", "run"}


def commands():
    """Every command that `berth help` lists."""
    listed = berth("help").stdout
    return [line.split("  ")[0].removeprefix("berth ") for line in re.findall(r"^  (berth .*)$", listed.split("\n`berth COMMAND")[0], re.M)]


def examples(command):
    text = berth(*command.split(), "--help").stdout
    return [line.strip() for line in text.split("\nExamples:\n")[1].split("\n\n")[0].splitlines() if line.strip()[:1] not in ("#", "")]


class Examples(AgentCase):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.place = self.dir / "place"
        (self.place / "bin").mkdir(parents=True)
        (self.place / "bin" / "berth").symlink_to(BINARY)
        (self.place / "examples").symlink_to(ROOT / "examples")
        (self.place / "etc" / "berth").mkdir(parents=True)
        (self.place / "Makefile").write_text("all test:\n\t@echo made\n")
        (self.place / "crawl.sh").write_text("#!/bin/sh\nexit 0\n")
        (self.place / "crawl.sh").chmod(0o755)
        (self.place / "build.json").write_text('{"target":"all"}')
        (self.place / "etc" / "berth.yaml").write_text("log_level: info\n")
        machine = f"host_root: {calm_machine(self.dir)}\nslots_fixed: 4\n"
        (self.place / "etc" / "berth" / "agent.yaml").write_text(machine)
        (self.place / "etc" / "berth" / "token").write_text("0123456789abcdef0123456789abcdef\n")
        self.env = {**clean_env(), "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}", "HOME": str(self.place),
                    "XDG_CONFIG_HOME": str(self.place / "config"), "XDG_RUNTIME_DIR": str(self.place), "TERM": "xterm",
                    "BERTH_HOST_ROOT": calm_machine(self.dir)}
        self.wrong = []

    def type(self, line, port=None, job=None, seconds=30):
        """Types one line and returns the exit code. An endless command is ended after a while, and must still run then."""
        text = line.replace(JOB, job or JOB).replace("/etc/berth", "etc/berth").replace("/var/lib/berth", "lib")
        for old, new in SMALLER:
            text = text.replace(old, new)
        text = text.replace(IN_A_JOB, f"{IN_A_JOB} -C {self.place}")
        endless = ENDLESS.search(text)
        if port is not None:
            text = re.sub(r"127\.0\.0\.1:(7420|8000)", f"127.0.0.1:{port}", text)
        done = subprocess.run(["timeout", "-s", "INT", str(2 * SLOW if endless else seconds * SLOW), "bash", "-o", "pipefail", "-c", text],
                              cwd=self.place, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        code = 0 if endless and done.returncode in (124, 130) else done.returncode
        if code:
            self.wrong.append(f"{line}\n    exit {done.returncode}: {done.stderr.strip()[-300:]}")
        return code

    def busy(self, server, node):
        """node-1 acknowledges and ends its jobs, and new jobs are sent all the time. Returns a function that ends that."""
        over = threading.Event()

        def work():
            while not over.is_set():
                # the node may just have been removed
                for job in server.get("/v1/node/jobs?node_id=node-1&wait=100ms").json.get("jobs", []):
                    node.ack(job)
                    node.done(job)
                server.post("/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh", "session_id": "room-1"})

        worker = threading.Thread(target=work)
        worker.start()
        return lambda: (over.set(), worker.join())

    @tags("long")
    def test_commands_that_ask_a_server(self):
        server = self.start(reservation_ttl_ms=5000)  # nobody acknowledges some of the jobs
        self.env["BERTH_ADDR"] = f"127.0.0.1:{server.port}"
        self.agent(server, "us", allowed_types="task,dev", config="executors: {dev: {command: 'false'}}")
        self.agent(server, "measured", allowed_types="nothing", host_root="/")
        node = Node(server, "node-1", allowed_types=["research", "build"], labels={"zone": "eu"}, max_concurrent_jobs=50)
        ended = self.ended(server, self.run_task(server, "echo hello", type="task"))["job_id"]
        calm = self.busy(server, node)
        tried = 0
        try:
            for command in commands():
                if command.split()[0] in TOKENS | OWN | STORE:
                    continue
                for line in examples(command):
                    job = ended
                    if command.startswith("deploy "):  # an earlier example may have deleted it
                        self.type("echo '{id: web, command: my-server}' | berth deploy apply -")
                    if command == "deploy rollback":  # a version to go back to
                        self.type("echo '{id: web, command: another}' | berth deploy apply -")
                    if command == "deploy logs":
                        eventually("a node runs the deployment", lambda: server.get("/v1/deployments/web/logs").status == 200, 60)
                    if command.startswith("breaker "):  # the breaker must exist for the example
                        self.ended(server, self.ok(self.task(server, max_attempts=1)))
                    if "drained" in line:
                        server.post("/v1/nodes/node-1/drain")
                    if command == "job cancel":
                        job = self.run_task(server, "sleep 60", type="task", queue_ms=1000)["job_id"]
                    self.type(line.replace("us NodeUnit", "measured NodeUnit"), server.port, job)
                    tried += 1
                    node.register(health="ready")
                    server.post("/v1/nodes/node-1/undrain")
        finally:
            calm()
        self.assertEqual(self.wrong, [])
        self.assertGreater(tried, 50)

    def test_commands_of_their_own(self):
        server = self.start()
        self.env["BERTH_LISTEN"] = "127.0.0.1:0"
        for command in commands():
            if command.split()[0] in OWN:
                for line in examples(command):
                    serves = re.match(r"berth (dev|server)", line)
                    self.type(line, 0 if serves else server.port)
        self.assertEqual(self.wrong, [])

    def test_of_stores(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.start("other", store=redis.url)
        server = self.start()
        (self.place / "lib").symlink_to(server.data_dir)
        for command in commands():
            if command.split()[0] in STORE:
                for line in examples(command):
                    self.type(line.replace("redis://127.0.0.1:6379/0", redis.url))
        self.assertEqual(self.wrong, [])

    def test_tokens_and_the_audit(self):
        server = self.start()
        server.token = berth("token", "create", "root", "--scope", "admin", "--addr", f"127.0.0.1:{server.port}").stdout.strip()
        self.env.update(BERTH_ADDR=f"127.0.0.1:{server.port}", BERTH_TOKEN=server.token)
        for command in commands():
            if command.split()[0] in TOKENS:
                for line in examples(command):
                    self.type(line, server.port)
        self.assertEqual(self.wrong, [])


class Shells(AgentCase):
    def complete(self, *words, **env):
        return [line.split("\t")[0] for line in berth("__complete", *words, env=env).stdout.splitlines()]

    def test_candidates(self):
        server = self.start()
        addr = {"BERTH_ADDR": f"127.0.0.1:{server.port}"}
        Node(server, "n1")
        Node(server, "n2")
        for words, wanted in {("no",): ["node"], ("node", "dr"): ["drain"], ("node", "drain", ""): ["n1", "n2"],
                              ("node", "drain", "--reason", "x", "n"): ["n1", "n2"], ("node", "show", "n1", ""): [],
                              ("node", "ls", "-o", "j"): ["json", "jsonl"], ("job", "ls", "--state", "FA"): ["FAILED"],
                              ("node", "ls", "--sel"): ["--selector"], ("completion", "b"): ["bash"], ("nonsense", ""): [],
                              ("server", "--lis"): ["--listen"], ("job", "submit", "--", "x"): [":files"],
                              ("node", "ls", "--token-file", ""): [":files"], ("agent", "--slots-f"): ["--slots-fixed"]}.items():
            self.assertEqual(self.complete(*words, **addr), wanted, words)
        self.assertEqual(self.complete("node", "drain", "", BERTH_ADDR="127.0.0.1:1"), [], "no candidates and no errors without a server")

    def test_bash(self):
        server = self.start()
        Node(server, "node-7")
        script = """source <(berth completion bash); COMP_WORDS=(berth node drain no); COMP_CWORD=3; _berth
                    echo "${COMPREPLY[@]}"; COMP_WORDS=(berth node ls --token-file pl); COMP_CWORD=4; _berth; echo "${COMPREPLY[@]}" """
        (self.dir / "bin").mkdir()
        (self.dir / "bin" / "berth").symlink_to(BINARY)
        (self.dir / "plain.txt").write_text("")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=self.dir,
                              env={**clean_env(), "PATH": f"{self.dir / 'bin'}:{os.environ['PATH']}", "BERTH_ADDR": f"127.0.0.1:{server.port}"})
        self.assertEqual(done.stdout.split("\n")[:2], ["node-7", "plain.txt"], done.stderr)

    def test_zsh_and_fish_can_read_theirs(self):
        for shell in ("zsh", "fish"):
            path = self.dir / f"script.{shell}"
            path.write_text(berth("completion", shell).stdout)
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
        (self.dir / "bin").mkdir()
        (self.dir / "bin" / "berth").symlink_to(BINARY)
        done = subprocess.run(["fish", "-c", f"source {self.dir}/script.fish; complete -C 'berth node dr'"], capture_output=True, text=True,
                              env={**clean_env(), "HOME": str(self.dir), "PATH": f"{self.dir / 'bin'}:{os.environ['PATH']}"})
        self.assertEqual(done.stdout.split("\t")[0], "drain", done.stderr)

    def test_manual_pages(self):
        done = berth("man", "--dir", self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        pages = sorted(self.dir.glob("*.1"))
        self.assertEqual({page.stem for page in pages}, {"berth"} | {f"berth-{command.split()[0]}" for command in commands()})
        for page in pages:
            done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", page], capture_output=True, text=True)
            self.assertEqual(done.stderr, "", page.name)
            self.assertIn("EXIT STATUS", re.sub(".\b|\x1b\\[[0-9;]*m", "", done.stdout))
        shown = berth("man", "node").stdout
        self.assertIn("berth node register", shown.replace("\\-", "-"))
        self.assertEqual(berth("man", "nonsense").returncode, 2)
        self.assertEqual(berth("man", "--dir", "/proc/nowhere").returncode, 1)
