"""Selectors beyond equality: one grammar for jobs, deployments and lists of nodes, and errors that point at the character."""
import json
import urllib.parse

from harness import Case, Node, berth, eventually
from test_claim import WITNESS, ClaimCase

LABELS = {"eu": {"zone": "eu", "cores": "8"}, "us": {"zone": "us", "cores": "16", "spot": "yes"}, "asia": {"zone": "asia", "cores": "many"}, "bare": {}}

# selector: which nodes match, in every place that takes a selector
ROWS = (("zone in (eu,us)", {"eu", "us"}),
        ("zone in (eu,us), !spot", {"eu"}),
        ("zone notin (eu,us)", {"asia", "bare"}),
        ("zone != eu", {"us", "asia", "bare"}),
        ("cores >= 9", {"us"}),
        ("cores < 16", {"eu"}),
        ("zone", {"eu", "us", "asia"}),
        ("!zone", {"bare"}),
        ("name != eu, zone", {"us", "asia"}),
        ("name in (eu,bare)", {"eu", "bare"}),
        ("zone == us , cores>=16", {"us"}),
        ("zone=eu,cores=8", {"eu"}))

WRONG = (("zone in (eu,us, !spot", 17, 'expected a value, not "!".'),
         ("zone=eu,", 9, "expected a key, but it ends there."),
         ("cores > many", 9, 'expected a number, not "m".'),
         ("zone eu", 6, 'expected one of = != in notin > >= < <=, "," or the end, not "e".'))


class Selectors(Case):
    def fleet(self, server, names=LABELS):
        for name in names:
            Node(server, name, allowed_types=["dev"], max_concurrent_jobs=100, labels=LABELS[name])

    def cli(self, server, *args, code=0):
        done = berth(*args, env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"})
        self.assertEqual(done.returncode, code, f"berth {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
        return done

    def test_every_place_agrees_on_who_matches(self):
        server = self.start()
        self.fleet(server)
        for selector, names in ROWS:
            with self.subTest(selector=selector):
                listed = self.ok(server.get("/v1/nodes?selector=" + urllib.parse.quote(selector)))["nodes"]
                self.assertEqual({node["node_id"] for node in listed}, names)
                self.assertEqual(set(self.cli(server, "node", "ls", "-l", selector, "-o", "name").stdout.split()), names)
                would = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "requires": selector}))["now"]
                self.assertEqual({node["node_id"] for node in would["nodes"] if node["reason"] != "REQUIRES"}, names)
                self.assertIn(self.ok(self.task(server, requires=selector))["node_id"], names)
        twice = self.cli(server, "node", "ls", "-l", "zone in (eu,us)", "-l", "!spot", "-o", "name").stdout
        self.assertEqual(twice, "eu\n", "several -l flags must all hold")
        self.problem(self.task(server, requires="cores > 16"), 422, "NO_CAPABLE_NODE")

    def test_a_job_waits_for_a_node_that_matches(self):
        server = self.start()
        self.fleet(server, ["us", "asia"])
        eu = Node(server, "eu", allowed_types=["dev"], max_concurrent_jobs=0, labels=LABELS["eu"])
        waits = {"type": "dev", "requires": "zone in (eu,us), !spot", "queue_ms": 600000}
        first = self.ok(server.post("/v1/dispatch/task", waits), 202)["job_id"]
        second = self.ok(server.post("/v1/dispatch/task", {**waits, "requires": "!spot,zone in(us , eu)"}), 202)["job_id"]
        self.assertEqual(server.node("us")["running"] + server.node("us")["reserved"], 0)
        eu.facts["max_concurrent_jobs"] = 2
        self.ok(eu.heartbeat())
        for job in (first, second):
            eventually("the job is sent to eu", lambda: server.get(f"/v1/jobs/{job}").json["node_id"] == "eu")

    def test_explain_names_the_term_that_does_not_hold(self):
        server = self.start()
        self.fleet(server)
        would = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "requires": "zone in (eu,us), !spot, cores >= 9"}))
        why = {node["node_id"]: node["detail"] for node in would["now"]["nodes"]}
        begin = "Its labels are not what the job requires: "
        self.assertEqual(why, {"eu": begin + "cores >= 9: cores is 8.", "us": begin + "!spot: spot is yes.",
                               "asia": begin + "zone in (eu,us): zone is asia.", "bare": begin + "zone in (eu,us): it has no zone."})

    def test_an_error_points_at_the_character(self):
        server = self.start()
        file = self.dir / "web.json"
        for selector, column, expected in WRONG:
            with self.subTest(selector=selector):
                file.write_text(json.dumps({"id": "web", "command": "sleep 1000", "selector": selector}))
                for field, answer, args in (
                        ("requires", self.task(server, requires=selector), ("job", "submit", "--type", "dev", "--requires", selector)),
                        ("selector", server.get("/v1/nodes?selector=" + urllib.parse.quote(selector)), ("node", "ls", "-l", selector)),
                        ("selector", server.call("PUT", "/v1/deployments/web", {"command": "x", "selector": selector}), ("deploy", "apply", file))):
                    problem = self.problem(answer, 400, "BAD_FIELD")
                    self.assertEqual((problem["field"], problem["column"]), (field, column))
                    self.assertEqual(problem["detail"], f"{field}, character {column}: {expected}")
                    said = self.cli(server, *args, code=2).stderr
                    self.assertIn(f"character {column}: {expected}", said)
                    self.assertIn(f"\n  {selector}\n  {' ' * (column - 1)}^\n", said)
        # Of a long selector only the part around the character is shown.
        said = self.cli(server, "node", "ls", "-l", ",".join(f"key{i}!=value" for i in range(60)) + ",", code=2).stderr
        shown, mark = said.splitlines()[1:3]
        self.assertTrue(shown.endswith("key59!=value,") and len(shown) < 80, said)
        self.assertEqual(mark.index("^"), len(shown), said)

    def test_equality_alone_while_older_releases_are_there(self):
        server = self.start(selectors="equality")
        self.fleet(server)
        self.assertEqual(self.ok(self.task(server, requires="zone=eu,cores=8"))["node_id"], "eu")
        problem = self.problem(self.task(server, requires="zone in (eu,us)"), 400, "BAD_FIELD")
        self.assertEqual((problem["field"], problem["column"]), ("requires", 5))
        refused = server.call("PUT", "/v1/deployments/web", {"command": "x", "selector": "zone=eu, cores=8"})
        self.assertEqual(self.problem(refused, 400, "BAD_FIELD")["column"], 9)
        self.ok(server.call("PUT", "/v1/deployments/web", {"command": "x", "selector": "zone=eu"}), 201)
        listed = self.ok(server.get("/v1/nodes?selector=%21zone"))["nodes"]
        self.assertEqual([node["node_id"] for node in listed], ["bare"],
                         "lists of nodes may use the whole grammar, because no older release reads them")

    def test_a_node_nobody_knows_matches_no_term(self):
        """The node has not registered, so it is not known either that it has no such label."""
        server = self.start()
        for name, kind, selector in (("all", "daemon", ""), ("d", "daemon", "!zone"), ("w", "deployment", "zone != eu")):
            self.ok(server.call("PUT", f"/v1/deployments/{name}", {"command": "x", "type": kind, "selector": selector}), 201)

        def renew():
            return [row["id"] for row in self.ok(server.post("/v1/deployments/renew", {"node_id": "bare"}))["deployments"]]

        claim = {"node_id": "bare", "id": "w", "observed": "", "generation": 0}
        self.assertEqual(renew(), ["all"])
        self.assertEqual(self.problem(server.post("/v1/deployments/claim", claim), 409, "CONFLICT")["reason"], "selector")
        self.fleet(server, ["bare"])
        eventually("the registered node gets the daemon", lambda: renew() == ["all", "d"])
        self.ok(server.post("/v1/deployments/claim", claim))


