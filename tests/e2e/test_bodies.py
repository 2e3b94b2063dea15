"""Bodies and memory: a caller without the right gets its error before it has sent the body, and all bodies together have one bound."""
import json
import pathlib
import re
import socket
import threading

from harness import SLOW, Node, WsNode, eventually, tags
from test_auth import ADMIN, AuthCase, bearer
from test_http import statuses

CONNECTIONS = 80
LARGE = 8 * 1024 * 1024 - 1  # the largest allowed Content-Length, less one byte: the body is never complete
MIB = 1024 * 1024


def memory(server, name):
    """VmRSS: now; VmHWM: the most there ever was."""
    lines = pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


class Sender:
    """A connection that sends a head, and a body that it may never complete."""

    def __init__(self, server, path="/v1/dispatch/batch", method="POST", token=None, length=LARGE, **headers):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW)
        self.length = length
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Content-Length: {length + 1}",
                 *(f"{name}: {value}" for name, value in {**bearer(token), **headers}.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())

    def answer(self):
        """The whole answer: head and body."""
        got = self.socket.recv(65536)
        while not self.whole(got) and (piece := self.socket.recv(65536)):
            got += piece
        return got

    @staticmethod
    def whole(got):
        head, found, body = got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        return found and (not length or len(body) >= int(length.group(1)))

    def send(self):
        """Sends all but the last byte; the server may not take it."""
        try:
            self.socket.sendall(b" " * self.length)
        except OSError:
            pass

    def rest(self):
        try:
            while self.socket.recv(65536):
                pass
        except OSError:
            pass
        self.socket.close()


def at_once(senders):
    threads = [threading.Thread(target=sender.send) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60 * SLOW)


class Bodies(AuthCase):
    def test_who_may_not_call_sends_no_body(self):
        server = self.guarded()
        before = memory(server, "VmRSS")
        rows = [(401, {}), (401, {"token": "nobody-0000"}), (403, {"token": "reader-5c1a"}),
                (403, {"token": "sender-77d0", "Origin": "http://evil.example"}), (404, {"path": "/v1/nothing"}),
                (405, {"path": "/v1/jobs"}), (413, {"path": "/healthz", "method": "GET"}),
                (413, {"path": "/v1/dispatch/task", "token": "sender-77d0"})]
        senders = []
        for number in range(CONNECTIONS):
            status, how = rows[number % len(rows)] if number < 2 * len(rows) else rows[0]
            sender = Sender(server, **{"length": LARGE, **how})
            got = sender.answer()  # nothing of the body was sent
            self.assertEqual(statuses(got), [status], (how, got))
            self.assertIn(b"Connection: close", got)
            senders.append(sender)
        at_once(senders)
        for sender in senders:
            sender.rest()
        self.assertLess(memory(server, "VmHWM"), 2 * before)
        self.ok(server.get("/v1/jobs"))

    def test_expect_is_answered_by_who_calls(self):
        server = self.guarded()
        for token, status in ((None, 401), ("reader-5c1a", 403), ("sender-77d0", 100)):
            sender = Sender(server, token=token, Expect="100-continue")
            got = sender.answer()
            self.assertEqual(statuses(got), [status])
            self.assertEqual(b"Connection: close" in got, status != 100)
            sender.socket.close()

    def test_a_short_refused_body_leaves_the_connection_as_it_was(self):
        server = self.guarded()
        with server.client() as client:
            for _ in range(3):
                self.problem(client.post("/v1/dispatch/task", {"type": "dev"}), 401, "UNAUTHORIZED")
                self.problem(client.post("/v1/nodes/n9/drain", {"reason": "x"}, bearer("reader-5c1a")), 403, "FORBIDDEN")
                self.problem(client.post("/v1/nothing", {"a": "b"}), 404, "NOT_FOUND")
                self.assertEqual(client.get("/healthz").status, 200)
        audit = eventually("the refused calls are in the audit", lambda: self.ok(server.get("/v1/audit?who=reader"))["audit"])
        self.assertEqual({(row["action"], row["target"], row["status"]) for row in audit}, {("nodes.drain", "n9", 403)})

    def test_all_bodies_have_one_bound(self):
        server = self.guarded(bodies_bytes_max=16 * MIB, body_timeout_ms=120000)
        Node(server, "n1", allowed_types=["dev"])
        before = memory(server, "VmRSS")
        senders = [Sender(server, token="sender-77d0", Expect="100-continue") for _ in range(CONNECTIONS)]
        answers = [sender.answer() for sender in senders]
        refused = [got for got in answers if statuses(got) == [503]]
        admitted = [sender for sender, got in zip(senders, answers) if statuses(got) == [100]]
        self.assertEqual((len(admitted), len(refused)), (2, CONNECTIONS - 2))
        for got in refused:
            self.assertIn(b"Retry-After: 1", got)
            self.assertIn(b"SCHEDULER_BUSY", got)
            self.assertIn(b"bodies_bytes_max", got)
        at_once(senders)
        self.assertLess(memory(server, "VmHWM"), before + 3 * 16 * MIB)
        eventually("the bodies have arrived", lambda: server.metrics()["berth_bodies_bytes"] > 15 * MIB)
        for _ in range(20):  # small bodies still have room
            self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "payload": "x" * 10000}, bearer("sender-77d0")))
        for sender in admitted:
            sender.socket.sendall(b" ")
            self.assertEqual(statuses(sender.answer()), [400])
        for sender in senders:
            sender.socket.close()
        eventually("the memory of all bodies is free again", lambda: server.metrics()["berth_bodies_bytes"] == 0)
        jobs = [{"type": "dev", "payload": "x" * 100000} for _ in range(50)]
        self.ok(server.post("/v1/dispatch/batch", json.dumps({"jobs": jobs}), bearer("sender-77d0")))

    def test_a_token_revoked_while_its_body_comes(self):
        server = self.guarded()
        made = self.ok(server.post("/v1/tokens", {"name": "brief", "scopes": ["submit"]}), 201)
        sender = Sender(server, token=made["token"], length=99, Expect="100-continue")
        self.assertEqual(statuses(sender.answer()), [100])
        self.ok(server.call("DELETE", "/v1/tokens/brief"))
        sender.socket.sendall(b" " * 100)
        self.assertEqual(statuses(sender.answer()), [401])
        sender.socket.close()


