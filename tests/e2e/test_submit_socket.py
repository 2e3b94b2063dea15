"""One connection for many jobs: what a client submits over its WebSocket is answered as over HTTP, and the client receives each end once,
whatever happens to connections and servers meanwhile."""
import collections
import json
import re
import signal
import socket
import threading

import wsclient
from fences import tables
from fleet import Worker
from harness import ROOT, SLOW, Case, Listener, Node, WsNode, eventually, freeze, tags
from redis import Redis
from test_auth import bearer
from test_instances import Instances
from test_quota import QuotaCase, TokenNode

ANSWERS = ("placed", "waiting", "refused", "attached")
PATH = "/v1/submit/connect"
# Fields that may differ between answers to the same job.
OWN = ("msg", "id", "job_id", "explain", "retry_after_s")


class Submitter(WsNode):
    """A client on a WebSocket. `credit` is what the server granted in the welcome."""

    def __init__(self, server, token=None):
        self.waiting = collections.deque()
        self.number = 0
        self.socket = wsclient.WebSocket(server.port, PATH, bearer(token) if token else None, 10 * SLOW)
        self.welcome = self.expect("welcome")
        self.credit = self.welcome["credit"]

    def say(self, msg, **fields):
        """Sends a message; its id."""
        self.number += 1
        self.send(msg, id=self.number, **fields)
        return self.number

    def answer(self, number, *, seconds=10):
        """The answer to the message with that id."""
        for message in self.waiting:
            if message["msg"] in ANSWERS and message["id"] == number:
                self.waiting.remove(message)
                return message
        while True:
            message = json.loads(self.socket.recv(seconds * SLOW))
            if message["msg"] in ANSWERS and message["id"] == number:
                return message
            self.waiting.append(message)

    def submit(self, job, msg=None, **more):
        found = self.answer(self.say("submit", job=job, **more))
        assert msg in (None, found["msg"]), found
        return found

    def attach(self, job_id):
        return self.answer(self.say("attach", job_id=job_id))

    def ended(self, job, seconds=10):
        return self.expect("ended", seconds, job_id=job["job_id"])

    def quiet(self):
        """Checks that no unexpected message arrived: the answer to a message comes after everything that was sent before."""
        self.answer(self.say("nothing"))
        unexpected = [message for message in self.waiting if message["msg"] != "credit"]
        assert not unexpected, unexpected


class SubmitCase(Case):
    def node(self, server, node_id="n1", **facts):
        return WsNode(server, node_id, **{"allowed_types": ["dev"], "max_concurrent_jobs": 4, **facts})

    def finish(self, node, job, **more):
        """The node acknowledges the job and ends it."""
        message = node.expect("job", job_id=job["job_id"])
        self.assertTrue(node.report("ack", message)["ok"])
        self.assertTrue(node.report("done", message, status="ok", **more)["ok"])

    def assertEnd(self, server, ended, submitted):
        """The `ended` message has the same fields as the job that can be read."""
        job = server.job(submitted["job_id"])
        self.assertEqual({name: ended[name] for name in ended if name not in ("msg", "id")},
                         {name: job[name] for name in ("job_id", "state", "node_id", "attempt_id", "reason", "created_ms", "ended_ms", "result")})


