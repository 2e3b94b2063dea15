"""The messages of PROTOCOL.md are sent exactly as printed, over HTTP and by a node on a WebSocket, and the answers are compared with the
printed ones: the same fields and no others, and the same texts. Numbers need only be numbers, because times and counters differ. `...`
matches anything."""
import json
import re
import threading

from fences import fences, messages, outside, spans, tables
from harness import ROOT, SLOW, Events, Listener, Node, WsNode, eventually
from test_agent import AgentCase
from test_deploy import NODE, DeployCase
from wsclient import WebSocket

PAGE = ROOT / "PROTOCOL.md"
SAME = {"generation", "status", "re", "id", "restarts", "protocol"}  # numbers that must be equal to the printed ones
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def differs(shown, real, at="$"):
    """The differences between the printed and the real message."""
    if shown == "...":
        return []
    if isinstance(shown, dict) and isinstance(real, dict):
        found = [f"{at}.{name} is not there" for name in shown if name != "..." and name not in real]
        found += [f"{at}.{name} is not shown" for name in real if "..." not in shown and name not in shown]
        for name in shown.keys() & real.keys():
            found += differs(shown[name], real[name], f"{at}.{name}")
        return found
    if isinstance(shown, list) and isinstance(real, list):
        if not shown or not real:
            return [] if shown == real or shown == ["..."] else [f"{at}: {real}"]
        return [one for number, item in enumerate(real) for one in differs(shown[0], item, f"{at}[{number}]")]
    if type(shown) in (int, float) and type(real) in (int, float):
        wrong = (shown < 0) != (real < 0) or (at.rsplit(".", 1)[-1] in SAME and shown != real)
        return [f"{at} is {real}"] if wrong else []
    if isinstance(shown, str) and isinstance(real, str) and TIME.fullmatch(shown):
        return [] if TIME.fullmatch(real) else [f"{at} is {real}"]
    return [] if shown == real and type(shown) is type(real) else [f"{at} is {real!r}"]


def name_of(fence):
    """The name of a block: the bold word before it, the type of its first message, or the event."""
    if "->" in fence.text:
        return re.findall(r"^\*\*(\w+)\*\*", fence.page.read_text().split(fence.text)[0], re.M)[-1]
    if fence.text.startswith("event:"):
        return fence.text.split()[1]
    return messages(fence.text)[0]["msg"]


BLOCKS = {name_of(fence): fence for fence in fences(PAGE) if fence.kind == "text messages"}
# JSON in the running text, and the case below that checks it.
INLINE = {'{"ok":true}': "test_small_answers", '{"jobs":[…]}': "test_small_answers", '{"jobs":[…],': "test_small_answers", '{"results":[': "test_small_answers",
          '{"job_id","node_id","attempt_id"}': "test_small_answers",
          '{"node_id":"n1","id":"web"': "test_claim", "GET /v1/terminals": "test_members", 'POST /v1/terminals/{id} {"tags"': "test_members",
          '{"source":"...","seq"': "test_members", '{"msg":"UpdateTerminalInfo"': "test_members", 'POST /v1/terminals/sync {': "test_members",
          '{"source","seq","full"': "test_members", 'POST /v1/terminals/usage {': "test_usage", '{"usage":{': "test_usage"}


def inline(begin):
    """The only piece of running text that begins with this, as a message."""
    found = [span for _, span in spans(PAGE.read_text()) if span.startswith(begin)]
    assert len(set(found)) == 1, f"{begin}: {found}"
    text = found[0].replace("{id}", "ID").replace("…", "...").replace("[{...}]", "[...]")
    return messages(re.sub(r'("\w+")(?=[,}])', r'\1:...', text) if re.match(r'\{"\w+",', text) else text)[0]


