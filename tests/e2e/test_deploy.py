"""Deployments as the server keeps them: the table on SQLite and on PostgreSQL, claims, leases, members. test_claim.py has the agents'
part."""
import hashlib
import json
import os
import re
import subprocess
import threading

from harness import Case, Events, Node, WsNode, eventually, live, tags
from postgres import Postgres, programs
from redis import Redis

NODE = "/v1/deployments"


def kill(database):
    """Kills the postmaster with SIGKILL; its backends end when they notice that."""
    database.process.kill()
    database.process.wait()
    live.discard(database.process)


def start_again(database):
    def started():
        if database.process.poll() is not None:
            (database.dir / "data" / "postmaster.pid").unlink(missing_ok=True)
            database.process = subprocess.Popen(database.process.args, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL, cwd="/", **database.own)
            live.add(database.process)
        ready = [programs() / "pg_isready", "-h", "127.0.0.1", "-p", str(database.port)]
        return subprocess.run(ready, capture_output=True).returncode == 0
    eventually("PostgreSQL is back", started, 60)


class DeployCase(Case):
    def put(self, server, name, status=201, **spec):
        return self.ok(server.call("PUT", f"{NODE}/{name}", {"command": "sleep 1000", **spec}), status)

    def renew(self, server, node, **more):
        return self.ok(server.post(f"{NODE}/renew", {"node_id": node, **more}))

    def claim(self, server, node, name, observed="", generation=0):
        return server.post(f"{NODE}/claim", {"node_id": node, "id": name, "observed": observed, "generation": generation})

    def owners(self, server):
        rows = self.ok(server.get(f"{NODE}?limit=1000"))["deployments"]
        return {row["id"]: (row["address"], row["generation"]) for row in rows}

    def run_out(self, server, node):
        """The node says goodbye; waits until its lease has run out."""
        self.ok(server.post(f"{NODE}/renew", {"node_id": node, "goodbye": True}))

        def gone():
            leases = self.ok(server.post(f"{NODE}/view", {"node_id": "watcher"}))["leases"]
            return any(lease["address"] == node and lease["left_ms"] < 0 for lease in leases)
        eventually(f"the lease of {node} runs out", gone, 20)