class Answers(SubmitCase):
    def test_as_entries_of_a_batch_are(self):
        """The same jobs over both ways, in the same situation, get the same answers."""
        server = self.start(queue_max=1)
        client = Submitter(server)
        jobs = [{"type": "dev"}, {"src_lang": "en", "tgt_lang": "zh"}, {"type": ""}, {"type": "dev", "priority": 70}, {"type": 7}, {},
                {"type": "dev", "requires": "a=b"}, {"type": "dev", "queue_ms": "x"}, {"type": "dev", "callback_url": "http://example.com/"},
                {"src_lang": "en", "tgt_lang": "zh", "options": {"preferred_node_id": "n9", "strict": True}}]

        def compare():
            over_http = self.ok(server.post("/v1/dispatch/batch", {"jobs": jobs}))["results"]
            for job, entry in zip(jobs, over_http):
                answer = client.submit(job)
                kind = {200: "placed", 202: "waiting"}.get(entry["status"], "refused")
                self.assertEqual(answer["msg"], kind, (job, answer, entry))
                self.assertEqual(answer.get("retry_after_s"), 1 if entry["status"] in (429, 503) else None, answer)
                if kind != "refused":
                    entry.pop("status")
                self.assertEqual({name: value for name, value in answer.items() if name not in OWN},
                                 {name: value for name, value in entry.items() if name not in OWN})
                self.assertEqual(set(answer) - {"msg", "id", "retry_after_s"}, set(entry))
        compare()  # no node can do it
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=100)
        compare()  # there is room
        self.assertEqual(client.submit({"type": "dev"})["node_id"], "n1")
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("the node is full", lambda: self.task(server).status == 503)
        compare()
        waits = client.submit({"type": "dev", "queue_ms": 600000}, "waiting")
        self.assertEqual((waits["state"], waits["node_id"], waits["attempt_id"]), ("NEW", None, 1))
        self.assertEqual(client.submit({"type": "dev", "queue_ms": 600000})["error"], "QUEUE_FULL")

    def test_messages_that_are_none(self):
        server = self.start(body_bytes_max=2000)
        Node(server, "n1", allowed_types=["dev"])
        client = Submitter(server)
        for text, error, field, number in (("", "BAD_JSON", None, None), ("[1]", "BAD_JSON", None, None), ("{", "BAD_JSON", None, None),
                                           ('"x"', "BAD_JSON", None, None), ('{"id":5,"id":6}', "BAD_JSON", None, None),
                                           ("{}", "BAD_FIELD", "msg", None), ('{"msg":7,"id":1}', "BAD_FIELD", "msg", 1),
                                           ('{"msg":"hello","id":2}', "BAD_FIELD", "msg", 2), ('{"msg":"submit","id":"x"}', "BAD_FIELD", "job", None),
                                           ('{"msg":"submit","id":3,"job":[]}', "BAD_FIELD", "job", 3),
                                           ('{"msg":"submit","id":1.5,"job":null}', "BAD_FIELD", "job", None),
                                           ('{"msg":"submit","id":4,"job":{},"follow":"yes"}', "BAD_FIELD", "follow", 4),
                                           ('{"msg":"submit","id":4,"job":{},"idempotency_key":4}', "BAD_FIELD", "idempotency_key", 4),
                                           ('{"msg":"submit","id":4,"job":{"type":"dev"},"idempotency_key":"a b"}', "BAD_FIELD", "Idempotency-Key", 4),
                                           ('{"msg":"submit","id":4,"job":{"type":"dev"},"idempotency_key":""}', "BAD_FIELD", "Idempotency-Key", 4),
                                           ('{"msg":"attach","id":4}', "NOT_FOUND", "job_id", 4),
                                           ('{"msg":"attach","id":4,"job_id":7}', "NOT_FOUND", "job_id", 4),
                                           ('{"msg":"attach","id":4,"job_id":"x/../y"}', "NOT_FOUND", "job_id", 4),
                                           ('{"msg":"attach","id":4,"job_id":"j0ahxmb0zg0000"}', "NOT_FOUND", "job_id", 4)):
            client.socket.send(text)
            refused = client.expect("refused")
            self.assertEqual((refused["error"], refused.get("field"), refused["id"]), (error, field, number), text)
            self.assertTrue(refused["detail"].endswith("."), refused)
        large = {"type": "dev", "payload": "x" * 2000}
        self.assertEqual(client.submit(large)["error"], "TOO_LARGE")
        self.problem(server.post("/v1/dispatch/task", large), 413, "TOO_LARGE")
        self.assertEqual(client.submit({"type": "dev"})["msg"], "placed", "the connection must go on working")
        for data, code in ((wsclient.frame(wsclient.BINARY, b"{}"), 1003), (wsclient.frame(wsclient.TEXT, b"\xff"), 1007),
                           (wsclient.frame(wsclient.TEXT, b"{}", masked=False), 1002), (wsclient.frame(3, b""), 1002),
                           (wsclient.frame(wsclient.TEXT, b"x" * 5000), 1009)):
            broken = Submitter(server)
            broken.socket.send_bytes(data)
            self.assertEqual(broken.closed(), code, data[:20])
        self.assertEqual(server.get(PATH).status, 426)

    def test_keys(self):
        server = self.start()
        node = self.node(server)
        client = Submitter(server)
        job = {"type": "dev", "payload": {"n": 1}}
        first = client.submit(job, "placed", idempotency_key="k1")
        again = client.submit(job, "placed", idempotency_key="k1")
        self.assertEqual((again["job_id"], again["duplicate"]), (first["job_id"], True))
        self.assertEqual(client.submit({"type": "dev"}, idempotency_key="k1")["error"], "IDEMPOTENCY_KEY_REUSED")
        over_http = server.post("/v1/dispatch/task", job, {"Idempotency-Key": "k1"})
        self.assertEqual(self.ok(over_http)["job_id"], first["job_id"], "the key must hold over HTTP too")
        self.finish(node, first, result={"answer": 42})
        self.assertEndOnce(server, client, first)
        late = Submitter(server)  # a client whose first connection broke before the answer
        again = late.submit(job, "placed", idempotency_key="k1")
        self.assertEqual((again["job_id"], again["duplicate"]), (first["job_id"], True))
        self.assertEndOnce(server, late, first)

    def assertEndOnce(self, server, client, job):
        self.assertEnd(server, client.ended(job), job)
        client.quiet()

    def test_who_does_not_want_to_know(self):
        server = self.start()
        node = self.node(server)
        client = Submitter(server)
        quiet = client.submit({"type": "dev"}, "placed", follow=False)
        loud = client.submit({"type": "dev"}, "placed", follow=True)
        self.finish(node, quiet)
        self.finish(node, loud)
        self.assertEqual(client.ended(loud)["state"], "DONE")
        client.quiet()
        self.assertEqual(client.attach(quiet["job_id"])["state"], "DONE")
        self.assertEqual(client.ended(quiet)["state"], "DONE")


