"""The performance report and the debug bundle, over real jobs, restarts and kills."""
import csv
import hashlib
import io
import json
import signal
import subprocess
import tarfile
import time

from harness import BINARY, SLOW, Case, Node, berth, clean_env, eventually, freeze, tags
from redis import Redis
from test_agent import Agent, AgentCase


class Report(Case):
    def report(self, server, query=""):
        return self.ok(server.get("/v1/report" + query))

    def counted(self, server, jobs, query=""):
        """The report once it counts that many ended jobs, and the attempts that ended them."""
        def there():
            report = self.report(server, query)
            return report if min(report["total"]["jobs"], report["total"]["attempts"]) >= jobs else None

        return eventually(f"{jobs} jobs are in the report", there)

    def report_with(self, server, of, want, query=""):
        """The report once `of` takes `want` from it. Each loop publishes its own counts, and several loops may have counted parts of one
        job."""
        def there():
            report = self.report(server, query)
            return report if of(report) == want else None

        try:
            return eventually("", there)
        except AssertionError:
            self.assertEqual(of(self.report(server, query)), want)
            raise

    def work(self, server):
        """On n1: 6 dev jobs done, 2 failed for good, and 1 talk job killed; one dispatch refused because no node fits."""
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=20)
        for number in range(8):
            job = self.ok(self.task(server, max_attempts=1))
            self.ok(node.ack(job))
            self.ok(node.done(job) if number < 6 else node.fail(job, reason="BROKEN"))
        job = self.ok(self.task(server, type="talk", max_attempts=1))
        self.ok(node.ack(job))
        self.ok(node.fail(job, reason="EMERGENCY"))
        self.dispatch(server, src="xx")
        eventually("the refusal is in the report", lambda: self.report(server)["refused"])
        return node

    def test_a_server_and_its_types(self):
        server = self.start(breaker_threshold=2)
        self.work(server)
        report = self.report_with(server, lambda report: [
            figures(node, "node_id jobs succeeded failed kills breaker_opened failovers attempts") for node in report["servers"]],
                                  [("n1", 9, 6, 3, 1, 1, 0, 9)])
        (node,) = report["servers"]
        types = {row["type"]: row for row in node["types"]}
        self.assertEqual(types["dev"]["success_rate"], 0.75)
        self.assertEqual(types["talk"]["kills"], 1)
        for row in types.values():
            for name in ("wait_ms", "run_ms"):
                times = row[name]
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
        self.assertEqual(self.report(server, "?since=0")["total"]["jobs"], 9, "all of the current hour counts")

    def test_refusals_by_reason_and_failovers(self):
        server = self.start(reservation_ttl_ms=5000)
        Node(server, "full", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server, max_attempts=2))  # no ACK arrives, so it fails over
        eventually("two reservations have run out", lambda: server.metrics()["berth_ack_timeout_total"] >= 2)
        busy = Node(server, "busy", allowed_types=["talk"], max_concurrent_jobs=1)
        job = self.ok(self.task(server, type="talk"))
        self.ok(busy.ack(job))
        self.task(server, type="talk")
        eventually("the refusal is in the report", lambda: self.report(server)["refused"])
        report = self.report_with(server, lambda report: [
            figures(node, "jobs failed attempts retried failovers") for node in report["servers"] if node["node_id"] == "full"],
                                  [(1, 1, 2, 1, 1)])
        nodes = {node["node_id"]: node for node in report["servers"]}
        self.assertIsNone(nodes["full"]["run_ms"]["p50"], "neither attempt began")
        self.assertIsNotNone(nodes["full"]["wait_ms"]["p50"], "both attempts were sent")
        refused = {(row["type"], row["reason"]) for row in report["refused"]}
        self.assertIn(("talk", "ALL_CANDIDATES_FULL_OR_FAILED"), refused)
        self.ok(busy.done(job))

    def test_refusals_stand_with_their_type(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["a", "b", "c"])
        for kind in ("a", "c"):  # types before and after it in the order have no refusals of their own
            job = self.ok(self.task(server, type=kind))
            self.ok(node.ack(job))
            self.ok(node.done(job))
        self.ok(node.fail(self.ok(self.task(server, type="b")), reason="TYPE_NOT_ALLOWED"))
        self.ok(node.fail(self.ok(self.task(server, type="c")), reason="NODE_OVERLOADED"))
        for query, wanted in (("", {"a": {}, "b": {"TYPE_NOT_ALLOWED": 1}, "c": {"NODE_OVERLOADED": 1}}),
                              ("?type=c", {"c": {"NODE_OVERLOADED": 1}})):
            self.report_with(server, lambda report: {row["type"]: row["refusals"] for node in report["servers"] for row in node["types"]},
                             wanted, query)

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
        self.assertEqual(self.counted(server, 10)["total"]["succeeded"], 7, "the counts of the earlier servers must be kept")

    def test_files_nobody_wrote(self):
        server = self.start()
        self.work(server)
        self.counted(server, 9)
        self.assertEqual(server.stop(), 0)
        hours = sorted((server.data_dir / "report").glob("*.jsonl"))  # two if an hour ended meanwhile
        path = hours[-1]
        path.write_text("nonsense\n" + path.read_text() + '{"work":["x"]}\n{"work":["n1","dev"],"succeeded":-5,"run":[[99,1]]}\n{"wo')
        (path.parent / "12.jsonl").write_text("old")
        (path.parent / "12.jsonl.new").write_text("half")
        server = self.start()
        self.assertEqual(self.report(server)["total"]["jobs"], 9)
        self.assertIn("event=report.unreadable", server.log)
        eventually("only hour files and the lock are left",
                   lambda: sorted(found.name for found in path.parent.iterdir()) == [*(hour.name for hour in hours), "lock"])

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
        for text in ("n1", "  dev", "75.0%", "ATTEMPTS", "RETRIED", "Trouble", "Minutes at each level", "NO_CAPABLE_NODE",
                     "This is what this instance saw, by whole hours."):
            self.assertIn(text, done.stdout)
        self.assertLessEqual(max(len(line) for line in done.stdout.splitlines()), 80, done.stdout)
        self.assertEqual(json.loads(berth("report", "-o", "json", env=env).stdout)["total"]["jobs"], 9)
        self.assertEqual(berth("report", "--since", "30d", env=env).returncode, 2)