class Table(DeployCase):
    def story(self, **settings):
        """What a restart must not change, on either database."""
        server = self.start(deploy_lease_ms=30000, deploy_renew_ms=3000, **settings)
        for number in range(5):
            self.put(server, f"d{number}", env={"N": str(number)})
        for node in ("n1", "n2"):
            self.renew(server, node)
        results = []
        threads = [threading.Thread(target=lambda node=node, name=f"d{i}": results.append(
            (node, self.claim(server, node, name).status))) for i in range(5) for node in ("n1", "n2")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(status == 200 for _, status in results), 5, "each was won once")
        before = self.owners(server)
        self.assertEqual({generation for _, generation in before.values()}, {1})
        self.assertEqual(server.stop(), 0)
        server = self.start(deploy_lease_ms=30000, deploy_renew_ms=3000, **settings)
        self.assertEqual(self.owners(server), before)
        must_run = {row["id"] for node in ("n1",) for row in self.renew(server, node)["deployments"]}
        self.assertEqual(must_run, {name for name, (owner, _) in before.items() if owner == "n1"})
        return server, before

    def test_a_restart_changes_no_owner(self):
        server, before = self.story()
        for name, (owner, generation) in before.items():
            self.problem(self.claim(server, "n3", name, owner, generation), 409, "CONFLICT")

    @tags("load")  # a renewal must come in time
    def test_the_same_on_postgresql_which_goes_and_comes_back(self):
        database = Postgres(self.dir)
        self.addCleanup(database.close)
        server, before = self.story(database=database.url)
        kill(database)
        eventually("calls fail without the database", lambda: server.get(f"{NODE}/d0").status == 503, 20)
        answers = [server.get(f"{NODE}/d0") for _ in range(5)]
        for answer in answers:
            self.problem(answer, 503, "SCHEDULER_DEPENDENCY_DOWN")
        self.assertLess(min(answer.seconds for answer in answers), 1, "the refusal must not wait for the database")
        self.assertEqual((server.get("/healthz").status, server.get("/readyz").json["database_up"]), (200, False))
        eventually("database.down is logged", lambda: "event=database.down" in server.log)
        start_again(database)
        eventually("calls work again", lambda: server.get(f"{NODE}/d0").status == 200, 30)
        self.assertEqual(self.owners(server), before)
        eventually("database.up is logged", lambda: "event=database.up" in server.log)

    def test_replicas_that_nobody_waits_for(self):
        """A database with an asynchronous replica: the replica that takes over may lack the last claims, so the server logs a warning."""
        database = Postgres(self.dir)
        self.addCleanup(database.close)
        alone = self.start(database=database.url)
        copy = database.dir / "copy"
        copy.mkdir()
        if database.own:
            os.chown(copy, database.own["user"], database.own["group"])
        replica = subprocess.Popen([programs() / "pg_receivewal", "-D", copy, "-h", "127.0.0.1", "-p", str(database.port), "-U", "berth"],
                                   cwd="/", stderr=subprocess.DEVNULL, **database.own)
        live.add(replica)
        self.addCleanup(lambda: (replica.kill(), replica.wait(), live.discard(replica)))
        eventually("the replica receives data", lambda: any(copy.iterdir()), 30)
        server = self.start("other", database=database.url)
        eventually("database.may_forget is logged", lambda: "event=database.may_forget" in server.log)
        self.assertNotIn("event=database.may_forget", alone.log)

    def test_no_value_of_a_caller_takes_the_database_from_the_others(self):
        database = Postgres(self.dir)
        self.addCleanup(database.close)
        server = self.start(database=database.url)
        self.put(server, "web")
        for _ in range(20):
            for path, name in ((NODE, "cursor"), (NODE, "address"), (NODE, "package_name"), (f"{NODE}/web/history", "cursor")):
                for value in ("%ff", "a%00b", "%ed%a0%80"):
                    answer = self.problem(server.get(f"{path}?{name}={value}"), 400, "BAD_FIELD")
                    self.assertEqual(answer["field"], name)
            for spec in ({"command": ["a", "\u0000"]}, {"command": "a", "args": ["\u0000"]}, {"command": "a", "env": {"A": "\u0000"}},
                         {"command": "a", "package_name": "\u0000"}, {"command": "a", "health": {"command": ["a", "\u0000"]}}):
                self.problem(server.call("PUT", f"{NODE}/web", spec), 400, "BAD_FIELD")
            for body in ({"observed": "\u0000"}, {"observed": "a\u0000b"}, {"id": "\u0000"}):
                answer = server.post(f"{NODE}/claim", {"node_id": "n1", "id": "web", "observed": "", "generation": 0, **body})
                self.assertIn(answer.status, (400, 404, 409), str(answer))
            self.renew(server, "n1")
            self.ok(server.get(f"{NODE}/web"))
        self.assertEqual(server.metrics()['berth_sql_calls_total{result="error"}'], 0)
        self.assertNotIn("database.down", server.log)

    def test_versions(self):
        server = self.start()
        self.put(server, "web")
        self.put(server, "web", 200)
        self.assertEqual(server.get(f"{NODE}/web").headers["ETag"], '"1"')
        self.problem(server.call("PUT", f"{NODE}/web", {"command": "x"}, {"If-Match": '"7"'}), 412, "PRECONDITION_FAILED")
        self.problem(server.call("PUT", f"{NODE}/web", {"command": "x"}, {"If-None-Match": "*"}), 412, "PRECONDITION_FAILED")
        self.problem(server.call("PUT", f"{NODE}/new", {"command": "x"}, {"If-Match": "*"}), 412, "PRECONDITION_FAILED")
        changed = self.ok(server.call("PUT", f"{NODE}/web", {"command": "x"}, {"If-Match": '"1"'}))
        self.assertEqual((changed["version"], changed["changed"]), (2, True))
        shown = self.ok(server.get(f"{NODE}/web"))
        again = self.ok(server.call("PUT", f"{NODE}/web", shown))  # what was read can be sent back
        self.assertEqual((again["version"], again["changed"]), (2, False))

    def test_what_a_spec_may_not_be(self):
        server = self.start()
        run = {"command": "x"}
        for spec, field in (({}, "command"), ({**run, "zebra": 1}, "zebra"), ({"command": 5}, "command"),
                            ({"command": ""}, "command"), ({"command": []}, "command"),
                            ({"command": [""], "package_name": "p"}, "command"), ({"command": "x\u0000y"}, "command"),
                            ({**run, "env": {"A": None}}, "env"), ({**run, "env": {"A=B": "1"}}, "env"),
                            ({**run, "selector": "a=b,"}, "selector"), ({**run, "type": "cron"}, "type"),
                            ({**run, "limits": {"memory_mb": 0}}, "limits.memory_mb"),
                            ({**run, "args": "y"}, "args"), ({**run, "id": "other"}, "id"),
                            ({**run, "restart": {"policy": "sometimes"}}, "restart.policy"),
                            ({**run, "restart": {"min_ms": 2, "max_ms": 1}}, "restart.max_ms"),
                            ({**run, "health": {"failures": 2}}, "health"),
                            ({**run, "health": {"http": "ftp://x"}}, "health.http"),
                            ({**run, "health": {"http": "http://10.0.0.1/healthz"}}, "health.http")):
            answer = self.problem(server.call("PUT", f"{NODE}/web", spec), 400, "BAD_FIELD")
            self.assertEqual(answer["field"], field, spec)
        for field, value, bounds in (("interval_ms", 50, "from 100 to 86400000 ms"), ("timeout_ms", 20, "from 50 to 86400000 ms"),
                                     ("failures", 5000, "from 1 to 1000")):
            answer = self.problem(server.call("PUT", f"{NODE}/web", {**run, "health": {"command": "y", field: value}}), 400, "BAD_FIELD")
            self.assertEqual(answer["field"], f"health.{field}")
            self.assertIn(bounds, answer["detail"])
        self.problem(server.call("PUT", f"{NODE}/.hidden", {"command": "x"}), 400, "BAD_FIELD")
        self.problem(server.call("PATCH", f"{NODE}/web", {"command": "x"}), 400, "BAD_FIELD")
        self.assertEqual(self.ok(server.get(NODE))["deployments"], [])
        for command in ("", [], [""], ["a", 1]):
            self.problem(self.task(server, command=command), 400, "BAD_FIELD")

    def forms(self, **settings):
        """A spec is shown as it was sent, and what is shown can be sent back unchanged."""
        server = self.start(**settings)
        status = 201
        for spec, command, args in (({"command": "a b"}, "a b", []), ({"command": ["/path with space/app"]}, ["/path with space/app"], []),
                                    ({"command": ["a", "b"]}, "a", ["b"]), ({"command": ["a"], "args": [1]}, "a", ["1"]),
                                    ({"package_name": "p", "args": ["c"]}, "", ["c"])):
            shown = self.ok(server.call("PUT", f"{NODE}/web", {**spec, "env": {"my.setting": "1", "MY-VAR": 2, "T": True},
                                                               "restart": {"policy": "never"}, "stop_grace_ms": "2s"}), status)
            status = 200
            self.assertEqual((shown["command"], shown["args"]), (command, args))
            self.assertEqual(shown["env"], {"my.setting": "1", "MY-VAR": "2", "T": "true"})
            self.assertEqual((shown["restart"], shown["stop_grace_ms"]), ({"policy": "never"}, 2000))
            self.assertFalse(self.ok(server.call("PUT", f"{NODE}/web", self.ok(server.get(f"{NODE}/web"))))["changed"])
        self.renew(server, "n1")
        self.ok(self.claim(server, "n1", "web"))
        self.assertNotIn("exec", self.renew(server, "n1")["deployments"][0]["spec"])

    def test_the_forms_of_a_spec(self):
        self.forms()

    def test_the_forms_of_a_spec_on_postgresql(self):
        database = Postgres(self.dir)
        self.addCleanup(database.close)
        self.forms(database=database.url)

    def test_a_shared_store_needs_a_shared_database(self):
        redis = Redis(self.dir / "redis")
        server = self.start(store=redis.url)
        self.problem(server.get(NODE), 503, "DEPLOYMENTS_NEED_SHARED_DATABASE")
        self.problem(server.call("PUT", f"{NODE}/web", {"command": "x"}), 503, "DEPLOYMENTS_NEED_SHARED_DATABASE")
        Node(server, "n1")
        self.ok(server.post("/v1/nodes/n1/drain", {}))
        self.problem(server.post("/v1/nodes/n1/drain", {"deadline_ms": "1m"}), 503, "DEPLOYMENTS_NEED_SHARED_DATABASE")


