"""The performance report and the debug bundle, over real jobs, restarts and kills."""
import hashlib
import io
import json
import subprocess
import tarfile

from harness import BINARY, SLOW, Case, Node, berth, clean_env, eventually, tags
from test_agent import Agent, AgentCase


class Report(Case):
    def report(self, server, query=""):
        return self.ok(server.get("/v1/report" + query))

    def counted(self, server, jobs, query=""):
        """The report once it has seen so many attempts."""
        def there():
            report = self.report(server, query)
            return report if report["total"]["jobs"] >= jobs else None

        return eventually(f"{jobs} jobs are in the report", there)

    def work(self, server):
        """On n1: 6 of dev done, 2 failed for good, 1 of talk killed; one refused for want of a node."""
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=20)
        for number in range(8):
            job = self.ok(self.task(server, max_attempts=1))
            self.ok(node.ack(job))
            self.ok(node.done(job) if number < 6 else node.fail(job, reason="BROKEN"))
        job = self.ok(self.task(server, type="talk", max_attempts=1))
        self.ok(node.ack(job))
        self.ok(node.fail(job, reason="EMERGENCY"))
        self.dispatch(server, src="xx")
        return node

    def test_a_server_and_its_types(self):
        server = self.start(breaker_threshold=2)
        self.work(server)
        report = self.counted(server, 9)
        (node,) = report["servers"]
        self.assertEqual((node["node_id"], node["jobs"], node["succeeded"], node["failed"]), ("n1", 9, 6, 3))
        self.assertEqual((node["kills"], node["breaker_opened"], node["failovers"]), (1, 1, 0))
        types = {row["type"]: row for row in node["types"]}
        self.assertEqual(types["dev"]["success_rate"], 0.75)
        self.assertEqual(types["talk"]["kills"], 1)
        self.assertIsNone(types["talk"]["run_ms"]["p50"], "none of them was done")
        for name in ("wait_ms", "run_ms"):
            times = types["dev"][name]
            self.assertLessEqual(1, times["p50"])
            self.assertLessEqual(times["p50"], times["p95"])
            self.assertLess(times["p95"], 5000 * SLOW)
        self.assertEqual([row for row in report["refused"] if row["type"] == "f2f"],
                         [{"type": "f2f", "reason": "NO_CAPABLE_NODE", "count": 1}])
        self.assertEqual(report["total"]["success_rate"], 0.6666)

    def test_filters_and_mistakes(self):
        server = self.start()
        self.work(server)
        Node(server, "n2")
        self.counted(server, 9)
        only = self.report(server, "?node_id=n1&type=talk")
        self.assertEqual([row["type"] for node in only["servers"] for row in node["types"]], ["talk"])
        self.assertEqual(only["total"]["jobs"], 1)
        self.assertEqual(self.report(server, "?node_id=ghost")["servers"], [])
        self.problem(server.get("/v1/report?since=yesterday"), 400, "BAD_FIELD")
        self.assertEqual(self.report(server, "?since=0")["total"]["jobs"], 9, "the hour under way counts whole")

    def test_refusals_by_reason_and_failovers(self):
        server = self.start(reservation_ttl_ms=200)
        Node(server, "full", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server, max_attempts=2))  # nobody acknowledges it: it fails over
        eventually("it ran out twice", lambda: server.metrics()["berth_ack_timeout_total"] >= 2)
        busy = Node(server, "busy", allowed_types=["talk"], max_concurrent_jobs=1)
        job = self.ok(self.task(server, type="talk"))
        self.ok(busy.ack(job))
        self.task(server, type="talk")
        report = self.counted(server, 2)
        nodes = {node["node_id"]: node for node in report["servers"]}
        self.assertEqual((nodes["full"]["failed"], nodes["full"]["retried"], nodes["full"]["failovers"]), (2, 1, 1))
        refused = {(row["type"], row["reason"]) for row in report["refused"]}
        self.assertIn(("talk", "ALL_CANDIDATES_FULL_OR_FAILED"), refused)
        self.ok(busy.done(job))

    def test_a_restart_and_a_kill_lose_nothing_that_was_saved(self):
        server = self.start()
        self.work(server)
        before = self.counted(server, 9)
        self.assertEqual(server.stop(), 0)
        server = self.start()
        after = self.report(server)
        self.assertEqual(after["total"], before["total"])
        self.assertEqual(after["refused"], before["refused"])
        server.kill()
        self.servers.remove(server)
        server = self.start()
        self.assertEqual(self.report(server)["total"]["jobs"], 9)
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=20)
        job = self.ok(self.task(server))
        self.ok(node.done(job))
        self.assertEqual(self.counted(server, 10)["total"]["succeeded"], 7, "it goes on where it was")

    def test_files_nobody_wrote(self):
        server = self.start()
        self.work(server)
        self.counted(server, 9)
        self.assertEqual(server.stop(), 0)
        (path,) = (server.data_dir / "report").glob("*.jsonl")
        path.write_text("nonsense\n" + path.read_text() + '{"work":["x"]}\n{"work":["n1","dev"],"succeeded":-5,"run":[[99,1]]}\n{"wo')
        (path.parent / "12.jsonl").write_text("old")
        (path.parent / "12.jsonl.new").write_text("half")
        server = self.start()
        self.assertEqual(self.report(server)["total"]["jobs"], 9)
        self.assertIn("event=report.unreadable", server.log)
        self.assertEqual(sorted(found.name for found in path.parent.iterdir()), [path.name, "lock"])

    def test_a_directory_that_cannot_be_used(self):
        data = self.dir / "data"
        data.mkdir()
        (data / "report").write_text("in the way")
        server = self.start()
        self.work(server)
        self.counted(server, 9)
        self.assertIn("event=report.memory_only", server.log)

    def test_the_command(self):
        server = self.start()
        self.work(server)
        self.counted(server, 9)
        env = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}
        done = berth("report", "--since", "2h", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("n1", "dev", "75.0%", "Minutes at each level", "NO_CAPABLE_NODE"):
            self.assertIn(text, done.stdout)
        self.assertEqual(json.loads(berth("report", "-o", "json", env=env).stdout)["total"]["jobs"], 9)
        self.assertEqual(berth("report", "--since", "30d", env=env).returncode, 2)


class Machines(AgentCase):
    @tags("load")
    def test_levels_and_slots_are_measured(self):
        server = self.start()
        Agent(self, server, "us").connected()

        def measured():
            nodes = self.ok(server.get("/v1/report"))["servers"]
            return nodes[0] if nodes and nodes[0]["level_minutes"]["normal"] > 0 else None

        node = eventually("its level is counted", measured, 20)
        self.assertEqual((node["node_id"], node["level_minutes"]["critical"], node["slot_use"]), ("us", 0, 0))


class Bundle(Case):
    def unpack(self, data):
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            return {member.name.split("/", 1)[1]: tar.extractfile(member).read().decode() for member in tar}

    def test_everything_and_no_secret(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server, payload={"password": "hunter2"}))
        path = self.dir / "bundle.tar.gz"
        addr = f"http://127.0.0.1:{server.port}"
        done = berth("debug", "bundle", "-f", path, "--addr", addr)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{path}\n", ""))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        files = self.unpack(path.read_bytes())
        self.assertEqual(set(files), {"version.txt", "health.json", "server.json", "status.json", "nodes.json",
                                      "pools.json", "breakers.json", "report.json", "metrics.txt", "jobs.json",
                                      "log.txt"})
        about = json.loads(files["server.json"])
        self.assertEqual(about["store"]["mode"], "NORMAL")
        self.assertEqual(about["settings"]["data_dir"]["value"], str(server.data_dir))
        self.assertIn("event=server.listening", files["log.txt"])
        self.assertEqual(json.loads(files["jobs.json"])[0]["job_id"], job["job_id"])
        self.assertIn("berth_build_info", files["metrics.txt"])
        self.assertNotIn("hunter2", "".join(files.values()))
        again = berth("debug", "bundle", "-f", path, "--addr", addr)
        self.assertEqual(again.returncode, 1, "nothing is written over")

    def test_a_server_with_tokens(self):
        token, config = "a-token-of-some-length", self.dir / "berth.yaml"
        digest = hashlib.sha256(token.encode()).hexdigest()
        config.write_text("tokens:\n  - {name: ops, sha256: " + digest + ", scopes: [operate]}\n"
                          "  - {name: eye, sha256: " + "ab" * 32 + ", scopes: [read]}\n")
        server = self.start(args=["--config", str(config)])
        done = subprocess.run([BINARY, "debug", "bundle", "-f", "-", "--addr", f"http://127.0.0.1:{server.port}"],
                              capture_output=True, env=dict(clean_env(), BERTH_TOKEN=token))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        files = self.unpack(done.stdout)
        self.assertNotIn(digest, "".join(files.values()))
        self.assertNotIn(token, "".join(files.values()))
        self.servers.remove(server)  # its /metrics needs a token
        self.assertEqual(server.stop(), 0)

    def test_without_a_server(self):
        done = berth("debug", "bundle", "--addr", "http://127.0.0.1:1", cwd=self.dir)
        self.assertEqual(done.returncode, 5)
        (path,) = self.dir.glob("berth-debug-*.tar.gz")
        self.assertIn("health.json.error.txt", self.unpack(path.read_bytes()))