class Written(SubmitCase):
    """The table of messages in PROTOCOL.md: every message is sent, with the fields of its row and no others."""

    def test_all_of_them(self):
        _, table = next(table for table in tables(ROOT / "PROTOCOL.md") if table[0].startswith("| who | msg |"))
        rows = {(who, word.strip("`")): set(re.findall(r"`(\w+)(?:: \w+)?`", fields)) for who, word, fields in table}
        source = (ROOT / "src/server/submit_socket.c").read_text()
        self.assertEqual({word for who, word in rows if who == "client"},
                         set(re.findall(r'json_str_is\(json_get\(message, "msg"\), "(\w+)"\)', source)))
        said = set(re.findall(r'"msg", STR\("(\w+)"\)|begin\([\w>-]+, "(\w+)"', source))
        answers = re.findall(r'"(\w+)"', re.search(r"const char \*msg = [^;]*;", source).group(0))
        self.assertEqual({word for who, word in rows if who == "server"}, {word for found in said for word in found if word} | set(answers))
        server = self.start()
        node = self.node(server, max_concurrent_jobs=1)
        client = Submitter(server)
        messages = [client.welcome, client.submit({"type": "none"}), client.submit({"type": "dev"}, "placed", idempotency_key="k"),
                    client.submit({"type": "dev"}, "placed", idempotency_key="k"), client.submit({"type": "dev"}, "refused"),
                    client.submit({"type": "dev", "queue_ms": 600000}, "waiting"),
                    client.submit({"type": "dev", "requires": ","}, "refused")]
        messages += [client.attach(messages[2]["job_id"]), Submitter(server).attach(messages[2]["job_id"])]
        self.finish(node, messages[2])
        messages += [client.ended(messages[2])]
        for message in messages:
            self.assertLessEqual(set(message) - {"msg"}, rows["server", message["msg"]], message)
        self.assertEqual({message["msg"] for message in messages} | {"credit"}, {word for who, word in rows if who == "server"})
        everything = {(message["msg"], name) for message in messages for name in message if name != "msg"}
        written = {(word, name) for (who, word), names in rows.items() if who == "server" and word not in ("credit",) for name in names}
        self.assertEqual(written - everything, {("waiting", "duplicate"), ("welcome", "body_bytes_max"), ("ended", "null")},
                         "fields of the table that no message had")