class Leases(DeployCase):
    def test_taken_over_only_when_the_lease_ran_out(self):
        server = self.start(deploy_lease_ms=6000, deploy_renew_ms=1000)
        self.put(server, "web")
        self.assertEqual(self.problem(self.claim(server, "n1", "web"), 409, "CONFLICT")["reason"], "no_lease")
        self.assertTrue(self.renew(server, "n1")["lapsed"])
        self.assertFalse(self.renew(server, "n1")["lapsed"])
        self.ok(self.claim(server, "n1", "web"))
        self.renew(server, "n2")
        refused = self.problem(self.claim(server, "n2", "web", "n1", 1), 409, "CONFLICT")
        self.assertEqual((refused["reason"], refused["address"], refused["generation"]), ("lease_alive", "n1", 1))
        self.run_out(server, "n1")
        self.renew(server, "n2")
        self.assertEqual(self.ok(self.claim(server, "n2", "web", "n1", 1))["generation"], 2)
        stale = self.ok(server.post(f"{NODE}/status", {"node_id": "n1", "copies": [
            {"id": "web", "generation": 1, "state": "running"}]}))["stale"]
        self.assertEqual(stale, ["web"], "the old copy must stop")
        self.assertEqual(self.renew(server, "n1")["deployments"], [])
        self.assertEqual([row["what"] for row in self.ok(server.get(f"{NODE}/web/history"))["history"]],
                         ["taken over", "claimed", "created"])
        self.assertGreaterEqual(server.metrics()['berth_claims_total{result="lease_alive"}'], 1)

    def test_the_seeds_rules(self):
        server = self.start(claim_mode="seed")
        self.put(server, "web")
        self.put(server, "off")
        self.ok(server.call("PATCH", f"{NODE}/off", {"enabled": False}))
        self.assertEqual(self.renew(server, "n1")["mode"], "seed")
        self.ok(self.claim(server, "n1", "web"))
        lost = {"node_id": "n2", "address": "n1"}
        self.assertEqual(self.ok(server.post(f"{NODE}/lost", lost))["released"], 1)  # at once, whatever its lease
        self.assertEqual(self.ok(server.post(f"{NODE}/lost", lost))["released"], 0)
        self.ok(self.claim(server, "n2", "web", "", 2))  # without a lease
        self.assertEqual(self.owners(server)["web"], ("n2", 3))
        hardened = self.start(data_dir="other")
        self.problem(hardened.post(f"{NODE}/lost", lost), 409, "CONFLICT")

    def test_a_drained_node_claims_nothing_and_is_told(self):
        server = self.start()
        Node(server, "n1")
        self.put(server, "web")
        self.renew(server, "n1")
        self.ok(server.post("/v1/nodes/n1/drain", {"reason": "new kernel", "deadline_ms": "10m"}))
        answer = self.renew(server, "n1")
        self.assertEqual(answer["admin"], "draining")
        self.assertAlmostEqual(answer["drain_deadline_ms"] - answer["now_ms"], 600000, delta=60000)
        self.assertEqual(self.problem(self.claim(server, "n1", "web"), 409, "CONFLICT")["reason"], "draining")
        self.assertEqual(server.node("n1")["admin_reason"], "new kernel")
        server.stop()
        server = self.start()
        self.assertEqual((server.node("n1")["admin"], server.node("n1")["admin_reason"]), ("draining", "new kernel"))
        self.ok(server.post("/v1/nodes/n1/undrain", {}))
        self.ok(self.claim(server, "n1", "web"))

    def test_a_node_speaks_for_itself_only(self):
        server, who = self.guarded(n1=("node", "n1"), ops=("operate", None), look=("read", None))
        self.ok(server.call("PUT", f"{NODE}/web", {"command": "x"}, who["ops"]), 201)
        self.problem(server.call("PUT", f"{NODE}/web", {"command": "y"}, who["n1"]), 403, "FORBIDDEN")
        self.problem(server.call("DELETE", f"{NODE}/web", None, who["look"]), 403, "FORBIDDEN")
        self.ok(server.call("GET", f"{NODE}/web", None, who["look"]))
        self.ok(server.call("POST", f"{NODE}/renew", {"node_id": "n1"}, who["n1"]))
        for path in ("renew", "claim", "view", "yield", "status"):
            body = {"node_id": "n2", "id": "web", "generation": 0, "copies": []}
            self.problem(server.call("POST", f"{NODE}/{path}", body, who["n1"]), 403, "FORBIDDEN")
            self.problem(server.call("POST", f"{NODE}/{path}", body, who["ops"]), 403, "FORBIDDEN")
        self.problem(server.call("POST", "/v1/terminals/n2", {"tags": {}}, who["n1"]), 403, "FORBIDDEN")
        self.assertEqual(server.stop(), 0)

    def guarded(self, **tokens):
        """A server with these tokens, name=(scope, node), and the header of each token by its name."""
        config = self.dir / "tokens.yaml"
        config.write_text("tokens:\n" + "".join(
            f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, scopes: [{scope}]"
            + (f", node_id: {node}" if node else "") + "}\n" for name, (scope, node) in tokens.items()))
        return self.start(config=str(config)), {name: {"Authorization": f"Bearer {name}"} for name in tokens}

    def test_a_node_gets_only_what_its_labels_match(self):
        """Specs contain passwords, so a node gets only the specs of what it may run."""
        server, who = self.guarded(n1=("node", "n1"), ops=("operate", None))
        for name, kind, selector in (("d-eu", "daemon", "zone=eu"), ("d-us", "daemon", "zone=us"), ("d-all", "daemon", ""),
                                     ("w-eu", "deployment", "zone=eu"), ("w-us", "deployment", "zone=us")):
            self.ok(server.call("PUT", f"{NODE}/{name}", {"command": "x", "type": kind, "selector": selector, "env": {"PASS": f"of-{name}"}}, who["ops"]), 201)

        def renew():
            answer = server.post(f"{NODE}/renew", {"node_id": "n1"}, who["n1"])
            return self.ok(answer)["labels"], [row["id"] for row in answer.json["deployments"]], answer.body.decode()

        self.assertEqual(renew()[:2], ({}, ["d-all"]), "the node has not registered any labels")
        facts = {"node_id": "n1", "max_concurrent_jobs": 1, "allowed_types": ["dev"], "labels": {"zone": "us"}}
        self.ok(server.post("/v1/node/register", facts, who["n1"]))
        eventually("the node's labels are known", lambda: renew()[0] == {"zone": "us"})
        _, ids, text = renew()
        self.assertEqual(ids, ["d-all", "d-us"])
        self.assertNotIn("of-d-eu", text)
        claim = lambda name: server.post(f"{NODE}/claim", {"node_id": "n1", "id": name, "observed": "", "generation": 0}, who["n1"])
        refused = claim("w-eu")
        self.assertEqual(self.problem(refused, 409, "CONFLICT")["reason"], "selector")
        self.assertNotIn(b"of-w-eu", refused.body)
        self.assertEqual(self.ok(claim("w-us"))["spec"]["env"], {"PASS": "of-w-us"})
        self.assertEqual(server.stop(), 0)

    def test_who_only_reads_sees_no_values_of_the_environment(self):
        server, who = self.guarded(ops=("operate", None), look=("read", None))
        self.ok(server.call("PUT", f"{NODE}/web", {"command": "x", "env": {"PASS": "hush-hush", "MODE": "prod"}}, who["ops"]), 201)
        for path in (f"{NODE}/web", NODE):
            self.assertIn(b"hush-hush", server.call("GET", path, None, who["ops"]).body)
            answer = server.call("GET", path, None, who["look"])
            self.assertNotIn(b"hush-hush", answer.body)
            row = self.ok(answer) if path != NODE else self.ok(answer)["deployments"][0]
            self.assertEqual(row["env"], {"PASS": None, "MODE": None})
        self.problem(server.call("PUT", f"{NODE}/web", {"command": "x", "env": row["env"]}, who["ops"]), 400, "BAD_FIELD")
        self.assertEqual(server.stop(), 0)

    def test_over_the_socket(self):
        server = self.start()
        node = WsNode(server, "n1")
        reply = node.ask("call", path=f"{NODE}/renew")
        self.assertTrue(reply["ok"] and reply["body"]["lapsed"])
        self.put(server, "web")
        node.expect("deployments_changed")
        rows = node.ask("call", path=f"{NODE}/view", body={})["body"]["rows"]
        claimed = node.ask("call", path=f"{NODE}/claim", body={"id": "web", "observed": "", "generation": rows[0]["generation"]})
        self.assertEqual(claimed["body"]["spec"]["command"], "sleep 1000")
        refused = node.ask("call", path=f"{NODE}/claim", body={"id": "web", "observed": "n9", "generation": 7})
        self.assertEqual((refused["status"], refused["reason"]), (409, "claim_conflict"))
        for path in (f"{NODE}/release", "/v1/nodes", "/nothing", None):
            self.assertEqual(node.ask("call", path=path)["status"], 404, path)
        self.assertEqual(node.ask("call", path=f"{NODE}/view", body=[])["error"], "BAD_FIELD")
        self.assertEqual(self.owners(server)["web"], ("n1", 1))