class Deployments(ClaimCase):
    def test_terms_decide_where_it_runs(self):
        server = self.serve()
        self.node(server, "a")
        self.node(server, "b", config="labels: {zone: eu, cores: '16'}\n")
        self.deploy(server, "few", selector="!cores")
        self.deploy(server, "many", selector="cores >= 9, zone in (eu,us)")
        self.deploy(server, "other", selector="name != a")
        where = f"echo $BERTH_NODE_ID >> {self.dir}/where; exec sleep 100"
        self.deploy(server, "everywhere", where, type="daemon", selector="zone notin (us)")
        self.deploy(server, "without", where.replace("where", "without"), type="daemon", selector="!zone")
        eventually("each deployment has a node", lambda: {name: row[0] for name, row in self.rows(server).items()} == {
            "few": "a", "many": "b", "other": "b", "everywhere": "", "without": ""})
        eventually("the daemons run on the matching nodes",
                   lambda: sorted(self.lines("where")) == ["a", "b"] and self.lines("without") == ["a"])
        self.deploy(server, "nowhere", selector="cores > 16")
        shown = berth("deploy", "show", "nowhere", env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}).stdout
        self.assertIn("No node matches cores > 16.\n  a  cores > 16: it has no cores\n  b  cores > 16: cores is 16\n", shown)
        spec = {"command": WITNESS, "env": {"W": str(self.dir)}, "stop_grace_ms": 500, "selector": "name in (b,c)"}
        self.ok(server.call("PUT", "/v1/deployments/few", spec))
        eventually("the deployment has moved to b", lambda: self.rows(server)["few"][0] == "b")
        eventually("the deployment runs on b", lambda: [start.node for start in self.living() if start.id == "few"] == ["b"])