class Messages(DeployCase, AgentCase):
    def agrees(self, shown, real, of):
        self.assertEqual(differs(shown, real), [], f"{of}\nshown {shown}\nreal  {real}")

    def blocks(self, name):
        return messages(BLOCKS[name].text)

    def posts(self, name):
        """Sends the block's body to its route and compares."""
        body, shown = self.blocks(name)
        real = self.ok(self.server.post(f"{NODE}/{name}", body))
        self.agrees(shown, real, name)
        return real

    def owned(self, node, generation, **settings):
        """A server where `node` has web in that generation, version 2."""
        self.server = self.start(**settings)
        self.put(self.server, "web")
        self.renew(self.server, node)
        for number in range(0, generation, 2):
            self.ok(self.claim(self.server, node, "web", generation=number))
            if number + 1 < generation:
                self.ok(self.server.post(f"{NODE}/yield", {"node_id": node, "id": "web", "generation": number + 1}))
        self.put(self.server, "web", 200, env={"A": "b"})

    def test_every_message_is_sent_by_a_case(self):
        for name in BLOCKS:
            self.assertTrue(hasattr(self, f"test_{name}"), f"{BLOCKS[name]}: no case sends {name}")
        for _, span in spans(PAGE.read_text()):
            if '{"' in span:
                case = [INLINE[begin] for begin in INLINE if span.startswith(begin)]
                self.assertTrue(case and hasattr(self, case[0]), f"no case sends {span}")

    def test_the_comparison_can_fail(self):
        for shown, real in (({"a": 1}, {}), ({}, {"a": 1}), ({"a": "x"}, {"a": "y"}), ({"a": -1}, {"a": 1}), ({"a": [1]}, {"a": []}),
                            ({"a": [{"b": None}]}, {"a": [{"b": 1}]}), ({"generation": 3}, {"generation": 4}), ({"a": 1}, {"a": True})):
            self.assertNotEqual(differs(shown, real), [], shown)
        self.assertEqual(differs({"a": 1, "b": [{"c": "..."}], "...": "..."}, {"a": 7, "b": [{"c": []}, {"c": 0}], "d": 0}), [])

    def test_renew(self):
        self.owned("n1", 3)
        real = self.posts("renew")
        again = self.renew(self.server, "n1", if_version=real["version"])
        self.assertTrue(again["unchanged"] and "deployments" not in again)

    def test_view(self):
        self.owned("n2", 3, deploy_lease_ms=int(6000 * SLOW), deploy_renew_ms=int(1000 * SLOW))
        self.run_out(self.server, "n2")
        self.posts("view")

    def test_claim(self):
        """Afterwards the node gives the claimed deployment up again."""
        self.owned("n2", 3, deploy_lease_ms=int(6000 * SLOW), deploy_renew_ms=int(1000 * SLOW))
        self.run_out(self.server, "n2")
        self.renew(self.server, "n1")
        self.posts("claim")
        body = self.blocks("claim")[0]
        again = self.ok(self.server.post(f"{NODE}/claim", body))
        self.assertTrue(again["duplicate"])
        other = self.problem(self.server.post(f"{NODE}/claim", {**body, "node_id": "n3"}), 409, "CONFLICT")
        self.assertEqual((other["address"], other["generation"]), ("n1", 4))
        self.agrees({"ok": True}, self.ok(self.server.post(f"{NODE}/yield", inline('{"node_id":"n1","id":"web"'))), "yield")
        self.assertEqual(self.owners(self.server)["web"], ("", 5))

    def test_services(self):
        self.owned("n2", 1)
        copy = {"id": "web", "generation": 1, "version": 2, "state": "running", "restarts": 0, "pid": 1, "since_ms": 1763245000000,
                "healthy": True, "reason": None, "limits": None, "host": "n2.lan", "port": 21007}
        self.ok(self.server.post(f"{NODE}/status", {"node_id": "n2", "copies": [copy]}))
        body, shown = self.blocks("services")
        eventually("the copy is listed", lambda: self.ok(self.server.post(f"{NODE}/services", body))["copies"])
        real = self.posts("services")
        again = self.ok(self.server.post(f"{NODE}/services", {**body, "if_number": real["number"]}))
        self.assertTrue(again["unchanged"] and not again.get("copies"))

    def test_status(self):
        self.owned("n1", 3)
        shown = self.blocks("status")[0]["copies"][0]
        self.ok(self.server.post(f"{NODE}/yield", {"node_id": "n1", "id": "web", "generation": 3}))
        for number in range(4, shown["generation"], 2):  # up to the generation of the printed message
            self.ok(self.claim(self.server, "n1", "web", generation=number))
        body, answer = json.loads(json.dumps(self.blocks("status")).replace('"..."', "1763245000000"))
        body["copies"][0]["generation"] = self.ok(self.claim(self.server, "n1", "web", generation=4))["generation"]
        self.agrees(answer, self.ok(self.server.post(f"{NODE}/status", body)), "status")
        copy = self.ok(self.server.get(f"{NODE}/web"))["copies"][0]
        self.assertEqual((copy["state"], copy["pid"]), (shown["state"], shown["pid"]))
        body["copies"][0]["generation"] = 3
        self.assertEqual(len(self.ok(self.server.post(f"{NODE}/status", body))["stale"]), 1)

    def test_call(self):
        self.server = self.start()
        node = WsNode(self.server, "n1")
        asked, answer, refused = self.blocks("call")
        node.send(**asked)
        self.agrees(answer, node.expect("reply"), "call")
        self.put(self.server, "web")
        node.send(**{**asked, "path": f"{NODE}/claim", "body": {"id": "web", "observed": "n2", "generation": 3}})
        self.agrees({**refused, "...": "..."}, node.expect("reply"), "a call that is refused")

    def test_welcome(self):
        """The conversation of a client."""
        self.server = self.start()
        node = WsNode(self.server, "n1", allowed_types=["dev"])
        welcome, submit, placed, ended = self.blocks("welcome")
        client = WebSocket(self.server.port, "/v1/submit/connect", seconds=10 * SLOW)
        self.agrees(welcome, json.loads(client.recv(10 * SLOW)), "welcome")
        client.send(json.dumps(submit))
        self.agrees(placed, json.loads(client.recv(10 * SLOW)), "placed")
        job = node.expect("job")
        self.assertTrue(node.report("done", job, status="ok", result=ended["result"])["ok"])
        self.agrees(ended, json.loads(client.recv(10 * SLOW)), "ended")
        client.close()

    def test_deployments_changed(self):
        self.server = self.start()
        node = WsNode(self.server, "n1")
        looks, members = self.blocks("deployments_changed")
        self.put(self.server, "web")
        self.agrees(looks, node.expect("deployments_changed"), "deployments")
        other = WsNode(self.server, "n2")
        self.agrees(members, node.expect("terminals_changed"), "terminals")
        other.close()

    def test_HostEvent(self):
        self.server = self.start()
        first, change = self.blocks("HostEvent")
        stream = Events(self.server, "/v1/terminals/events")
        eventually("the list of terminals arrives", lambda: stream.seen)
        node = WsNode(self.server, "n1")
        eventually("the JOIN event arrives", lambda: len(stream.seen) == 2)
        for shown, (event, real) in zip((first, change), stream.seen):
            self.assertEqual(event, "HostEvent")
            self.agrees(shown, real, "HostEvent")
        for number in (stream.last_id, re.search("^id: (.*)$", BLOCKS["HostEvent"].text, re.M).group(1)):
            self.assertRegex(number, r"^0-\d{16}$")
        node.close()
        stream.close()

    def test_members(self):
        self.server = self.start()
        node = WsNode(self.server, "n1", tags={"node_unit": "true", "node_unit_address": "n1"}, labels={"zone": "us"})
        node.ask("heartbeat", level="normal")
        listed = eventually("the node is a member with a level", lambda: [one for one in [self.server.get("/v1/terminals").json]
                                                      if one["terminals"] and one["terminals"][0]["level"]])[0]
        self.agrees(inline('{"source":"...","seq"'), listed, "GET /v1/terminals")
        tags = {"tags": {"rack": "7", "node_unit": None}}
        self.assertEqual(list(inline('POST /v1/terminals/{id} {"tags"')), ["tags"])
        self.ok(self.server.post("/v1/terminals/n1", tags))
        node.send(**{**inline('{"msg":"UpdateTerminalInfo"'), "tags": {"row": "2"}})
        eventually("both changes of tags are stored", lambda: self.server.get("/v1/terminals").json["terminals"][0]["tags"]
                   == {"node_unit_address": "n1", "rack": "7", "row": "2"})
        asked = inline("POST /v1/terminals/sync {")
        changed = self.ok(self.server.post("/v1/terminals/sync", {**asked, "source": listed["source"], "seq": listed["seq"]}))
        self.agrees(inline('{"source","seq","full"'), changed, "sync")
        self.assertTrue(changed["changes"])
        self.assertTrue(self.ok(self.server.post("/v1/terminals/sync", {**asked, "source": "..."}))["terminals"])

    def test_usage(self):
        self.server = self.start()
        self.agent(self.server, "n1", host_root="/")
        asked = inline("POST /v1/terminals/usage {")
        eventually("the agent has measured its usage", lambda: self.ok(self.server.post("/v1/terminals/usage", asked))["usage"]["n1"])
        self.agrees(inline('{"usage":{'), self.ok(self.server.post("/v1/terminals/usage", asked)), "usage")

    def test_small_answers(self):
        self.server = self.start()
        node = Node(self.server, "n1")
        self.agrees(inline('{"ok":true}'), self.ok(node.register()), "register")
        f2f = {"src_lang": "en", "tgt_lang": "zh"}
        placed = self.ok(self.server.post("/v1/dispatch/f2f", f2f))
        self.agrees(inline('{"job_id","node_id","attempt_id"}'), placed, "placed")
        self.agrees(inline('{"jobs":[…]}'), self.ok(self.server.get("/v1/node/jobs?node_id=n1&wait=1s")), "jobs")
        results = self.ok(self.server.post("/v1/dispatch/batch", {"jobs": [{"type": "f2f", **f2f}, {"type": "dev"}]}))
        self.agrees(inline('{"results":['), results, "batch")
        self.assertEqual([one["status"] for one in results["results"]], [200, 422])
        self.agrees(inline('{"jobs":[…],'), self.ok(self.server.get("/v1/jobs")), "list")
        for name, more in {"nodes": {"stale", "age_ms"}, "pools": {"stale", "age_ms"}, "breakers": set(), "deployments": {"version"},
                           "terminals": {"source", "seq"}, "tokens": set(), "audit": {"chain"}}.items():
            self.assertEqual(set(self.ok(self.server.get(f"/v1/{name}"))), {name, "next_cursor"} | more)