class Members(DeployCase):
    def test_line_ends_of_one_node_break_no_event(self):
        """Line breaks in the JSON that a node sends about itself must not split events: every event is one line."""
        server = self.start()
        stream = Events(server, "/v1/terminals/events")
        eventually("the list of terminals arrives", lambda: stream.seen)
        hello = {"msg": "hello", "protocol": 1, "node_id": "n1", "labels": {"a": "b"}, "tags": {"c": "d"},
                 "usage": {"cpu_pct": 1}}
        spread = WsNode(server, "n1", hello=False)
        spread.socket.send(json.dumps(hello, indent=2).replace("\n", "\r\n\n"))
        spread.expect("welcome")
        other = WsNode(server, "n2")
        eventually("both JOIN events arrive", lambda: len(stream.seen) == 3)
        self.assertEqual([event["change"] for _, event in stream.seen[1:]], ["JOIN", "JOIN"])
        late = Events(server, "/v1/terminals/events")
        eventually("a later stream gets the list", lambda: late.seen)
        self.assertEqual({"n1", "n2"} - set(re.findall(r"n\d", str(late.seen[0][1]["terminals"]))), set())
        for one in (stream, late, spread, other):
            one.close()

    def test_join_update_leave(self):
        server = self.start()
        stream = Events(server, "/v1/terminals/events")
        eventually("the list of terminals arrives", lambda: stream.seen)
        kind, first = stream.seen[0]
        self.assertEqual((kind, first["type"], first["terminals"]), ("HostEvent", "TERMINAL_LIST", []))
        tags = {"node_unit": "true", "node_unit_address": "n1"}
        node = WsNode(server, "n1", tags=tags, labels={"zone": "us"})
        eventually("the JOIN event arrives", lambda: len(stream.seen) == 2)
        join = stream.seen[1][1]
        self.assertEqual((join["type"], join["change"], join["seq"]), ("TERMINAL_CHANGE", "JOIN", first["seq"] + 1))
        self.assertEqual(join["payload"]["new"]["tags"], tags)
        self.assertNotIn("old", join["payload"])
        self.ok(server.post("/v1/terminals/n1", {"tags": {"rack": "7"}}))
        eventually("the UPDATE event arrives", lambda: len(stream.seen) == 3)
        update = stream.seen[2][1]
        self.assertEqual((update["change"], update["seq"]), ("UPDATE", first["seq"] + 2))
        self.assertEqual(update["payload"]["new"]["tags"], {**tags, "rack": "7"})
        self.assertEqual(update["payload"]["old"]["tags"], tags)
        node.send("UpdateTerminalInfo", tags={"rack": None, "row": "2"})
        eventually("the UPDATE event of a change over the socket arrives", lambda: len(stream.seen) == 4)
        self.assertEqual(stream.seen[3][1]["payload"]["new"]["tags"], {**tags, "row": "2"})
        node.close()
        eventually("the LEAVE event arrives", lambda: len(stream.seen) == 5)
        leave = stream.seen[4][1]
        self.assertEqual((leave["change"], list(leave["payload"])), ("LEAVE", ["old"]))
        self.assertEqual(self.ok(server.get("/v1/terminals"))["terminals"], [])
        stream.close()
        self.problem(server.post("/v1/terminals/n1", {"tags": {}}), 404, "NOT_FOUND")

    def test_sync_tells_what_changed_or_everything(self):
        server = self.start()
        nodes = [WsNode(server, f"n{i}") for i in range(3)]

        def sync(**seen):
            return self.ok(server.post("/v1/terminals/sync", {"node_id": "n0", **seen}))

        eventually("all three nodes are members", lambda: len(sync()["terminals"]) == 3)
        full = sync()
        self.assertTrue(full["full"])
        same = sync(source=full["source"], seq=full["seq"])
        self.assertEqual((same["full"], same["changes"]), (False, []))
        nodes[2].close()
        eventually("the change is in the answer", lambda: sync(source=full["source"], seq=full["seq"])["changes"])
        changes = sync(source=full["source"], seq=full["seq"])["changes"]
        self.assertEqual([(c["change"], c["payload"]["old"]["terminal_id"]) for c in changes], [("LEAVE", "n2")])
        for seen in ({"source": "another", "seq": full["seq"]}, {"source": full["source"], "seq": full["seq"] + 99},
                     {"source": full["source"]}, {"seq": full["seq"]}):
            self.assertTrue(sync(**seen)["full"], seen)
        eventually("a node is notified that terminals changed", lambda: nodes[0].expect("terminals_changed"))

    def test_the_list_is_the_union_over_instances(self):
        redis = Redis(self.dir / "redis")
        servers = [self.start(data_dir=f"data{i}", store=redis.url) for i in range(2)]
        nodes = [WsNode(server, f"on{i}") for i, server in enumerate(servers)]
        for server in servers:
            eventually("each instance lists both nodes",
                       lambda: [t["terminal_id"] for t in self.ok(server.get("/v1/terminals"))["terminals"]]
                       == ["on0", "on1"], 20)
        nodes[0].close()

    def test_calls_of_a_socket_are_bounded(self):
        """Each waiting call costs memory and asks other nodes: a node may have 64 under way, and further calls are refused."""
        server = self.start()
        mute = WsNode(server, "mute")
        node = WsNode(server, "greedy")
        eventually("both nodes are members", lambda: len(self.ok(server.get("/v1/terminals"))["terminals"]) == 2)
        for number in range(1, 201):
            node.send("call", id=number, path="/v1/terminals/usage", body={"addresses": ["mute"], "timeout_ms": 5000})
        refused = [node.expect("reply")["error"] for _ in range(200 - 64)]
        self.assertEqual(set(refused), {"SCHEDULER_BUSY"})
        answers = [node.expect("reply", seconds=30)["body"]["usage"] for _ in range(64)]
        self.assertEqual(answers, [{"mute": None}] * 64)
        self.assertTrue(node.ask("call", path="/v1/deployments/renew")["ok"], "the socket goes on working")
        mute.close()

    def test_usage_of_many_is_bounded(self):
        server = self.start(loops=1)
        mute = WsNode(server, "mute")
        node = WsNode(server, "greedy")
        names = ["mute", *(f"nobody-{number}" for number in range(4095))]
        eventually("both nodes are members", lambda: len(self.ok(server.get("/v1/terminals"))["terminals"]) == 2)
        for _ in range(10):  # sixteen may be under way for five seconds each; a busy machine may take that long to read twenty
            for number in range(1, 21):
                node.send("call", id=number, path="/v1/terminals/usage", body={"addresses": names, "timeout_ms": 5000})
            replies = [node.expect("reply", seconds=30) for _ in range(20)]
            refused = [reply["error"] for reply in replies if not reply.get("ok")]
            if refused:
                break
        self.assertEqual(set(refused), {"SCHEDULER_BUSY"})
        self.assertLessEqual(len(refused), 4)
        self.assertTrue(node.ask("call", path="/v1/terminals/usage", body={"addresses": names[1:]})["ok"], "there is room again")
        mute.close()

    def test_usage_of_many_with_one_that_hangs(self):
        server = self.start()
        nodes = {name: WsNode(server, name) for name in ("fast", "slow")}

        def answer():
            asked = nodes["fast"].expect("rpc", method="NodeUnit/InspectResourceUsage")
            nodes["fast"].send("rpc_reply", re=asked["id"], result={"cpu_percent": 1.5, "memory_mb": 80})

        thread = threading.Thread(target=answer)
        thread.start()
        reply = server.post("/v1/terminals/usage", {"node_id": "fast", "addresses": ["fast", "slow", "nobody", "fast"],
                                                    "timeout_ms": 5000})
        thread.join()
        self.assertEqual(self.ok(reply)["usage"], {"fast": {"cpu_percent": 1.5, "memory_mb": 80}, "slow": None, "nobody": None})
        self.assertLess(reply.seconds, 25)
