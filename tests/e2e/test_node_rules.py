"""Nodes whose reports contradict the server's configuration: over HTTP, over their socket, after a restart."""
import json

from harness import Case, Node, WsNode, berth, eventually
from test_claim import ClaimCase
from test_deploy import DeployCase

RULES = {"gpu-*": {"labels": {"zone": "eu"}, "allowed_types": ["render"], "max_concurrent_jobs": 2},
         "talk": {"nmt_pairs": [["en", "zh"]], "semantic_langs": ["en", "zh"]},
         "*": {"labels": {}, "allowed_types": [], "semantic_langs": []}}
LIES = {"labels": {"zone": "us", "secrets": "yes"}, "allowed_types": ["*"], "max_concurrent_jobs": 1000}


class RulesCase(Case):
    def ruled(self, rules=RULES, **settings):
        config = self.dir / "server.yaml"
        config.write_text(json.dumps({"nodes": rules}))
        return self.start(config=config, **settings)

    def facts(self, server, node_id):
        node = server.node(node_id)
        return node["labels"], node["allowed_types"], node["max_concurrent_jobs"]


class Word(RulesCase):
    FIXED = ({"zone": "eu"}, ["render"], 2)

    def test_over_http(self):
        server = self.ruled()
        node = Node(server, "gpu-1", **LIES)
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED)
        self.ok(node.heartbeat(labels={"zone": "us"}, allowed_types=["dev"]))
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED)
        self.ok(server.post("/v1/node/heartbeat", {"node_id": "gpu-1"}))
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED)
        self.assertEqual(server.node("gpu-1")["fixed"], ["labels", "allowed_types", "max_concurrent_jobs"])
        self.ok(node.register(name="The first", **LIES))
        self.assertEqual(server.node("gpu-1")["name"], "The first", "a node may report what no row fixes")
        self.problem(self.task(server, "dev"), 422, "NO_CAPABLE_NODE")
        self.ok(self.task(server, "render"))
        self.assertEqual(server.get("/v1/nodes?selector=secrets%3Dyes").json["nodes"], [])

    def test_over_its_socket(self):
        server = self.ruled()
        node = WsNode(server, "gpu-1", **LIES)
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED)
        self.assertTrue(node.ask("heartbeat", node_id="gpu-1", health="ready", **LIES)["ok"])
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED)
        node.close()

    def test_pools_are_fixed_together(self):
        server = self.ruled()
        Node(server, "talk", nmt_pairs="any", semantic_langs=["fr", "en"], tts_langs=["en"], capability_by_type={"asr": True, "nmt": False})
        node = server.node("talk")
        self.assertEqual((node["nmt_pairs"], node["semantic_langs"], node["tts_langs"]), ([["en", "zh"]], ["en", "zh"], []))
        self.assertEqual(node["capabilities"], {"asr": False, "nmt": True, "tts": False, "tone": False, "semantic": True})
        self.assertEqual(node["fixed"], ["semantic_langs", "nmt_pairs", "tts_langs", "capability_by_type"])

    def test_a_row_for_all_others(self):
        server = self.ruled()
        Node(server, "stranger", **LIES)
        labels, types, slots = self.facts(server, "stranger")
        self.assertEqual((labels, types, slots), ({}, [], 1000))
        self.assertEqual(server.node("stranger")["nmt_pairs"], [])

    def test_a_heartbeat_alone_still_registers_nobody(self):
        server = self.ruled()
        self.problem(server.post("/v1/node/heartbeat", {"node_id": "gpu-7"}), 404, "NOT_FOUND")

    def test_nodes_from_before_the_rule(self):
        server = self.start()
        Node(server, "gpu-1", **LIES)
        self.assertEqual(server.node("gpu-1")["fixed"], [])
        self.assertEqual(self.facts(server, "gpu-1")[0], LIES["labels"])
        server.stop()
        server = self.ruled()
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED, "the rule applies although the node has not reported since")
        self.ok(server.post("/v1/node/heartbeat", {"node_id": "gpu-1"}))
        server.stop()
        server = self.start()
        self.assertEqual(self.facts(server, "gpu-1"), self.FIXED, "the store keeps the fixed facts until the node reports again")

    def test_what_is_no_rule(self):
        config = self.dir / "bad.yaml"
        rows = [({"gpu-*": {"labels": {"zone": 5}}}, ("gpu-*", "labels")), ({"gpu-*": {"labls": {}}}, ("gpu-*", "labls", "allowed_types")),
                ({"n": {"health": "ready"}}, ('"n"', "health")), ({"n": {"nmt_pairs": [["en"]]}}, ('"n"', "nmt_pairs")),
                ({"n": {"max_concurrent_jobs": -1}}, ('"n"', "max_concurrent_jobs")), ({"n": []}, ('"n"', "object")), (["n"], ("nodes",))]
        for rules, words in rows:
            config.write_text(json.dumps({"nodes": rules}))
            done = berth("server", "--config", config, "--listen", "127.0.0.1:0", "--data-dir", self.dir / "data")
            self.assertNotEqual(done.returncode, 0, rules)
            for word in words:
                self.assertIn(word, done.stderr)


class Deployments(RulesCase, DeployCase):
    def test_a_label_that_is_not_its_own(self):
        """Selectors use the fixed labels: for claims, and for daemons with their environment."""
        server = self.ruled({"n1": {"labels": {"zone": "us"}}})
        self.put(server, "secret", type="daemon", selector="zone=eu", env={"PASSWORD": "x"})
        self.put(server, "open", type="daemon", selector="zone=us")
        self.put(server, "job", selector="zone=eu")
        Node(server, "n1", labels={"zone": "eu"})
        renewal = self.renew(server, "n1")
        self.assertEqual([row["id"] for row in renewal["deployments"]], ["open"])
        self.assertEqual(renewal["fixed_labels"], {"zone": "us"})
        self.assertNotIn("labels", renewal)
        self.assertEqual(self.claim(server, "n1", "job").status, 409)


class Agents(RulesCase, ClaimCase):
    def serve(self, **settings):
        (self.dir / "server.yaml").write_text(json.dumps({"nodes": {"a": {"labels": {"disk": "ssd"}}}}))
        return super().serve(config=self.dir / "server.yaml", **settings)

    def test_an_agent_goes_by_its_fixed_labels(self):
        server = self.serve()
        self.node(server, "a", config="labels: {disk: tape}\n")
        self.node(server, "b", config="labels: {disk: tape}\n")
        where = f"echo $BERTH_DEPLOYMENT_ID $BERTH_NODE_ID >> {self.dir}/where; exec sleep 100"
        self.deploy(server, "cache", where, type="daemon", selector="disk=ssd")
        self.deploy(server, "one", where + "0", selector="disk=ssd")
        self.deploy(server, "tape", where + "00", type="daemon", selector="disk=tape")
        eventually("the deployments run on the nodes of their fixed labels",
                   lambda: sorted(self.lines("where")) == ["cache a", "one a", "tape b"])
