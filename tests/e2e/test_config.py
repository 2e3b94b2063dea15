"""Settings: flags win over the environment, the file and defaults, and errors name the setting. Starting and stopping a server."""
import json
import re
import signal
import socket
import subprocess
import time

from harness import BINARY, SLOW, Case, Events, Node, WsNode, berth, clean_env, eventually


class Config(Case):
    def file(self, text):
        path = self.dir / "berth.yaml"
        path.write_text(text)
        return path

    def shown(self, *args, env=None):
        """`berth config show` as {name: (value, where it came from)}."""
        done = berth("config", "show", *args, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r"^(\w+):\s*(.*?)\s+#\s*(.*)$", done.stdout, re.M)
        return {name: (value, source) for name, value, source in rows}

    def refused(self, text, *words):
        done = berth("config", "show", "--config", self.file(text))
        self.assertEqual(done.returncode, 2, f"{text!r}: {done.stdout} {done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr, text)
        started = berth("server", "--listen", "127.0.0.1:0", "--data-dir", self.dir / "d", "--config",
                        self.dir / "berth.yaml")
        self.assertEqual(started.returncode, 2, started.stderr)

    def test_show_has_the_seeds_parameters_and_defaults(self):
        shown = self.shown()
        for name, value in {"sample_k": "20", "reservation_ttl_ms": "5000", "candidate_shuffle": "true",
                            "health_filter": "ready", "heartbeat_stale_ms": "15000"}.items():
            self.assertEqual(shown[name][0].strip('"'), value, name)
            self.assertTrue(shown[name][1].startswith("default"), shown[name])
        attempts = shown.get("max_attempts") or shown["max_retry"]
        self.assertEqual(attempts[0], "2")

    def test_flag_beats_env_beats_file(self):
        path = self.file("sample_k: 7\nreservation_ttl_ms: 4000\nqueue_max: 11\n")
        shown = self.shown("--config", path, "--sample-k", 9,
                           env={"BERTH_SAMPLE_K": "8", "BERTH_RESERVATION_TTL_MS": "4500"})
        self.assertEqual([shown[name][0] for name in ("sample_k", "reservation_ttl_ms", "queue_max")],
                         ["9", "4500", "11"])
        self.assertIn("flag", shown["sample_k"][1])
        self.assertIn("env", shown["reservation_ttl_ms"][1])
        self.assertRegex(shown["queue_max"][1], r"berth\.yaml|file")

    def test_show_as_json(self):
        done = berth("config", "show", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)

    def test_max_retry_is_accepted(self):
        shown = self.shown("--config", self.file("max_retry: 3\n"))
        self.assertEqual((shown.get("max_attempts") or shown["max_retry"])[0], "3")

    def test_unknown_key_names_line_and_nearest(self):
        self.refused("queue_max: 5\n\nsampel_k: 10\n", "sampel_k", "sample_k", "3")
        self.refused("reservation_tll_ms: 10\n", "reservation_ttl_ms", "1")

    def test_wrong_values_name_the_key(self):
        for text, word in (("sample_k: many\n", "sample_k"), ("sample_k: 0\n", "sample_k"),
                           ("policy: fastest\n", "policy"), ("max_retry: 10\n", "max_"),
                           ("heartbeat_ms: -1\n", "heartbeat_ms"), ("queue_max: [1]\n", "queue_max")):
            self.refused(text, word)

    def test_yaml_that_is_wrong(self):
        self.refused("sample_k: 1\nsample_k: 2\n", "sample_k", "2")
        self.refused("a: [1\n")
        self.refused("sample_k: &x 5\nqueue_max: *x\n")
        self.refused("- 1\n")

    def test_stale_must_be_three_heartbeats(self):
        self.refused("heartbeat_ms: 5000\nheartbeat_stale_ms: 10000\n", "heartbeat_stale_ms")

    def test_a_missing_file(self):
        done = berth("config", "show", "--config", self.dir / "nothing.yaml")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nothing.yaml", done.stderr)

    def test_unknown_and_incomplete_flags(self):
        for args in (["server", "--sampel-k", "5"], ["server", "--sample-k"], ["server", "--sample-k", "x"],
                     ["sever"], ["config", "shw"]):
            done = berth(*args)
            self.assertEqual(done.returncode, 2, f"{args}: {done.stderr}")
            self.assertTrue(done.stderr.strip())
        self.assertIn("--sample-k", berth("server", "--sampel-k", "5").stderr)

    def test_wrong_env(self):
        done = berth("config", "show", env={"BERTH_SAMPLE_K": "x"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("BERTH_SAMPLE_K", done.stderr)

    def test_a_server_takes_its_settings_from_a_file(self):
        path = self.file("max_retry: 1\nreservation_ttl_ms: 300\npools: [fr:de]\n")
        server = self.start(config=path)
        Node(server, "n1", nmt_pairs="any", semantic_langs=["fr"])
        job = self.placed(server, src="fr", tgt="de")
        self.state_of(server, job, "FAILED")

    def test_version_and_help(self):
        for args in (["version"], ["--version"]):
            done = berth(*args)
            self.assertEqual(done.returncode, 0, args)
            self.assertRegex(done.stdout, r"\d+\.\d+\.\d+")
        for args in (["--help"], ["help"], ["server", "--help"], ["dev", "--help"], ["config", "--help"],
                     ["node", "--help"], ["job", "submit", "--help"]):
            done = berth(*args)
            self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
            self.assertIn("berth", done.stdout)
        self.assertEqual(berth().returncode, 2)


class StartStop(Case):
    def test_refuses_another_address_without_tokens(self):
        for address in ("0.0.0.0:0", "[::]:0", "10.255.255.1:7420"):
            done = berth("server", "--listen", address, "--data-dir", self.dir / "d")
            self.assertIn(done.returncode, (1, 2), address)
            self.assertIn("token", done.stderr.lower(), address)
            self.assertIn("loopback", done.stderr.lower(), address)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = berth("server", "--listen", f"127.0.0.1:{port}", "--data-dir", self.dir / "d")
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(port), done.stderr)

    def test_wrong_listen(self):
        for address in ("nonsense", "127.0.0.1", "127.0.0.1:99999", ":", "127.0.0.1:x"):
            done = berth("server", "--listen", address, "--data-dir", self.dir / "d")
            self.assertIn(done.returncode, (1, 2), address)
            self.assertTrue(done.stderr.strip())

    def test_an_unknown_store(self):
        done = berth("server", "--listen", "127.0.0.1:0", "--store", "mysql://x", "--data-dir", self.dir / "d")
        self.assertIn(done.returncode, (1, 2))
        self.assertIn("mysql", done.stderr)

    def test_a_data_dir_that_cannot_be_made(self):
        done = berth("server", "--listen", "127.0.0.1:0", "--data-dir", "/proc/nothing/here")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/proc/nothing", done.stderr)

    def test_a_second_server_on_the_same_data_dir_names_the_first(self):
        server = self.start()
        second = berth("server", "--listen", "127.0.0.1:0", "--data-dir", server.data_dir)
        self.assertEqual(second.returncode, 1, second.stderr)
        self.assertIn(str(server.pid), second.stderr)
        self.ok(server.get("/healthz"))

    def test_after_kill_9_the_data_dir_is_free(self):
        self.start().kill()
        self.ok(self.start().get("/healthz"))

    def test_dev_needs_no_configuration(self):
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", BINARY, "dev", "--listen", "127.0.0.1:0"],
                                   cwd=self.dir, env=clean_env(), stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if "event=server.listening" in line:
                    break
            self.assertTrue((self.dir / "berth-data").is_dir(), "./berth-data is the default")
        finally:
            process.terminate()
            process.stderr.read()
            self.assertEqual(process.wait(20 * SLOW), 0)
            process.stderr.close()

    def test_sigterm_with_work_open_exits_0(self):
        """Waiters, pollers and WebSockets do not delay the stop, and no job is lost."""
        server = self.start(loops=2)
        node = Node(server, "n1", max_concurrent_jobs=50)
        socket_node = WsNode(server, "w1", semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        jobs = [self.placed(server) for _ in range(20)]
        self.ok(node.ack(jobs[0]))
        events = Events(server)
        clients = [server.client() for _ in range(3)]
        clients[0].connection.request("GET", f"/v1/jobs/{jobs[0]['job_id']}?wait=60s")
        clients[1].connection.request("GET", "/v1/node/jobs?node_id=w1&wait=60s")
        clients[2].get("/healthz")
        self.assertEqual(server.stop(), 0, server.log[-2000:])
        self.assertIn(socket_node.closed(), (1012, 1006))
        for client in clients:
            client.close()
        events.close()
        again = self.start()
        self.assertEqual(again.job(jobs[0]["job_id"])["state"], "ACKED")
        self.assertEqual(len(again.all_jobs()), 20)

    def test_sigint_exits_0(self):
        self.assertEqual(self.start().stop(number=signal.SIGINT), 0)

    def test_sigterm_with_nobody_there_is_quick(self):
        """Without clients the server stops at once."""
        times = []
        for turn in range(10):
            server = self.start(data_dir=f"d{turn}")
            server.get("/healthz")
            begun = time.monotonic()
            self.assertEqual(server.stop(), 0)
            times.append(time.monotonic() - begun)
        self.assertLess(min(times), 2 * SLOW, times)

    def test_log_formats_and_levels(self):
        server = self.start(log_level="debug")
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.done(job))
        line = eventually("the log has a line about the job", lambda: re.search(rf"^.*job_id={job['job_id']}.*$", server.log, re.M))
        self.assertIn("node_id=n1", line.group())
        server.stop()
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", BINARY, "server", "--listen", "127.0.0.1:0",
                                    "--data-dir", str(self.dir / "json"), "--log-format", "json"],
                                   env=clean_env(), stderr=subprocess.PIPE, text=True)
        try:
            while True:
                line = json.loads(process.stderr.readline())
                self.assertIn("event", line)
                if line["event"] == "server.listening":
                    break
        finally:
            process.terminate()
            for line in process.stderr:
                json.loads(line)
            process.wait(20 * SLOW)
            process.stderr.close()
