"""The command line against a real server: its output and its exit codes."""
import json
import socket
import subprocess

from harness import BINARY, SLOW, Case, Node, berth, clean_env, eventually


class Cli(Case):
    def cli(self, *args, code=0, env=None):
        done = berth(*args, env={"BERTH_ADDR": f"http://127.0.0.1:{self.server.port}", **(env or {})})
        self.assertEqual(done.returncode, code, f"berth {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
        if code:
            self.assertTrue(done.stderr.strip(), "a failure says why")
        return done.stdout

    def json(self, *args, code=0):
        return json.loads(self.cli(*args, "-o", "json", code=code))

    def setUp(self):
        super().setUp()
        self.server = self.start()

    def test_nodes(self):
        self.cli("node", "register", "n1", "--semantic", "en,zh", "--nmt", "en:zh,zh:en", "--tts", "en,zh", "--max", 2)
        self.assertIn("n1", self.cli("node", "ls"))
        self.assertEqual([node["node_id"] for node in self.json("node", "ls")["nodes"]], ["n1"])
        shown = self.json("node", "show", "n1")
        self.assertEqual((shown["node_id"], shown["max"]), ("n1", 2))
        self.cli("node", "drain", "n1", "--reason", "new kernel")
        self.assertEqual(self.json("node", "show", "n1")["health"], "draining")
        self.cli("node", "undrain", "n1")
        self.assertEqual(self.json("node", "show", "n1")["health"], "ready")
        self.cli("node", "rm", "n1")
        self.cli("node", "show", "n1", code=3)
        self.cli("node", "drain", "ghost", code=3)

    def test_every_way_to_print_a_list(self):
        for name, zone in (("a1", "eu"), ("a2", "us"), ("a3", "eu")):
            self.cli("node", "register", name, "--types", "*", "--label", f"zone={zone}", "--label", "disk=ssd")
        self.assertEqual(self.cli("node", "ls", "-o", "name"), "a1\na2\na3\n")
        self.assertEqual([json.loads(line)["node_id"] for line in self.cli("node", "ls", "-o", "jsonl").splitlines()],
                         ["a1", "a2", "a3"])
        self.assertIn("LABELS", self.cli("node", "ls", "-o", "wide"))
        self.assertNotIn("LABELS", self.cli("node", "ls"))
        self.assertEqual(self.cli("node", "ls", "-l", "zone=eu,disk=ssd", "-o", "name"), "a1\na3\n")
        self.assertEqual(self.cli("node", "ls", "-l", "zone=eu", "-l", "disk=hdd", "-o", "name"), "")
        self.assertEqual(self.cli("node", "ls", "--health", "offline", "-o", "name"), "")
        self.cli("node", "ls", "--selector", "no sense", code=2)
        self.cli("node", "ls", "--health", "well", code=2)
        page = self.json("node", "ls", "--limit", "2")
        self.assertEqual(([node["node_id"] for node in page["nodes"]], page["next_cursor"]), (["a1", "a2"], "a2"))
        self.assertEqual(self.cli("node", "ls", "--limit", "2", "--cursor", "a2", "-o", "name"), "a3\n")
        self.assertEqual(self.cli("node", "show", "a2", "-o", "name"), "a2\n")
        self.assertEqual(self.cli("node", "cordon", "a2", "-o", "name"), "a2\n")
        self.assertRegex(self.cli("node", "ls", "-o", "wide"), r"(?m)^a2 .* NOT_READY$")
        self.cli("node", "drain", "a2", "--reason", "new kernel")
        self.assertRegex(self.cli("node", "ls", "-o", "wide"), r"(?m)^a2 .* new kernel$")
        self.assertRegex(self.cli("node", "ls", "-o", "wide"), r"(?m)^a1 .* -$")

    def test_names_only(self):
        node = Node(self.server, "n1", allowed_types=["dev"])
        for _ in range(3):
            job = self.ok(self.task(self.server, max_attempts=1))
            self.ok(node.ack(job))
            self.ok(node.fail(job))
        self.assertEqual(self.cli("breaker", "ls", "-o", "name"), "n1 dev\n", "what `breaker reset` takes")
        self.cli("breaker", "reset", "n1", "dev")
        eventually("the job is in the report", lambda: self.json("report")["servers"])
        for words, names in ((["status"], "n1\n"), (["report"], "n1\n"), (["explain", "--type", "dev"], "n1\n"),
                             (["job", "explain", job["job_id"]], f"{job['job_id']}\n")):
            self.assertEqual(self.cli(*words, "-o", "name"), names, words)
        self.cli("health", "-o", "name", code=2)

    def test_a_token_that_is_none(self):
        for token in ("two\nlines", "with blank", "\u00e9"):
            done = berth("node", "ls", env={"BERTH_ADDR": f"http://127.0.0.1:{self.server.port}", "BERTH_TOKEN": token})
            self.assertEqual(done.returncode, 2, token)
            self.assertIn("the token in BERTH_TOKEN has", done.stderr)
            self.assertNotIn(token, done.stderr)
        (self.dir / "blank.token").write_text(" abc \n", encoding="utf-8")
        self.cli("node", "ls", "--token-file", self.dir / "blank.token")

    def test_waiting_for_a_node(self):
        node = Node(self.server, "n1")
        self.cli("node", "wait", "n1")
        self.cli("node", "wait", "n1", "--for", "drained", "--timeout", "100ms", code=6)
        job = self.placed(self.server)
        self.ok(node.ack(job))
        process = subprocess.Popen([BINARY, "node", "wait", "n1", "--for", "drained", "--timeout", "30s"],
                                   env=dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{self.server.port}"))
        self.cli("node", "drain", "n1")
        self.cli("node", "wait", "n1", "--for", "drained", "--timeout", "300ms", code=6)
        self.ok(node.done(job))
        self.assertEqual(process.wait(20 * SLOW), 0)
        self.cli("node", "wait", "n1", "--for", "better", code=2)
        self.cli("node", "wait", "nobody", code=3)
        self.cli("node", "rm", "n1")
        self.cli("node", "wait", "n1", "--for", "gone", "--timeout", "5s")

    def test_contexts(self):
        home = {"XDG_CONFIG_HOME": str(self.dir / "home"), "BERTH_ADDR": ""}
        (self.dir / "home").mkdir()

        def context(*args, code=0, **env):
            return self.cli(*args, code=code, env={**home, **env})

        self.assertEqual(context("context", "ls").split(), ["NAME", "ADDR", "TOKEN", "FILE", "CA", "FILE", "CERT", "FILE"])
        context("context", "use", "here", code=3)
        context("context", "set", "here", code=2)
        context("context", "set", "away", "--addr", "http://127.0.0.1:1", "--token-file", str(self.dir / "none"))
        context("node", "ls", code=2)  # its token file does not exist
        context("context", "set", "here", "--addr", f"127.0.0.1:{self.server.port}")
        context("node", "ls", "--context", "here")
        context("node", "ls", BERTH_CONTEXT="here")
        context("context", "use", "here")
        context("node", "ls")
        context("node", "ls", "--context", "nowhere", code=2)
        context("node", "ls", "--context", "away", "--addr", "http://127.0.0.1:1", code=2)
        self.assertIn("*  here", context("context", "ls"))
        context("context", "rm", "here")
        context("context", "rm", "here", code=3)
        path = self.dir / "home" / "berth" / "config.yaml"
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        for text in ("contexts: 5", "contexts: {x: {}}", "contexts: {x: {addr: a, colour: b}}", "- x", "{", "current: x"):
            path.write_text(text)
            context("node", "ls", code=2)

    def test_a_contexts_token_goes_nowhere_else(self):
        """BERTH_ADDR names another server, so the command must not send it the context's token."""
        home = {"XDG_CONFIG_HOME": str(self.dir / "home")}
        (self.dir / "token").write_text("s3cret-0000\n")
        self.cli("context", "set", "prod", "--addr", "http://127.0.0.1:1", "--token-file", str(self.dir / "token"), env=home)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = subprocess.Popen([BINARY, "node", "ls"], stderr=subprocess.DEVNULL,
                                       env={**clean_env(), **home, "BERTH_ADDR": f"127.0.0.1:{listener.getsockname()[1]}"})
            connection, _ = listener.accept()
            asked = connection.recv(65536)
            connection.close()
            process.wait()
        self.assertIn(b"GET /v1/nodes", asked)
        self.assertNotIn(b"s3cret", asked)

    def test_a_jobs_life(self):
        node = Node(self.server, "n1", allowed_types=["research"])
        placed = self.json("job", "submit", "--session", "room-1", "--src", "en", "--tgt", "zh",
                           "--audio-ref", "blob://1")
        self.assertEqual(placed["node_id"], "n1")
        job = placed["job_id"]
        self.assertIn(job, self.cli("job", "ls"))
        self.assertEqual(self.json("job", "show", job)["state"], "DISPATCHED")
        self.cli("job", "wait", job, "--timeout", "200ms", code=6)
        self.ok(node.done(placed, result={"text": "x"}))
        self.assertEqual(self.json("job", "wait", job)["state"], "DONE")
        self.assertEqual([row["job_id"] for row in self.json("job", "ls", "--state", "DONE")["jobs"]], [job])
        self.cli("job", "cancel", job, code=4)
        task = self.json("job", "submit", "--type", "research", "--title", "read it", "--payload", '{"url":"x"}')
        self.cli("job", "cancel", task["job_id"])
        self.cli("job", "wait", task["job_id"], code=7)
        again = self.json("job", "retry", task["job_id"])
        self.assertNotEqual(again["job_id"], task["job_id"])

    def test_submit_and_wait(self):
        node = Node(self.server, "n1", allowed_types=["research"])
        process = subprocess.Popen([BINARY, "job", "submit", "--type", "research", "--wait=30s", "-o", "json"],
                                   env=dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{self.server.port}"),
                                   stdout=subprocess.PIPE, text=True)
        job = node.poll(wait="20s")[0]
        self.ok(node.ack(job))
        self.ok(node.done(job, result=[1]))
        out, _ = process.communicate(timeout=60 * SLOW)
        self.assertEqual(process.returncode, 0)
        self.assertIn(job["job_id"], out)

    def test_exit_codes(self):
        self.cli("job", "show", "j0000000000001", code=3)
        self.cli("job", "cancel", "j0000000000001", code=3)
        self.cli("job", "submit", "--src", "en", "--tgt", "zh", code=5)
        self.cli("job", "submit", "--src", "en", code=2)
        self.cli("job", "submit", "--type", "x", "--payload", "{nope", code=2)
        self.cli("node", "shwo", code=2)
        self.cli("node", "show", code=2)
        self.cli("node", "ls", "--colour", code=2)
        self.cli("node", "ls", code=5, env={"BERTH_ADDR": "http://127.0.0.1:1"})

    def test_pools_sessions_health(self):
        Node(self.server, "n1")
        self.placed(self.server, session="room-1")
        self.assertIn("en:zh", self.cli("pool", "ls"))
        self.assertIn("en:zh", {pool["pool_id"] for pool in self.json("pool", "ls")["pools"]})
        self.assertEqual(self.json("session", "show", "room-1")["preferred_pool"], "en:zh")
        self.cli("session", "show", "none", code=3)
        self.cli("health")

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BINARY, "node", "ls"], stdout=full, stderr=subprocess.PIPE,
                                  env=dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{self.server.port}"))
        self.assertEqual(done.returncode, 1)