class Socket(AgentCase):
    """The table of messages on the WebSocket: a node sends all of its messages, and receives all of the server's."""

    def setUp(self):
        super().setUp()
        _, rows = next(table for table in tables(PAGE) if table[0].startswith("| from | msg |"))
        self.rows = {(who, word.strip("`")): fields for who, word, fields in rows}
        self.heard = set()

    def hears(self, node, msg, **fields):
        """The next such message; checks that it has the fields of its row, and no others."""
        message = node.expect(msg, **fields)
        row = self.rows["server", msg]
        listed = set(re.findall(r"`(\w+)(?:: \w+)?`", row))
        if msg == "job":
            at = PAGE.read_text().index("## The job message")
            listed = set(re.findall(r"\w+", PAGE.read_text()[at:].split("`")[1]))
        names = set(message) - {"msg"}
        self.assertLessEqual(names, listed, f"{message} against: {row}")
        if msg not in ("job", "reply", "accepted"):  # these need not have all fields each time
            self.assertEqual(names, listed, f"{message} against: {row}")
        self.heard.add(("server", msg))
        return message

    def says(self, node, msg, **fields):
        self.heard.add(("node", msg))
        node.number += 1
        node.send(msg, id=node.number, **fields)
        return self.hears(node, "reply", re=node.number) if msg != "hello" else self.hears(node, "welcome")

    def test_all_of_them(self):
        server = self.start()
        node = WsNode(server, "n1", hello=False, allowed_types=["*"], max_concurrent_jobs=9)
        self.assertEqual(self.says(node, "hello", protocol=1, node_id="n1", **node.facts)["protocol"], 1)
        body = {"src_lang": "en", "tgt_lang": "zh", "audio_ref": "blob://1", "session_id": "s", "options": {"require_tts": False}}
        self.ok(server.post("/v1/dispatch/f2f", body, {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}))
        first = self.hears(node, "job")
        key = {"job_id": first["job_id"], "attempt_id": first["attempt_id"]}
        self.assertTrue(self.says(node, "ack", **key)["ok"])
        self.assertTrue(self.says(node, "ack", **key)["duplicate"])
        self.assertTrue(self.says(node, "done", **key, status="ok", result={"text": "x"})["ok"])
        self.assertEqual(self.says(node, "ack", job_id=key["job_id"], attempt_id=7)["attempt_id"], 1)
        whole = {"type": "dev", "title": "t", "priority": 3, "payload": {}, "command": "true", "interactive": True, "queue_ms": 1000,
                 "timeout_ms": 60000, "max_attempts": 1, "requires": ""}
        self.ok(server.post("/v1/dispatch/task", whole))
        second = self.hears(node, "job")
        key = {"job_id": second["job_id"], "attempt_id": second["attempt_id"]}
        self.says(node, "ack", **key)
        self.ok(server.post(f"/v1/jobs/{key['job_id']}/cancel"))
        self.hears(node, "cancel")
        self.assertTrue(self.says(node, "fail", **key, reason="CANCELLED")["ok"])
        self.says(node, "heartbeat", running_jobs=[{"job_id": key["job_id"], "attempt_id": 1}])
        self.hears(node, "drop")
        self.rpc(server, node)
        self.assertTrue(self.says(node, "UpdateTerminalInfo", tags={"rack": "7"})["ok"])
        self.hears(node, "terminals_changed")
        self.ok(server.call("PUT", f"{NODE}/web", {"command": "true"}), 201)
        self.hears(node, "deployments_changed")
        self.assertEqual(self.says(node, "call", path=f"{NODE}/view", body={})["body"]["rows"][0]["id"], "web")
        self.together(server)
        self.assertEqual(self.heard, set(self.rows), "messages of the table that nobody sent")
        node.close()

    def together(self, server):
        """Messages that a node gets only if its hello asked for them."""
        node = WsNode(server, "n2", hello=False, allowed_types=["both"], max_concurrent_jobs=1000, semantic_langs=[], nmt_pairs=[])
        self.says(node, "hello", protocol=1, node_id="n2", takes_jobs=True, takes_accepted=True, **node.facts)

        def several():
            """Jobs of one request are mostly sent in one turn."""
            self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "both"}] * 8}))
            if node.expect_any("job", "jobs")["msg"] == "jobs":
                return self.hears(node, "jobs")
            node.expect("job")  # a single job, for example one that was sent before the welcome
            return None
        jobs = eventually("several jobs arrive in one frame", several)["jobs"]
        self.assertGreater(len(jobs), 1)
        node.send("ack", id=1000, job_id=jobs[0]["job_id"], attempt_id=1)
        accepted = self.hears(node, "accepted")
        self.assertEqual((accepted["upto"], accepted["lease_ms"]), (1000, 120000))
        node.close()

    def test_there_are_no_others(self):
        """Compares the table with the messages that the server's source reads and writes."""
        source = {path.name: path.read_text() for path in (ROOT / "src/server").glob("*.c") if path.name != "submit_socket.c"}
        said = re.findall(r'str_is\(word, "(\w+)"\)', source["hub_ws.c"]) + re.findall(r'\.message = "(\w+)"', source["route.c"])
        heard = {word for text in source.values() for pair in re.findall(r'"msg", STR\("(\w+)"\)|\\"msg\\":\\"(\w+)\\"', text) for word in pair}
        self.assertEqual({word for who, word in self.rows if who == "node"}, set(said))
        self.assertEqual({word for who, word in self.rows if who == "server"}, (heard - {""}) | {"job"})

    def rpc(self, server, node):
        for answer in ({"result": {"a": 1}}, {"error": "NOT_FOUND", "detail": "There is none."}):
            answers = []
            asking = threading.Thread(target=lambda: answers.append(server.post("/v1/nodes/n1/rpc/A/B", {"x": 1})))
            asking.start()
            asked = self.hears(node, "rpc")
            self.heard.add(("node", "rpc_reply"))
            node.send("rpc_reply", re=asked["id"], **answer)
            asking.join()
            if "result" in answer:
                self.assertEqual(self.ok(answers[0]), {"a": 1})
            else:
                self.assertGreaterEqual(answers[0].status, 400)

    def test_the_job_is_the_same_by_push_and_poll(self):
        server = self.start(allow_urls="loopback")
        push = Listener()
        self.addCleanup(push.close)
        socket = WsNode(server, "ws", allowed_types=["ws"])
        Node(server, "push", allowed_types=["push"], endpoint=push.url)
        poll = Node(server, "poll", allowed_types=["poll"])
        for way in ("ws", "push", "poll"):
            self.ok(self.task(server, way))
        names = [set(socket.expect("job")) - {"msg"}, set(push.wait()[0][2]), set(poll.poll()[0])]
        self.assertEqual(names[0], names[1])
        self.assertEqual(names[0], names[2])
        socket.close()

    def test_what_an_agent_answers(self):
        """The RPC methods of an agent, called on a real one."""
        server = self.start()
        self.agent(server, "a1", claim_interval_ms=200)
        self.agent(server, "measured", claim_policy="none", allowed_types="nothing", host_root="/")
        job = self.ok(server.post("/v1/dispatch/task", {"type": "sh", "command": "echo hello", "queue_ms": "20s"}))
        self.state_of(server, job, "DONE", 30)
        self.ok(server.call("PUT", f"{NODE}/web", {"command": "echo hello; sleep 1000"}), 201)
        eventually("the copy has printed something",
                   lambda: server.get(f"{NODE}/web/logs").status == 200 and server.get(f"{NODE}/web/logs")["text"], 30)
        text = " ".join("\n".join(outside(PAGE.read_text())).split())
        methods = re.findall(r"`(\w+/\w+)` `\{([^}]*)\}` -> `\{([^}]*)\}`", text.split("RPC methods an agent answers")[1])
        self.assertEqual(len(methods), 3)
        given = {"job_id": job["job_id"], "attempt_id": 1, "offset": 0, "max": 100, "id": "web", "previous": False}
        for method, params, answer in methods:
            path = f"/v1/nodes/{'a1' if params else 'measured'}/rpc/{method}"
            body = {name: given[name] for name in params.split(", ") if name}
            eventually(f"{method} is answered", lambda: server.post(path, body).status == 200)
            self.assertEqual(set(self.ok(server.post(path, body))), set(answer.split(", ")), method)

    def test_events(self):
        server = self.start()
        text = " ".join(PAGE.read_text().split("## Events")[1].split("## ")[0].split())
        listed = {event: set(names.split(", ")) for event, names in re.findall(r"`(\w+)` \{([a-z_, ]+)\}", text)}
        streams = [Events(server), Events(server, "/v1/events?thin=1"), Events(server, last_id="nonsense")]
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1000)
        self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}] * 900}))
        eventually("every event of the list has arrived", lambda: set(listed) <= {event for stream in streams for event, _ in stream.seen})
        for stream in streams:
            for event, real in stream.seen:
                if event not in ("hello", "HostEvent"):
                    self.assertEqual(set(real), listed[event], event)
            stream.close()