class Answers(AuthCase):
    """Answers whose client does not read them."""
    TEXT = "x" * 100000

    def filled(self, jobs=30, **settings):
        server = self.guarded(loops=1, **settings)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1000)
        for _ in range(jobs):
            self.ok(server.post("/v1/dispatch/task", {"type": "dev", "payload": self.TEXT}, bearer("sender-77d0")))
        return server

    def unread(self, server, path="/v1/jobs?limit=1000"):
        """Sends four requests and reads nothing."""
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW)
        self.addCleanup(sock.close)
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer reader-5c1a\r\n\r\n"
        sock.sendall(request.encode() * 4)
        return sock

    @tags("load")
    def test_they_have_one_bound(self):
        server = self.filled(write_queue_bytes_max=4 * MIB, write_queues_bytes_max=8 * MIB)
        server.token = ADMIN
        node = WsNode(server, "us", headers=bearer("worker-us-91e4"))
        before = memory(server, "VmRSS")
        socks = [self.unread(server) for _ in range(60)]
        dropped = 'berth_connections_dropped_total{reason="behind"}'
        eventually("30 connections were dropped", lambda: server.metrics()[dropped] >= 30)
        self.assertLess(memory(server, "VmRSS"), before + 5 * 8 * MIB, "without the bound it would be 240 MiB")
        page = self.ok(server.get("/v1/jobs?limit=1000", **bearer("reader-5c1a")))  # a client that reads gets the answer
        self.assertLess(len(json.dumps(page)), 1.2 * MIB)
        self.assertIn("ok", str(node.ask("heartbeat", node_id="us", health="ready")))
        node.close()
        self.assertGreater(len(socks), server.metrics()[dropped], "some connections must survive")

    def test_a_list_goes_on_from_page_to_page(self):
        server = self.filled()
        found, cursor, pages = [], "", 0
        while cursor is not None:
            page = self.ok(server.get(f"/v1/jobs?limit=1000{'&cursor=' + cursor if cursor else ''}"))
            found += [job["job_id"] for job in page["jobs"]]
            cursor, pages = page["next_cursor"], pages + 1
        self.assertEqual((len(set(found)), len(found)), (30, 30))
        self.assertGreaterEqual(pages, 3)