class Ends(SubmitCase):
    def test_however_it_ends(self):
        server = self.start(max_attempts=1)
        node = self.node(server, max_concurrent_jobs=1)
        client = Submitter(server)
        done = client.submit({"type": "dev"}, "placed")
        number = client.number
        waits = client.submit({"type": "dev", "queue_ms": 600000}, "waiting")
        short = client.submit({"type": "dev", "queue_ms": 1}, "waiting")
        self.assertEqual((client.ended(short)["state"], server.job(short["job_id"])["reason"]), ("FAILED", "QUEUE_TIMEOUT"))
        self.finish(node, done, result={"text": "\u00fc \" \\ \n"})
        ended = client.ended(done)
        self.assertEqual((ended["id"], ended["state"], ended["result"]), (number, "DONE", {"text": "\u00fc \" \\ \n"}))
        self.assertEnd(server, ended, done)
        message = node.expect("job", job_id=waits["job_id"])
        node.report("ack", message)
        node.report("fail", message, reason="EXIT_1", result={"exit": 1})
        ended = client.ended(waits)
        self.assertEqual((ended["state"], ended["reason"], ended["result"]), ("FAILED", "EXIT_1", {"exit": 1}))
        self.assertEnd(server, ended, waits)
        cancelled = client.submit({"type": "dev"}, "placed")
        self.ok(server.post(f"/v1/jobs/{cancelled['job_id']}/cancel"))
        self.assertEqual(client.ended(cancelled)["reason"], "CANCELLED")
        client.quiet()

    def test_an_end_before_the_answer(self):
        """A node may be done before the server learns that the node has the job: the client still gets both messages in the right order."""
        gate = threading.Event()
        listener = Listener(gate=gate)
        self.addCleanup(listener.close)
        server = self.start(push_timeout_ms=60000)
        node = Node(server, "n1", allowed_types=["dev"], endpoint=f"{listener.url}/job")
        client = Submitter(server)
        number = client.say("submit", job={"type": "dev"})
        job = listener.wait()[0][2]
        self.ok(node.ack(job))
        self.ok(node.done(job))
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")
        gate.set()
        order = [json.loads(client.socket.recv(10 * SLOW)) for _ in range(2)]
        self.assertEqual([(message["msg"], message["id"], message["job_id"]) for message in order],
                         [("placed", number, job["job_id"]), ("ended", number, job["job_id"])])
        client.quiet()

    def test_attach(self):
        server = self.start()
        node = self.node(server)
        job, other = self.ok(self.task(server)), self.ok(self.task(server))
        first, second = Submitter(server), Submitter(server)
        for client in (first, second):
            self.assertEqual(client.attach(job["job_id"])["state"], "DISPATCHED")
            self.assertEqual(client.attach(job["job_id"])["duplicate"], True)
        second.close()
        self.finish(node, job)
        self.assertEnd(server, first.ended(job), job)
        self.finish(node, other)
        third = Submitter(server)
        for ended in (job, other):
            self.assertEqual(third.attach(ended["job_id"])["state"], "DONE")
            self.assertEnd(server, third.ended(ended), ended)
        first.quiet()
        third.quiet()
        submitted = third.submit({"type": "dev"}, "placed")
        self.assertEqual(third.attach(submitted["job_id"])["duplicate"], True)
        self.finish(node, submitted)
        third.ended(submitted)
        third.quiet()

    def room(self, client):
        answer = client.submit({"type": "dev"})
        return answer if answer["msg"] == "placed" else None

    def test_after_a_crash(self):
        """What was answered is there after a crash, and a client that attaches gets the ends that happened meanwhile."""
        server = self.start()
        node = self.node(server, max_concurrent_jobs=1)
        client = Submitter(server)
        ended = client.submit({"type": "dev"}, "placed")
        self.finish(node, ended)
        runs = eventually("the node has room again", lambda: self.room(client))
        waits = client.submit({"type": "dev", "queue_ms": 600000}, "waiting")
        message = node.expect("job", job_id=runs["job_id"])
        node.report("ack", message)
        server.kill()
        server = self.start()
        node = self.node(server, max_concurrent_jobs=1, running_jobs=[{"job_id": runs["job_id"], "attempt_id": 1}])
        client = Submitter(server)
        for job in (ended, runs, waits):
            self.assertEqual(client.attach(job["job_id"])["msg"], "attached")
        self.assertEnd(server, client.ended(ended), ended)
        node.report("done", message, status="ok")
        self.assertEnd(server, client.ended(runs), runs)
        self.finish(node, waits)
        self.assertEnd(server, client.ended(waits), waits)
        client.quiet()

    @tags("long")
    def test_crashes_all_the_time(self):
        """The server is killed every now and then, nodes lose messages, and a client follows the rules: it submits what was not answered
        again, and attaches to what was. Each job exists once and is done, and no connection gets an end twice."""
        count, every = 1000, 180
        settings = {"reservation_ttl_ms": int(2000 * SLOW), "queue_max": count}
        servers = [self.start(**settings)]
        workers = [Worker(servers, f"n{i}", 16, i) for i in range(3)]
        for worker in workers:
            worker.start()
        eventually("all nodes have registered", lambda: len(servers[0].get("/v1/nodes").json["nodes"]) == len(workers))
        jobs, ends, kills = {}, {}, 0
        while len(ends) < count:
            received = set()
            try:
                client = Submitter(servers[0])
                todo = collections.deque([("attach", n) for n in jobs if n not in ends] + [("submit", n) for n in range(count) if n not in jobs])
                credit = client.credit
                while len(ends) < count:
                    for _ in range(min(credit, len(todo))):
                        msg, n = todo.popleft()
                        how = {"job_id": jobs[n]} if msg == "attach" else {
                            "idempotency_key": f"k{n}", "job": {"type": "dev", "queue_ms": 600000, "max_attempts": 9, "payload": {"n": n}}}
                        client.send(msg, id=n, **how)
                        credit -= 1
                    message = json.loads(client.socket.recv(60 * SLOW))
                    n = message.get("id")
                    if message["msg"] == "ended":
                        self.assertNotIn(n, received, "an end arrived twice on one connection")
                        self.assertEqual((message["state"], message["job_id"]), ("DONE", jobs[n]))
                        received.add(n)
                        ends[n] = message["job_id"]
                    elif message["msg"] == "refused":
                        self.assertEqual(message["error"], "NO_CAPABLE_NODE", message)  # the client is faster than the nodes after a start
                        todo.append(("submit", n))
                    elif message["msg"] in ANSWERS:
                        self.assertEqual(jobs.setdefault(n, message["job_id"]), message["job_id"], "another job for the same key")
                    credit += message.get("n", 0) if message["msg"] == "credit" else 0 if message["msg"] == "ended" else message.get("credit", 1)
                    if len(ends) >= (kills + 1) * every:
                        kills += 1
                        servers[0].kill()
                        servers[0] = self.start(**settings)
            except (wsclient.Closed, OSError):
                pass
        for worker in workers:
            worker.over.set()
        for worker in workers:
            worker.join(60 * SLOW)
            self.assertIsNone(worker.failure)
        self.assertEqual(kills, (count - 1) // every)
        self.assertEqual(len(set(jobs.values())), count)
        found = servers[0].all_jobs()
        self.assertEqual(({job["job_id"] for job in found}, {job["state"] for job in found}), (set(jobs.values()), {"DONE"}))

    @tags("threads")
    def test_ten_thousand(self):
        """All jobs go through one socket, and each end arrives once; a node's socket may belong to another loop."""
        count = 10000
        server = self.start(loops=2, queue_max=count, queue_total_max=count)
        nodes = [self.node(server, f"n{i}", max_concurrent_jobs=64) for i in range(2)]
        client = Submitter(server)

        def work(node):
            while True:
                try:
                    job = node.expect("job", 60)
                except (wsclient.Closed, OSError):
                    return
                node.send("ack", job_id=job["job_id"], attempt_id=job["attempt_id"])
                node.send("done", job_id=job["job_id"], attempt_id=job["attempt_id"], status="ok", result={"n": job["payload"]["n"]})

        for node in nodes:
            threading.Thread(target=work, args=(node,), daemon=True).start()
        credit, sent, jobs, ends = client.credit, 0, {}, {}
        while len(ends) < count:
            while credit and sent < count:
                client.send("submit", id=sent, job={"type": "dev", "queue_ms": 600000, "payload": {"n": sent}})
                sent, credit = sent + 1, credit - 1
            message = json.loads(client.socket.recv(60 * SLOW))
            if message["msg"] == "credit":
                credit += message["n"]
            elif message["msg"] == "ended":
                self.assertNotIn(message["id"], ends, "an end arrived twice")
                self.assertIn(message["id"], jobs, "an end arrived before the answer")
                self.assertEqual((message["state"], message["result"], message["job_id"]),
                                 ("DONE", {"n": message["id"]}, jobs[message["id"]]))
                ends[message["id"]] = message["job_id"]
            else:
                self.assertIn(message["msg"], ("placed", "waiting"), message)
                self.assertNotIn(message["id"], jobs)
                jobs[message["id"]] = message["job_id"]
                credit += message.get("credit", 1)
            self.assertLessEqual(credit, client.credit)
        self.assertEqual((len(set(ends.values())), ends), (count, jobs))
        client.quiet()


class Flow(SubmitCase):
    def test_credit(self):
        """The store does not answer, so all the credit is in use, and one more message is one too many."""
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url, store_call_ms=60000, store_timeout_ms=60000)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1000)
        good, bad = Submitter(server), Submitter(server)
        self.assertEqual(good.submit({"type": "dev"})["msg"], "placed")
        redis.pause()
        for client in (good, bad):
            for _ in range(client.credit):
                client.say("submit", job={"type": "dev"})
        bad.say("attach", job_id="j0ahxmb0zg0000")
        with self.assertRaises(wsclient.Closed) as end:
            while True:
                bad.socket.recv(10 * SLOW)
        self.assertEqual(end.exception.code, 4008)
        self.assertIn("no credit", end.exception.reason)
        redis.go_on()
        self.assertEqual([good.answer(number)["msg"] for number in range(2, good.number + 1)], ["placed"] * good.credit)
        self.assertEqual(good.submit({"type": "dev"})["msg"], "placed", "answers must return the credit")

    def test_who_does_not_read(self):
        """Ends that are not read wait in the store. If more of them were written than may be queued, the server would close the
        connection."""
        count = 200  # with 12 MB of results, more than the kernel's buffers hold for a client that does not read
        server = self.start(message_queue_bytes_max=65536, result_bytes_max=65536, ping_ms=600000)
        node = self.node(server, max_concurrent_jobs=count)
        client = Submitter(server)
        self.assertLess(client.credit, 20, "the credit must not exceed the room for answers")
        jobs = [client.submit({"type": "dev"}, "placed") for _ in range(count)]
        big = "x" * 60000
        for job in jobs:
            self.finish(node, job, result=big)
        other = Submitter(server)
        self.assertEqual(other.submit({"type": "none"})["error"], "NO_CAPABLE_NODE", "other clients must be answered")
        for number in range(client.credit):  # their answers wait after the ends
            client.send("submit", id=1000 + number, job={"type": "none"})
        received = collections.Counter()
        credit = 0
        while sum(received.values()) < count or credit < client.credit:
            message = json.loads(client.socket.recv(30 * SLOW))
            if message["msg"] == "ended":
                self.assertEqual(message["result"], big)
                received[message["job_id"]] += 1
            elif message["msg"] == "credit":
                credit += message["n"]
            else:
                self.assertEqual(message["error"], "NO_CAPABLE_NODE")
                credit += message.get("credit", 1)
        self.assertEqual(received, collections.Counter(job["job_id"] for job in jobs))
        client.quiet()

    def test_who_neither_reads_nor_waits_for_credit(self):
        """Answers pile up only as far as the credit allows; a client that sends more is disconnected."""
        server = self.start(message_queue_bytes_max=65536)
        client = Submitter(server)
        client.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.socket.settimeout(60 * SLOW)
        data = wsclient.frame(wsclient.TEXT, json.dumps({"msg": "submit", "job": {"type": "none"}}).encode())
        sent = 0
        with self.assertRaises(OSError):
            while sent < 10 ** 6:
                client.socket.socket.sendall(data)
                sent += 1
        self.assertEqual(Submitter(server).submit({"type": "none"})["error"], "NO_CAPABLE_NODE")

    def test_the_server_stops(self):
        """A client with nothing under way is disconnected, the other one after its answers. Everything is queued at the frozen server at
        the same time, so the order in which it is read does not matter."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        listener.settimeout(30 * SLOW)
        server = self.start(push_timeout_ms=60000)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}/job")
        idle, busy = Submitter(server), Submitter(server)
        number = busy.say("submit", job={"type": "dev"})
        push, _ = listener.accept()
        self.addCleanup(push.close)
        push.settimeout(30 * SLOW)
        self.assertTrue(push.recv(65536).startswith(b"POST /job"))
        freeze(server.process)
        server.process.send_signal(signal.SIGTERM)
        late = busy.say("submit", job={"type": "dev"})
        push.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        server.process.send_signal(signal.SIGCONT)
        answers = {}
        with self.assertRaises(wsclient.Closed) as end:
            while True:
                message = json.loads(busy.socket.recv(10 * SLOW))
                answers[message["id"]] = message
        self.assertEqual((end.exception.code, idle.closed()), (1012, 1012))
        self.assertEqual(answers[number]["msg"], "placed")
        if late in answers:  # otherwise the connection was closed before it was read
            self.assertIn(answers[late]["error"], ("SCHEDULER_BUSY", "ALL_CANDIDATES_FULL_OR_FAILED"))
        self.assertEqual(server.stop(), 0)


class Guarded(QuotaCase):
    def close_of(self, client, seconds=10):
        with self.assertRaises(wsclient.Closed) as end:
            while True:
                client.socket.recv(seconds * SLOW)
        return end.exception.code, end.exception.reason

    def test_tokens(self):
        server, root = self.guarded()
        TokenNode(server, "n1", token=root, allowed_types=["dev"], max_concurrent_jobs=100)
        for scope in ("read", "node"):
            token = self.cli(server, "token", "create", f"only-{scope}", "--scope", scope, token=root)
            with self.assertRaises(wsclient.Refused) as refused:
                Submitter(server, token)
            self.assertEqual(refused.exception.status, 403, scope)
        with self.assertRaises(wsclient.Refused) as refused:
            wsclient.WebSocket(server.port, PATH)
        self.assertEqual(refused.exception.status, 401)
        mine = self.cli(server, "token", "create", "mine", "--scope", "submit", token=root)
        other = self.cli(server, "token", "create", "other", "--scope", "submit", token=root)
        client, another, admin = Submitter(server, mine), Submitter(server, other), Submitter(server, root)
        job = client.submit({"type": "dev"}, "placed")
        self.assertEqual(server.call("GET", f"/v1/jobs/{job['job_id']}", headers=bearer(root)).json["submitted_by"], "mine")
        strange, unknown = another.attach(job["job_id"]), another.attach("j0ahxmb0zg0000")
        self.assertEqual((strange["error"], strange["detail"].replace(job["job_id"], "")),
                         (unknown["error"], unknown["detail"].replace("j0ahxmb0zg0000", "")), "a foreign job must look unknown")
        self.assertEqual(Submitter(server, mine).attach(job["job_id"])["msg"], "attached",
                         "a token that may only submit can follow its own jobs")
        self.assertEqual(admin.attach(job["job_id"])["msg"], "attached")
        self.cli(server, "token", "revoke", "mine", token=root)
        self.assertEqual(self.close_of(client), (4003, "the token is not valid any more"))
        self.assertEqual(another.submit({"type": "dev"})["msg"], "placed", "other clients must stay connected")
        for seconds in (1, 5, 25, 125):  # long enough to connect with it
            short = self.cli(server, "token", "create", f"short-{seconds}", "--scope", "submit", "--expires", f"{seconds}s", token=root)
            try:
                client = Submitter(server, short)
                break
            except wsclient.Refused as refused:
                self.assertEqual(refused.status, 401)
        self.assertEqual(self.close_of(client, seconds + 30)[0], 4003)

    def test_quotas(self):
        server, root = self.full()
        token = self.made(server, "ci", "rate=5/h")
        client = Submitter(server, token)
        answers = [client.submit({"type": "none"}) for _ in range(7)]
        self.assertEqual([answer["error"] for answer in answers], ["NO_CAPABLE_NODE"] * 5 + ["QUOTA_EXCEEDED"] * 2)
        self.assertEqual(answers[5]["field"], "quota.rate")
        self.assertGreater(answers[5]["retry_after_s"], 60)
        self.over(self.task(server, token), "rate", "ci")  # the rate counts both ways together
        token = self.made(server, "few", "waiting=2")
        client = Submitter(server, token)
        kinds = [client.submit({"type": "dev", "queue_ms": 600000}) for _ in range(3)]
        self.assertEqual([kind["msg"] for kind in kinds], ["waiting", "waiting", "refused"])
        self.assertEqual((kinds[2]["error"], kinds[2]["field"]), ("QUOTA_EXCEEDED", "quota.waiting"))
        self.cancel(server, kinds[0]["job_id"], root)
        self.assertEqual(client.ended(kinds[0])["reason"], "CANCELLED")
        self.assertEqual(client.submit({"type": "dev", "queue_ms": 600000})["msg"], "waiting")


class OverInstances(Instances):
    count = 2

    def test_another_instance(self):
        """Submitted at one instance, done at the other; and attached there once the first one is killed."""
        a, b = self.all
        node = WsNode(b, "n1", allowed_types=["dev"], max_concurrent_jobs=3)
        eventually("both instances know the node", lambda: self.views(["n1"]))
        client = Submitter(a)
        jobs = [client.submit({"type": "dev"}, "placed") for _ in range(3)]
        for job in jobs:
            job["message"] = node.expect("job", job_id=job["job_id"])
            self.assertTrue(node.report("ack", job["message"])["ok"])

        def done(job):
            self.assertTrue(node.report("done", job["message"], status="ok", result={"by": "b"})["ok"])
        done(jobs[0])
        ended = client.ended(jobs[0])
        self.assertEqual((ended["state"], ended["node_id"], ended["result"]), ("DONE", "n1", {"by": "b"}))
        a.kill()
        done(jobs[1])
        client = Submitter(b)
        for job in jobs:
            self.assertEqual(client.attach(job["job_id"])["msg"], "attached")
        done(jobs[2])
        for job in jobs:
            self.assertEqual(client.ended(job)["result"], {"by": "b"})
        client.quiet()

    def test_a_word_that_gets_lost(self):
        """An end whose announcement between the instances is lost is found all the same."""
        a, b = self.all
        node = Node(b, "n1", allowed_types=["dev"])
        eventually("both instances know the node", lambda: self.views(["n1"]))
        client = Submitter(a)
        job = client.submit({"type": "dev"}, "placed")
        polled = eventually("the node gets the job", lambda: node.poll("0ms"))[0]
        self.ok(node.ack(polled))
        self.redis.say("CLIENT", "KILL", "TYPE", "pubsub")
        self.ok(node.done(polled))
        self.assertEqual(client.ended(job, 30)["state"], "DONE")
        client.quiet()
