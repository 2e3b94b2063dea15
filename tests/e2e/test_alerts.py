"""Every shipped alert fires when its cause really happens: a real Prometheus scrapes, and the case causes the fault. promtool checks that
alerts wait for minutes first (test_prometheus.py)."""
import functools
import re
import signal
import unittest

import postgres
from fences import tables
from harness import ROOT, Clock, Node, eventually, freeze, tags
from prometheus import ALERTS, HERE, NAMES, Prometheus
from redis import Redis
from relay import SlowRelay
from test_agent import AgentCase


def provokes(*alerts):
    """Marks a case that must make exactly these alerts fire, each for its own reason."""
    def mark(case):
        @functools.wraps(case)
        def run(self):
            case(self)
            self.assertEqual(self.fired, set(alerts), "the alerts that fired are those the case is marked with")

        run.provokes = set(alerts)
        return tags("load")(run)

    return mark


@unittest.skipUnless(HERE, "there is no prometheus")
class AlertCase(AgentCase):
    def watch(self, *servers):
        """A Prometheus that scrapes the servers. Nothing has happened yet, so no alert fires."""
        self.fired = set()
        self.prometheus = Prometheus(self, *servers)
        self.quiet()

    def quiet(self):
        """BerthNoSlots may fire if the machine stood still for a moment."""
        eventually("no alert fires before anything has happened", lambda: self.prometheus.firing() <= {"BerthNoSlots"})

    def scraped(self):
        eventually("no scrape has failed", lambda: not self.prometheus.errors())

    def fires(self, alert, again=lambda: None):
        """Waits until the alert fires; `again` is called meanwhile to keep provoking it."""
        def there():
            again()
            return alert in self.prometheus.firing()

        eventually(f"{alert} fires", there, 60)
        self.fired.add(alert)

    def passes(self, alert):
        eventually(f"{alert} no longer fires", lambda: alert not in self.prometheus.firing(), 60)


class OneServer(AlertCase):
    @provokes("BerthPoolEmpty", "BerthAckTimeouts", "BerthOverloadRejects", "BerthEmergencyKill", "BerthBreakerOpen",
              "BerthReloadRefused", "BerthNodeCritical", "BerthNoSlots", "BerthReserveSuccessLow", "BerthDown")
    def test_nodes_and_settings(self):
        config = self.dir / "berth.yaml"
        config.write_text("reservation_ttl_ms: 100\nmax_attempts: 1\n")
        server = self.start(args=["--config", str(config)])
        self.watch(server)
        node = Node(server, "n1", allowed_types=["dev", "talk"], max_concurrent_jobs=4)
        self.passes("BerthNoSlots")
        self.fires("BerthPoolEmpty", lambda: self.dispatch(server, src="xx"))
        self.fires("BerthAckTimeouts", lambda: node.heartbeat() and self.dispatch(server))
        self.fires("BerthOverloadRejects", lambda: self.refuse(node, self.dispatch(server)))
        self.fires("BerthEmergencyKill", lambda: self.end(node, self.task(server, type="talk"), "EMERGENCY"))
        self.fires("BerthBreakerOpen", lambda: self.end(node, self.task(server), "BROKEN"))
        config.write_text("reservation_ttl: 100\n")
        server.process.send_signal(signal.SIGHUP)
        self.fires("BerthReloadRefused")
        self.fires("BerthNodeCritical", lambda: node.heartbeat(level="critical"))
        node.heartbeat(level="normal")
        node.register(max_concurrent_jobs=0, allowed_types=["dev"])
        self.fires("BerthNoSlots")
        self.fires("BerthReserveSuccessLow", lambda: [self.dispatch(server) for _ in range(20)])
        self.scraped()
        self.assertIsNotNone(self.prometheus.value("sum(scrape_samples_scraped) > 50"))
        freeze(server.process)
        self.fires("BerthDown")
        server.process.send_signal(signal.SIGCONT)

    def refuse(self, node, answer):
        node.heartbeat()
        if answer.status == 200:
            node.fail(answer.json, reason="NODE_OVERLOADED")

    def end(self, node, answer, reason):
        node.heartbeat()
        if answer.status == 200:
            node.ack(answer.json)
            node.fail(answer.json, reason=reason)

    @provokes("BerthLeasesLost", "BerthNodesOffline", "BerthNodeLeasesLapsed")
    def test_nodes_that_are_gone_or_stood_still(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000, view_drop_ms=3000, lost_grace_ms=1000,
                            f2f_lease_ms=2000, deploy_lease_ms=3000, deploy_renew_ms=500)
        frozen = self.agent(server, "frozen")
        self.watch(server)
        quiet = Node(server, "quiet")
        self.ok(quiet.ack(self.placed(server)))  # and it sends nothing more
        freeze(frozen.process)
        self.fires("BerthLeasesLost")
        self.fires("BerthNodesOffline")
        eventually("the frozen node is offline", lambda: server.node("frozen")["health"] == "offline", 60)
        frozen.process.send_signal(signal.SIGCONT)
        self.fires("BerthNodeLeasesLapsed")

    @provokes("BerthQueueOld")
    def test_a_job_that_waits_and_waits(self):
        """The job was queued ten minutes ago by a server whose clock was ten minutes behind, and which then died."""
        server = self.start(env=Clock(self.dir, -600).env)
        Node(server, "full", allowed_types=["dev"], max_concurrent_jobs=0)
        job = self.ok(self.task(server, queue_ms=3600000), 202)
        server.kill()
        server = self.start()
        self.assertEqual(server.job(job["job_id"])["state"], "NEW")
        self.fired = set()
        self.prometheus = Prometheus(self, server)
        self.fires("BerthQueueOld")
        self.ok(server.post(f"/v1/jobs/{job['job_id']}/cancel"))
        self.passes("BerthQueueOld")

    @unittest.skipUnless(postgres.programs(), "no PostgreSQL here")
    @provokes("BerthDatabaseDown")
    def test_a_database_that_is_shut_down(self):
        """No node asks for deployments: the server notices by itself that the database is down."""
        database = postgres.Postgres(self.dir)
        server = self.start(database=database.url)
        self.watch(server)
        self.ok(server.get("/v1/deployments"))
        database.close()
        self.fires("BerthDatabaseDown")
        before = server.metrics()['berth_sql_calls_total{result="error"}']
        eventually("the server goes on trying the database",
                   lambda: server.metrics()['berth_sql_calls_total{result="error"}'] > before)


