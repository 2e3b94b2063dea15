"""What Prometheus makes of us: a real one scrapes, evaluates the shipped rules and fires the shipped
alerts. Those that need minutes are told by promtool, on series written down here."""
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

from harness import ROOT, SLOW, Case, Node, eventually, live, tags

RULES = ROOT / "ops" / "prometheus"
ALERTS = (RULES / "berth-alerts.yml").read_text()
HERE = bool(shutil.which("promtool") and shutil.which("prometheus"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A server of its own. Rules are the shipped ones, except that nobody waits for `for`."""

    def __init__(self, case, port):
        where = case.dir / "prometheus"
        where.mkdir()
        for name in ("berth-rates.yml", "berth-alerts.yml"):
            (where / name).write_text(re.sub(r"for: \w+", "for: 0s", (RULES / name).read_text()))
        config = (RULES / "prometheus.yml").read_text().replace("15s", "500ms").replace("7420", str(port))
        (where / "prometheus.yml").write_text(config)
        self.port = free_port()
        self.log = (where / "log").open("w+")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "prometheus", f"--config.file={where}/prometheus.yml",
             f"--storage.tsdb.path={where}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=self.log)
        live.add(self.process)
        case.addCleanup(self.close)
        eventually("prometheus is up", self.up, 30)

    def close(self):
        self.process.kill()
        self.process.wait()
        live.discard(self.process)
        self.log.close()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10 * SLOW) as reply:
            return json.load(reply)["data"]

    def up(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def value(self, query):
        found = self.get("/api/v1/query?query=" + urllib.parse.quote(query))["result"]
        return float(found[0]["value"][1]) if found else None

    def target(self):
        targets = self.get("/api/v1/targets")["activeTargets"]
        return targets[0] if targets else {"health": "none"}

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.get("/api/v1/alerts")["alerts"]
                if alert["state"] == "firing"}

    def wait(self, alert, again=lambda: None):
        """Until it fires; what provokes it may have to go on."""
        def fires():
            again()
            return alert in self.firing()

        eventually(f"{alert} fires", fires, 20)


@unittest.skipUnless(HERE, "there is no prometheus")
class Scrape(Case):
    def test_promtool_finds_nothing(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"])
        Node(server, "n-2.x:y@z", nmt_pairs=[])
        self.ok(node.done(self.placed(server)))
        self.dispatch(server, src="xx")
        for _ in range(3):
            self.ok(node.fail(self.ok(self.task(server, max_attempts=1))))
        text = eventually("the breaker is shown", lambda: self.has(server, "berth_breaker_state{"))
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        self.assertIn('berth_breaker_state{node_id="n1",type="dev",state="OPEN"} 1', text)
        self.assertIn('berth_node_slots{node_id="n-2.x:y@z",state="max"} 2', text)

    def has(self, server, part):
        text = server.get("/metrics").body.decode()
        return text if part in text else None

    def test_series_do_not_grow_with_nodes(self):
        server = self.start(metrics_nodes_max=3)
        for i in range(12):
            Node(server, f"n{i:02}", max_concurrent_jobs=2)
        values = eventually("all are counted", lambda: self.counted(server))
        listed = [name for name in values if name.startswith("berth_node_slots{")]
        self.assertEqual(len(listed), 3 * 3)
        self.assertEqual(values["berth_nodes_unlisted"], 9)
        self.assertEqual(values['berth_slots{state="max"}'], 24, "the sums count all")

    def counted(self, server):
        values = server.metrics()
        return values if values.get('berth_slots{state="free"}') == 24 else None

    @tags("load")
    def test_alerts_that_are_provoked(self):
        """One server, one Prometheus; each alert after what should bring it, and none before."""
        config = self.dir / "berth.yaml"
        config.write_text("reservation_ttl_ms: 100\nmax_attempts: 1\n")
        server = self.start(args=["--config", str(config)])
        prometheus = Prometheus(self, server.port)
        eventually("a first scrape", lambda: prometheus.target()["health"] == "up", 20)
        eventually("rules are evaluated", lambda: prometheus.value("multi_instance_consistency") == 0, 20)
        self.assertEqual(prometheus.firing() - {"BerthNoSlots"}, set(), "nothing has happened yet")
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=4)
        eventually("there is room", lambda: "BerthNoSlots" not in prometheus.firing(), 20)
        prometheus.wait("BerthPoolEmpty", lambda: self.dispatch(server, src="xx"))
        prometheus.wait("BerthAckTimeouts", lambda: self.dispatch(server))
        prometheus.wait("BerthOverloadRejects", lambda: node.fail(self.placed(server), reason="NODE_OVERLOADED"))
        prometheus.wait("BerthEmergencyKill", lambda: self.end(node, self.task(server, type="talk"), "EMERGENCY"))
        prometheus.wait("BerthBreakerOpen", lambda: self.end(node, self.task(server), "BROKEN"))
        config.write_text("reservation_ttl: 100\n")
        server.process.send_signal(signal.SIGHUP)
        prometheus.wait("BerthReloadRefused")
        node.heartbeat(level="critical")
        prometheus.wait("BerthNodeCritical", lambda: node.heartbeat(level="critical"))
        node.heartbeat(level="normal")
        node.register(max_concurrent_jobs=0, allowed_types=["dev"])
        prometheus.wait("BerthNoSlots")
        prometheus.wait("BerthReserveSuccessLow", lambda: [self.dispatch(server) for _ in range(20)])
        self.assertEqual(prometheus.target()["lastError"], "")
        self.assertEqual(prometheus.value("sum(scrape_samples_scraped) > 50") is not None, True)
        server.process.send_signal(signal.SIGSTOP)
        prometheus.wait("BerthDown")
        server.process.send_signal(signal.SIGCONT)

    def end(self, node, answer, reason):
        if answer.status == 200:
            node.ack(answer.json)
            node.fail(answer.json, reason=reason)

    @tags("load")
    def test_a_store_that_is_gone(self):
        port = free_port()
        redis = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", str(port), "--save", "",
                                  "--dir", str(self.dir), "--maxmemory-policy", "noeviction"],
                                 stdout=subprocess.DEVNULL)
        live.add(redis)
        self.addCleanup(lambda: (redis.kill(), redis.wait(), live.discard(redis)))
        eventually("redis listens", lambda: self.listens(port))
        server = self.start(store=f"redis://127.0.0.1:{port}")
        Node(server, "n1")
        prometheus = Prometheus(self, server.port)
        eventually("a first scrape", lambda: prometheus.target()["health"] == "up", 20)
        redis.send_signal(signal.SIGSTOP)
        prometheus.wait("BerthStoreDown", lambda: self.dispatch(server))
        prometheus.wait("BerthCacheHitsLow", lambda: self.dispatch(server))
        self.assertGreater(prometheus.value("redis_failure_rate"), 0)
        self.assertEqual(prometheus.target()["lastError"], "", "a scrape needs no store")
        redis.send_signal(signal.SIGCONT)
        eventually("all is well again", lambda: "BerthStoreDown" not in prometheus.firing(), 20)

    @tags("load")
    def test_a_node_that_is_gone(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000, view_drop_ms=3000, lost_grace_ms=1000,
                            running_lease_ms=2000)
        prometheus = Prometheus(self, server.port)
        eventually("a first scrape", lambda: prometheus.target()["health"] == "up", 20)
        quiet = Node(server, "quiet")
        self.ok(quiet.ack(self.placed(server)))
        prometheus.wait("BerthLeasesLost")
        prometheus.wait("BerthNodesOffline")

    def listens(self, port):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            return False


def series(name, values, **labels):
    given = {"job": "berth", "instance": "a:7420", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in given.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def ratio(part, whole):
    """Two counters of the same metric or of two, growing by so much a minute."""
    return [series(name, f"0+{step}x30", **labels) for name, labels, step in (part, whole)]


DELAY = "berth_pool_consistency_delay_seconds_bucket"
LATENCY = "berth_dispatch_seconds_bucket"
OK = {"result": "OK"}

# alert: (series with which it fires by minute 25, series with which it stays silent)
ROWS = {
    "BerthDown": ([series("up", "1x10 0x30")], [series("up", "1x10 0 1x30")]),
    "BerthStoreDown": ([series("berth_store_mode", "0x10 1x30")], [series("berth_store_mode", "0x40")]),
    "BerthPoolEmpty": (ratio(("berth_pool_empty_total", {}, 1), ("berth_dispatch_total", {"outcome": "PLACED"}, 99)),
                       ratio(("berth_pool_empty_total", {}, 0), ("berth_dispatch_total", {"outcome": "PLACED"}, 99))),
    "BerthAckTimeouts": (ratio(("berth_ack_timeout_total", {}, 2), ("berth_reserve_total", OK, 100)),
                         ratio(("berth_ack_timeout_total", {}, 1), ("berth_reserve_total", OK, 200))),
    "BerthOverloadRejects": (ratio(("berth_node_overload_total", {}, 2), ("berth_reserve_total", OK, 100)),
                             ratio(("berth_node_overload_total", {}, 1), ("berth_reserve_total", OK, 200))),
    "BerthReserveSuccessLow": (ratio(("berth_reserve_total", OK, 10), ("berth_reserve_total", {"result": "FULL"}, 30)),
                               ratio(("berth_reserve_total", OK, 30), ("berth_reserve_total", {"result": "FULL"}, 10))),
    "BerthNodeCritical": ([series("berth_nodes_at_level", "0x20 2x20", level="critical")],
                          [series("berth_nodes_at_level", "9x40", level="danger")]),
    "BerthEmergencyKill": ([series("berth_kills_total", "0x22 1x20", reason="emergency")],
                           [series("berth_kills_total", "0+1x40", reason="timeout")]),
    "BerthBreakerOpen": ([series("berth_breakers_open", "0x10 1x30")], [series("berth_breakers_open", "1x10 0x30")]),
    "BerthCacheHitsLow": (ratio(("berth_cache_requests_total", {"layer": "l1", "result": "hit"}, 94),
                                ("berth_cache_requests_total", {"layer": "l1", "result": "miss"}, 6)),
                          ratio(("berth_cache_requests_total", {"layer": "l1", "result": "hit"}, 96),
                                ("berth_cache_requests_total", {"layer": "l1", "result": "miss"}, 4))),
    "BerthConsistencyDelay": (ratio((DELAY, {"le": "1"}, 9), (DELAY, {"le": "2.5"}, 10)) +
                              [series(DELAY, "0+10x30", le="+Inf")],
                              ratio((DELAY, {"le": "0.5"}, 10), (DELAY, {"le": "1"}, 10)) +
                              [series(DELAY, "0+10x30", le="+Inf")]),
    "BerthInstancesApart": ([series("berth_instance_version_lag", "0x10 500x30")],
                            [series("berth_instance_version_lag", "20x40")]),
    "BerthNoSlots": ([series("berth_slots", "5x10 0x30", state="free")],
                     [series("berth_slots", "5x19 0x4 1x30", state="free")]),
    "BerthQueueOld": ([series("berth_queue_oldest_seconds", "0+60x40")], [series("berth_queue_oldest_seconds", "200x40")]),
    "BerthDispatchSlow": (ratio((LATENCY, {"le": "0.05", "outcome": "PLACED"}, 9),
                                (LATENCY, {"le": "0.1", "outcome": "PLACED"}, 10)) +
                          [series(LATENCY, "0+10x30", le="+Inf", outcome="PLACED")],
                          ratio((LATENCY, {"le": "0.005", "outcome": "PLACED"}, 10),
                                (LATENCY, {"le": "0.05", "outcome": "PLACED"}, 10)) +
                          [series(LATENCY, "0+10x30", le="+Inf", outcome="PLACED")]),
    "BerthDatabaseDown": ([series("berth_sql_calls_total", "0+1x40", result="error")],
                          [series("berth_sql_calls_total", "0+1x40", result="ok")]),
    "BerthNodeLeasesLapsed": ([series("berth_node_leases_lapsed_total", "0x22 1x20")],
                              [series("berth_node_leases_lapsed_total", "5x40")]),
    "BerthLeasesLost": ([series("berth_lease_expired_total", "0x22 1x20", kind="running")],
                        [series("berth_lease_expired_total", "0+1x40", kind="reserved")]),
    "BerthNodesOffline": ([series("berth_nodes", "0x10 1x30", health="offline")],
                          [series("berth_nodes", "0x20 1x3 0x30", health="offline")]),
    "BerthInvariantViolated": ([series("berth_invariant_violations_total", "0x20 1x20", rule="slots_equal_leases")],
                               [series("berth_invariant_violations_total", "1x40", rule="slots_equal_leases")]),
    "BerthReloadRefused": ([series("berth_reloads_total", "0x20 1x20", result="refused")],
                           [series("berth_reloads_total", "0+1x40", result="ok")]),
}


@unittest.skipUnless(HERE, "there is no prometheus")
class Rules(unittest.TestCase):
    def folder(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="berth-rules-"))
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def check(self, tests):
        """promtool's verdict on the shipped files."""
        path = self.folder() / "tests.yml"
        path.write_text(json.dumps({"rule_files": [str(RULES / "berth-rates.yml"), str(RULES / "berth-alerts.yml")],
                                    "evaluation_interval": "1m", "tests": tests}))
        done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_files_are_valid(self):
        done = subprocess.run(["promtool", "check", "config", str(RULES / "prometheus.yml")], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_rows(self):
        self.assertEqual(set(re.findall(r"alert: (\w+)", ALERTS)), set(ROWS))
        for block in ALERTS.split("- alert: ")[1:]:
            for part in ("severity:", "summary:", "action:"):
                self.assertIn(part, block)

    def test_each_fires_and_stays_silent(self):
        tests = []
        for alert, (loud, quiet) in ROWS.items():
            for given, samples in ((loud, [{"labels": "{}", "value": 1}]), (quiet, [])):
                query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
                tests.append({"interval": "1m", "name": alert, "input_series": given, "promql_expr_test": [
                    {"expr": query, "eval_time": "25m", "exp_samples": samples}]})
        self.check(tests)

    def test_rates_under_the_names_of_the_design(self):
        rows = {
            "pool_empty_rate": (ratio(("berth_pool_empty_total", {}, 5), ("berth_dispatch_total", {}, 100)), 0.05),
            "ack_timeout_rate": (ratio(("berth_ack_timeout_total", {}, 5), ("berth_reserve_total", OK, 100)), 0.05),
            "reserve_success_rate": (ratio(("berth_reserve_total", OK, 75),
                                           ("berth_reserve_total", {"result": "FULL"}, 25)), 0.75),
            "redis_failure_rate": (ratio(("berth_store_calls_total", {"result": "down"}, 10),
                                         ("berth_store_calls_total", {"result": "ok"}, 90)), 0.1),
            "cache_hit_rate": (ratio(("berth_cache_requests_total", {"layer": "l1", "result": "hit"}, 99),
                                     ("berth_cache_requests_total", {"layer": "l1", "result": "miss"}, 1)), 0.99),
            "slot_use_ratio": ([series("berth_slots", "3x30", state="used"), series("berth_slots", "4x30", state="max")],
                               0.75),
        }
        self.check([{"interval": "1m", "name": name, "input_series": given, "promql_expr_test": [
            {"expr": f"round({name}, 0.0001)", "eval_time": "20m",
             "exp_samples": [{"labels": '{job="berth"}', "value": value}]}]} for name, (given, value) in rows.items()])

    def test_every_name_exists(self):
        """Rules, alerts and the board speak only of metrics there are, and of rates that are recorded."""
        known = set(re.findall(r'"(berth_\w+)"', (ROOT / "src/base/metrics.h").read_text() +
                               (ROOT / "src/server/api_metrics.c").read_text()))
        known |= {"berth_build_info", "up", "job", "le"}
        recorded = set(re.findall(r"record: (\w+)", (RULES / "berth-rates.yml").read_text()))
        board = (ROOT / "ops/grafana/berth.json").read_text()
        for text in ((RULES / "berth-rates.yml").read_text(), ALERTS, board):
            for name in re.findall(r"\b(berth_\w+)", text):
                self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name) if name not in known else name, known)
        used = set(re.findall(r"expr: (\w+_(?:rate|delay|p50|p99|ratio|consistency)) ", ALERTS))
        self.assertLessEqual(used, recorded)

    def test_the_board_is_whole(self):
        board = json.loads((ROOT / "ops/grafana/berth.json").read_text())
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        rules = []
        for panel in board["panels"]:
            if panel["type"] == "row":
                continue
            self.assertTrue(panel["title"] and panel["targets"], panel)
            rules += [{"record": f"x{len(rules) + i}", "expr": target["expr"].replace("$__rate_interval", "5m")}
                      for i, target in enumerate(panel["targets"])]
        path = self.folder() / "board.yml"
        path.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
        done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
