"""Checks metrics, rules and the dashboard with promtool: on the series below the shipped alerts fire after the documented waiting time.
test_alerts.py causes the faults themselves."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import ROOT, Case, Node, eventually
from prometheus import ALERTS, HERE, NAMES, RULES


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
        text = eventually("the metrics have the breaker", lambda: self.has(server, "berth_breaker_state{"))
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
        values = eventually("all nodes are counted", lambda: self.counted(server))
        listed = [name for name in values if name.startswith("berth_node_slots{")]
        self.assertEqual(len(listed), 3 * 3)
        self.assertEqual(values["berth_nodes_unlisted"], 9)
        self.assertEqual(values['berth_slots{state="max"}'], 24, "the sums include unlisted nodes")

    def test_what_nodes_have_and_keys_use(self):
        server = self.start(metrics_nodes_max=1)
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=9,
                    resources={"cpu": 8, "seats": 3, "gpus": [{"id": 2, "model": "L4", "vram_mb": 24000}]})
        Node(server, "n2", allowed_types=["talk"], resources={"cpu": 8})
        self.ok(server.call("PUT", "/v1/limits/account:*", {"concurrency": 1}))
        job = self.ok(self.task(server, needs={"cpu": 1.5, "vram_mb": 7000}, keys=["account:1", "free:1"]))
        self.ok(node.ack(job))
        self.ok(self.task(server, keys=["account:1"], queue_ms=600000), 202)
        wanted = {'berth_node_resource{node_id="n1",resource="cpu",state="%s"}': {"capacity": 8, "usable": 8, "promised": 1.5, "free": 6.5},
                  'berth_node_gpu_vram_mb{node_id="n1",gpu="2",state="%s"}': {"capacity": 24000, "promised": 7000, "free": 17000},
                  'berth_limit{key="account:1",state="%s"}': {"in_flight": 1, "limit": 1, "waiting": 1}}
        wanted = {name % state: value for name, states in wanted.items() for state, value in states.items()}
        values = eventually("the metrics have all values",
                            lambda: [values for values in [server.metrics()] if wanted.items() <= values.items()])[0]
        self.assertFalse([name for name in values if 'key="free:1"' in name or ("_resource{" in name and '"n2"' in name)])

    def counted(self, server):
        values = server.metrics()
        return values if values.get('berth_slots{state="free"}') == 24 else None


def series(name, values, **labels):
    given = {"job": "berth", "instance": "a:7420", **labels}
    text = ",".join(f'{key}="{value}"' for key, value in given.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def ratio(part, whole):
    """Two counters, of one metric or of two, that grow by these steps each minute."""
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
    "BerthInstancesApart": ([series("berth_instance_version", "0+1x40"),
                             series("berth_instance_version", "0+1x20 20x20", instance="b:7420")],
                            [series("berth_instance_version", "0+900x23 0+5x10"),  # many changes; then the store was emptied
                             series("berth_instance_version", "0+899x23 0+5x10", instance="b:7420")]),
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
        """Runs promtool on the shipped files."""
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
        self.assertEqual(NAMES, set(ROWS))
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
            "redis_failure_rate": (ratio(("berth_store_calls_total", {"result": "unknown"}, 10),
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
        """Rules, alerts and the dashboard use only metrics that exist, and rates that are recorded."""
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