class TwoInstances(AlertCase):
    """One instance is connected to Redis through a relay that can cut or delay."""

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.wire = SlowRelay(self.redis.port)
        self.addCleanup(self.wire.close)
        self.near = self.start("near", store=self.redis.url)
        self.far = self.start("far", store=f"redis://127.0.0.1:{self.wire.port}/0", store_call_ms=80)
        Node(self.near, "n1", max_concurrent_jobs=1000)
        eventually("both instances know the node", lambda: self.far.get("/v1/nodes/n1").status == 200)
        self.watch(self.near, self.far)

    @provokes("BerthStoreDown", "BerthCacheHitsLow", "BerthInstancesApart", "BerthConsistencyDelay")
    def test_a_wire_that_is_cut(self):
        eventually("the instances agree", lambda: self.prometheus.value("multi_instance_consistency") == 0)
        self.wire.cut()
        Node(self.near, "n2")  # the other instance cannot learn of it
        self.fires("BerthStoreDown", lambda: self.dispatch(self.far))
        self.fires("BerthCacheHitsLow", lambda: self.dispatch(self.far))
        eventually("failed calls of Redis are counted", lambda: (self.prometheus.value("redis_failure_rate") or 0) > 0)
        self.fires("BerthInstancesApart")
        self.scraped()  # which needs no store
        self.wire.heal()
        eventually("the far instance knows n2", lambda: self.far.get("/v1/nodes/n2").status == 200)
        self.fires("BerthConsistencyDelay")
        for alert in ("BerthStoreDown", "BerthInstancesApart"):
            self.passes(alert)

    @provokes("BerthDispatchSlow", "BerthInvariantViolated")
    def test_a_wire_that_is_slow_and_a_store_that_others_write_to(self):
        self.wire.pause_s = 0.03
        self.fires("BerthDispatchSlow", lambda: self.dispatch(self.far))
        self.wire.pause_s = 0
        for key in self.redis.say("KEYS", "sched:{f}:j:*").splitlines():
            self.redis.say("DEL", key)  # jobs that have slots
        self.fires("BerthInvariantViolated")
        for server in (self.near, self.far):
            self.assertEqual(server.stop(), 0)  # before tearDown asks for broken invariants
        self.assertIn("event=store.repaired rule=slots_equal_leases", self.near.log + self.far.log)


class Coverage(unittest.TestCase):
    def test_every_alert_is_provoked(self):
        cases = [case for group in (OneServer, TwoInstances) for case in vars(group).values()
                 if hasattr(case, "provokes")]
        provoked = set().union(*(case.provokes for case in cases))
        self.assertEqual(provoked, NAMES)

    def test_every_alert_is_in_the_docs(self):
        rules = dict(re.findall(r"alert: (\w+)$.*?severity: (\w+)", ALERTS, re.S | re.M))
        rows = next(rows for head, rows in tables(ROOT / "docs" / "monitoring.md") if head.startswith("| alert |"))
        documented = {name: severity for names, severity, _ in rows for name in re.findall(r"Berth\w+", names)}
        self.assertEqual(documented, rules)