class Usage(Case):
    """What a bill is made of."""

    def used(self, server, by, runs):
        def there():
            answer = self.ok(server.get(f"/v1/report/usage?by={by}"))
            return answer if answer["total"]["runs"] == runs else None

        return eventually(f"the usage counts {runs} attempts", there)

    def test_by_key_type_and_node_and_as_a_table(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=20, resources={"cpu": 8, "mem_mb": 4096, "seats": 3})
        jobs = [self.ok(self.task(server, **job)) for job in (
            {"needs": {"cpu": 1.5, "mem_mb": 2048, "seats": 2}, "keys": ["tenant:acme", "@SUM-1"]},
            {"needs": {"slots": 3}, "keys": ["tenant:acme"], "type": "talk"}, {})]
        for job in jobs:
            self.ok(node.ack(job))
        began = time.monotonic()
        time.sleep(0.3)  # so that there is run time to count
        for job in jobs:
            self.ok(node.done(job))
        most = time.monotonic() - began + 1
        by_key = self.used(server, "key", 3)
        rows = {row["name"]: row for row in by_key["rows"]}
        self.assertEqual(list(rows), [None, "@SUM-1", "tenant:acme"])
        acme, one = rows["tenant:acme"], rows["@SUM-1"]
        self.assertEqual((acme["runs"], one["runs"], rows[None]["runs"]), (2, 1, 1))
        self.assertLessEqual(0.3, one["run_seconds"])
        self.assertLess(one["run_seconds"], most)
        for name, times in (("slot_seconds", 1), ("core_seconds", 1.5), ("gb_seconds", 2), ("gpu_seconds", 0), ("vram_gb_seconds", 0)):
            self.assertAlmostEqual(one[name], times * one["run_seconds"], places=6, msg=name)
        self.assertAlmostEqual(one["other_seconds"]["seats"], 2 * one["run_seconds"], places=6)
        self.assertAlmostEqual(by_key["total"]["run_seconds"], acme["run_seconds"] + rows[None]["run_seconds"], places=6,
                               msg="one run counted twice")
        by_type = {row["name"]: row for row in self.used(server, "type", 3)["rows"]}
        self.assertAlmostEqual(by_type["talk"]["slot_seconds"], 3 * by_type["talk"]["run_seconds"], places=6)
        self.assertEqual([row["name"] for row in self.used(server, "node", 3)["rows"]], ["n1"])

        today = time.strftime("%Y-%m-%d", time.gmtime(by_key["until_ms"] / 1000))
        table = server.get(f"/v1/report/usage.csv?by=key&day={today}")
        self.assertEqual((table.status, table.headers.get_content_type()), (200, "text/csv"))
        text = table.body.decode()
        self.assertEqual(text.count("\n"), text.count("\r\n"))
        found = list(csv.DictReader(io.StringIO(text, newline="")))
        printed = berth("report", "--by", "key", "--csv", "--day", today, env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"})
        self.assertEqual((printed.returncode, printed.stderr, printed.stdout), (0, "", text.replace("\r\n", "\n")))
        if time.strftime("%Y-%m-%d", time.gmtime()) == today:  # otherwise the case ran around midnight
            self.assertEqual([row["key"] for row in found], ["", "'@SUM-1", "tenant:acme"])
            self.assertEqual(found[1]["other_seconds.seats"], f"{one['other_seconds']['seats']:.3f}")
            self.assertEqual(found[1]["from"], today + "T00:00:00Z")
        for query in ("by=colour", "by=key&node_id=n1", "day=yesterday", f"day={today}&since=1h", "day=2026-02-31x", "day=2026-02-31",
                      "day=2019-01-01", "day=2199-01-01"):
            self.problem(server.get("/v1/report/usage?" + query), 400, "BAD_FIELD")

        self.assertEqual(server.stop(), 0)
        server = self.start()
        self.assertEqual(self.ok(server.get("/v1/report/usage?by=key"))["rows"], by_key["rows"], "a restart must not lose usage")


def figures(row, names):
    return tuple(row[name] for name in names.split())


COUNTS = "jobs succeeded failed cancelled attempts retried"


class Lives(Case):
    """A job counts once, where it ended; each of its attempts counts on its own node."""

    scope = "what this instance saw, by whole hours"

    def begin(self):
        """(the server of the nodes, the server of the clients, all servers)."""
        server = self.start()
        return server, server, [server]

    def run_once(self, job, end, **more):
        """The job's current attempt is acknowledged and ended by its node; returns the node's id."""
        node = self.nodes[job["node_id"]]
        self.ok(node.ack(job))
        self.ok(getattr(node, end)(job, **more))
        return node.id

    def moved(self, server, job):
        """The job once its second attempt is with a node."""
        def there():
            now = server.job(job["job_id"])
            return now if (now["state"], now["attempt_id"]) == ("DISPATCHED", 2) else None

        return eventually("the second attempt is dispatched", there)

    def twice(self, server, ends):
        """The nodes of a job with two attempts."""
        job = self.ok(self.task(server, max_attempts=2))
        first = self.run_once(job, ends[0])
        return first, self.run_once(self.moved(server, job), ends[1])

    def sums(self, servers, want):
        """Waits until the totals are `want` at every server and all servers agree; (figures by node, refusals)."""
        def there():
            found = None
            for server in servers:
                report = self.ok(server.get("/v1/report"))
                total = list(figures(report["total"], COUNTS))
                self.assertLessEqual(total[0], want[0], report)
                for row in report["servers"]:
                    self.assertEqual(row["run_ms"]["p50"] is None, row["attempts"] == 0, "run times exist if attempts began")
                    seconds = 60 * sum(row["level_minutes"].values())
                    self.assertLess(seconds, time.monotonic() - self.begun + 5, "level minutes must not be added up over instances")
                nodes = {row["node_id"]: list(figures(row, COUNTS)) for row in report["servers"]}
                answer = nodes, report["refused"]
                if total != want or report["scope"] != self.scope or answer != (found or answer):
                    return None
                found = answer
            return found

        return eventually(f"the reports say {want}", there)

    def test_each_job_once_each_attempt_where_it_was(self):
        self.begun = time.monotonic()
        near, far, servers = self.begin()
        self.nodes = {name: Node(near, name, allowed_types=["dev"]) for name in ("n1", "n2")}
        eventually("the client's server knows both nodes", lambda: len(far.get("/v1/nodes").json["nodes"]) == 2)
        first, second = self.twice(far, ("fail", "done"))
        self.assertNotEqual(first, second)
        nodes, _ = self.sums(servers, [1, 1, 0, 0, 2, 1])
        self.assertEqual(nodes, {first: [0, 0, 0, 0, 1, 1], second: [1, 1, 0, 0, 1, 0]})

        self.twice(far, ("fail", "fail"))  # both attempts fail
        self.sums(servers, [2, 1, 1, 0, 4, 2])

        job = self.ok(self.task(far))  # cancelled while it runs: the node's last report ends the attempt, not a job
        node = self.nodes[job["node_id"]]
        self.ok(node.ack(job))
        self.ok(far.post(f"/v1/jobs/{job['job_id']}/cancel"))
        self.ok(node.fail(job, reason="CANCELLED"))
        self.sums(servers, [3, 1, 1, 1, 5, 2])

        self.nodes["n3"] = Node(near, "n3", allowed_types=["rare"], max_concurrent_jobs=1)
        eventually("the client's server knows n3", lambda: len(far.get("/v1/nodes").json["nodes"]) == 3)
        held = self.ok(self.task(far, type="rare", max_attempts=2))
        self.assertEqual(self.task(far, type="rare").status, 503)  # refused, so there is no job
        self.ok(self.task(far, type="rare", queue_ms=200), 202)  # accepted, but it never gets a slot
        nodes, refused = self.sums(servers, [4, 1, 2, 1, 5, 2])
        self.assertEqual(sum(row[0] for row in nodes.values()), 3, "the job that only waited belongs to no node")
        self.assertEqual({row["reason"]: row["count"] for row in refused},
                         {"ALL_CANDIDATES_FULL_OR_FAILED": 1, "QUEUE_TIMEOUT": 1})
        self.ok(far.post("/v1/nodes/n3/drain"))
        self.run_once(held, "fail")  # there is no node for its second attempt
        nodes, _ = self.sums(servers, [5, 1, 3, 1, 6, 3])
        self.assertEqual(nodes["n3"], [1, 0, 1, 0, 1, 1])


class LivesOnRedis(Lives):
    """Nodes, clients and a third instance on one Redis: each end is counted by the instance that settled it, and the instance that is asked
    adds up the counts of all."""

    scope = "what 3 of 3 instances saw, by whole hours"

    def begin(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        servers = [self.start(f"data{number}", store=redis.url) for number in range(3)]
        return servers[0], servers[1], servers

    def test_an_instance_that_does_not_answer_is_left_out(self):
        self.begun = time.monotonic()
        near, far, servers = self.begin()
        self.nodes = {"n1": Node(near, "n1", allowed_types=["dev"])}
        eventually("the client's server knows the node", lambda: len(far.get("/v1/nodes").json["nodes"]) == 1)
        for _ in range(2):
            self.run_once(self.ok(self.task(far)), "done")
        self.sums(servers, [2, 2, 0, 0, 2, 0])
        freeze(near.process)  # it settled the ends, so it has counted them
        try:
            report = self.ok(far.get("/v1/report"))
            # An instance that has been silent for three seconds is not even asked.
            self.assertIn(report["scope"], ("what 2 of 3 instances saw, by whole hours", "what 2 of 2 instances saw, by whole hours"))
            self.assertEqual(report["total"]["jobs"], 0)
            eventually("the frozen instance is not asked any more", lambda: far.get("/v1/report")["scope"].startswith("what 2 of 2"))
        finally:
            near.process.send_signal(signal.SIGCONT)
        self.sums(servers, [2, 2, 0, 0, 2, 0])


class Machines(AgentCase):
    @tags("load")
    def test_levels_and_slots_are_measured(self):
        server = self.start()
        Agent(self, server, "us").connected()

        def measured():
            nodes = self.ok(server.get("/v1/report"))["servers"]
            return nodes[0] if nodes and nodes[0]["level_minutes"]["normal"] > 0 else None

        node = eventually("the node's level is in the report", measured, 20)
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
        self.assertEqual(again.returncode, 1, "an existing file must not be overwritten")

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
