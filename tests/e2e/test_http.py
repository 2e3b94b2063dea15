"""HTTP as seen from outside: who may call, what is refused, limits, framing."""
import http.client
import json
import re
import socket
import time

from harness import SLOW, Case, Node, eventually


def talk(port, data, seconds=5, until_close=True):
    """Sends bytes, returns what came until the server closed (or the time ran out)."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds * SLOW) as sock:
        sock.sendall(data)
        got = b""
        try:
            while True:
                piece = sock.recv(65536)
                if not piece:
                    break
                got += piece
        except (TimeoutError, ConnectionError):
            if until_close and not got:
                raise
        return got


def statuses(data):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


class Doors(Case):
    """No web page of another site can use the server."""

    def test_host_must_be_ours(self):
        server = self.start()
        good = [f"127.0.0.1:{server.port}", f"localhost:{server.port}", "localhost", "127.0.0.1",
                f"[::1]:{server.port}", "LOCALHOST"]
        for host in good:
            self.assertEqual(server.get("/healthz", Host=host).status, 200, host)
        evil = ["evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example",
                "localhost.evil.example", "127.0.0.1.nip.io", "a.localhost.evil", "0.0.0.0", "10.0.0.1",
                "evil.example:127.0.0.1", "[::2]", "localhost@evil.example"]
        for host in evil:
            answer = server.get("/healthz", Host=host)
            self.assertIn(answer.status, (400, 403), host)
            self.assertNotIn(b'"ok"', answer.body)
        self.problem(server.get("/v1/nodes", Host="evil.example"), 403, "FORBIDDEN")

    def test_dns_rebinding_cannot_dispatch(self):
        """The page's own host name resolves to 127.0.0.1: the Host header still reveals it."""
        server = self.start()
        Node(server, "n1")
        answer = self.dispatch(server, headers={"Host": f"rebind.evil.example:{server.port}"})
        self.problem(answer, 403, "FORBIDDEN")
        self.assertSlots(server, "n1", 0, 0)

    def test_origin_must_be_ours(self):
        server = self.start()
        Node(server, "n1")
        for origin in ("http://evil.example", "null", "https://127.0.0.1.evil.example",
                       f"http://evil.example:{server.port}", "file://", "http://localhost.evil.example"):
            self.problem(self.dispatch(server, headers={"Origin": origin}), 403, "FORBIDDEN")
            self.assertEqual(server.get("/v1/nodes", Origin=origin).status, 403, origin)
        self.assertSlots(server, "n1", 0, 0)
        for origin in (f"http://127.0.0.1:{server.port}", f"http://localhost:{server.port}"):
            answer = self.dispatch(server, headers={"Origin": origin, "Host": origin[7:]})
            self.assertEqual(answer.status, 200, f"{origin}: {answer}")

    def test_no_answer_lets_a_foreign_page_read(self):
        server = self.start()
        for headers in ({}, {"Origin": f"http://127.0.0.1:{server.port}"}, {"Origin": "http://evil.example"}):
            answer = server.call("OPTIONS", "/v1/dispatch/f2f", headers=headers)
            self.assertNotIn(answer.headers.get("Access-Control-Allow-Origin"), ("*", "http://evil.example"))

    def test_configured_hosts(self):
        server = self.start(hosts="sched.internal,other.internal")
        for host in ("sched.internal", f"sched.internal:{server.port}", "other.internal", "127.0.0.1"):
            self.assertEqual(server.get("/healthz", Host=host).status, 200, host)
        self.assertEqual(server.get("/healthz", Host="third.internal").status, 403)


class Routes(Case):
    def test_unknown_path_is_404(self):
        server = self.start()
        for path in ("/v1/nothing", "/v1", "/v1/nodes/", "/v1/node/register/x", "/..", "/v1/nodes/a/b",
                     "/v1/jobs/%2e%2e/cancel", "//v1/nodes"):
            answer = server.get(path)
            self.assertIn(answer.status, (404, 405), f"{path}: {answer}")
            self.assertIn("error", answer.json)

    def test_wrong_method_is_405_with_allow(self):
        server = self.start()
        rows = [("GET", "/v1/dispatch/f2f", "POST"), ("POST", "/v1/nodes", "GET"), ("PUT", "/v1/node/register", "POST"),
                ("DELETE", "/healthz", "GET"), ("PATCH", "/v1/jobs", "GET")]
        for method, path, allowed in rows:
            answer = server.call(method, path, {} if method != "GET" else None)
            self.problem(answer, 405, "METHOD_NOT_ALLOWED")
            self.assertIn(allowed, answer.headers["Allow"], f"{method} {path}")

    def test_head_and_options(self):
        server = self.start()
        head, get = server.call("HEAD", "/healthz"), server.get("/healthz")
        self.assertEqual((head.status, head.body), (200, b""))
        self.assertEqual(head.headers["Content-Type"], get.headers["Content-Type"])
        options = server.call("OPTIONS", "/v1/dispatch/f2f")
        self.assertIn(options.status, (200, 204))
        self.assertIn("POST", options.headers["Allow"])

    def test_bad_bodies(self):
        server = self.start()
        rows = [b"", b"{", b"nope", b'{"a":1,}', b'{"a":01}', b'{"a":NaN}', b'{"a":1}{}', b'\xff{}',
                b'{"a":"\xed\xa0\x80"}', b'{"node_id":"n1","node_id":"n2"}', b'{"a":"\x01"}',
                b"[" * 100 + b"]" * 100, b'{"a":"\\ud800"}', b"\xef\xbb\xbf{}"]
        for body in rows:
            answer = server.call("POST", "/v1/node/register", body)
            self.assertEqual(answer.status, 400, f"{body[:40]}: {answer}")
            self.assertIn(answer["error"], ("BAD_JSON", "BAD_FIELD", "BAD_REQUEST"))
        for body in (b"[]", b'"x"', b"7", b"null"):
            self.assertEqual(server.call("POST", "/v1/node/register", body).status, 400, body)

    def test_body_too_large_is_413(self):
        server = self.start(body_bytes_max=100000)
        answer = server.call("POST", "/v1/dispatch/task", json.dumps({"type": "dev", "payload": "x" * 200000}))
        self.problem(answer, 413, "TOO_LARGE")
        self.ok(server.get("/healthz"))

    def test_payload_travels_whole(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"])
        payload = {"text": "\u00fc\u4e2d\U0001F600" * 100, "deep": [[[[{"x": [1.5, -2e10, None]}]]]]}
        self.ok(self.task(server, payload=payload, title="t\u00eate"))
        job = node.poll()[0]
        self.assertEqual((job["payload"], job["title"]), (payload, "t\u00eate"))


class Framing(Case):
    def test_ambiguous_framing_is_refused(self):
        server = self.start()
        host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
        rows = {
            "CL and TE": b"POST /v1/node/register HTTP/1.1\r\n" + host
                         + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                         + b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n",
            "two CLs": b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
            "signed CL": b"POST / HTTP/1.1\r\n" + host + b"Content-Length: +1\r\n\r\nx",
            "huge CL": b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 99999999999999999999\r\n\r\n",
            "no Host": b"GET /healthz HTTP/1.1\r\n\r\n",
            "two Hosts": b"GET /healthz HTTP/1.1\r\n" + host + host + b"\r\n",
            "space before colon": b"GET /healthz HTTP/1.1\r\n" + host + b"X-A : b\r\n\r\n",
            "obs-fold": b"GET /healthz HTTP/1.1\r\n" + host + b"X-A: b\r\n c\r\n\r\n",
            "bare LF": b"GET /healthz HTTP/1.1\n" + host.replace(b"\r", b"") + b"\n",
            "bare CR": b"GET /healthz HTTP/1.1\r\n" + host + b"X-A: b\rX-B: c\r\n\r\n",
            "NUL": b"GET /healthz HTTP/1.1\r\n" + host + b"X-A: \0\r\n\r\n",
            "unknown TE": b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: gzip\r\n\r\n",
            "bad chunk": b"POST /v1/node/register HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "not HTTP": b"hello\r\n\r\n",
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        }
        for name, data in rows.items():
            with self.subTest(name):
                got = statuses(talk(server.port, data))
                self.assertEqual(len(got), 1, f"{name}: one answer, then the connection closes: {got}")
                self.assertTrue(400 <= got[0] < 600 and got[0] != 500, f"{name}: {got}")
        self.ok(server.get("/healthz"))

    def test_limits_on_headers(self):
        server = self.start()
        host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
        many = b"".join(b"X-%d: y\r\n" % i for i in range(1000))
        for name, data, expected in (
                ("long header", b"GET /healthz HTTP/1.1\r\n" + host + b"X: " + b"y" * 200000 + b"\r\n\r\n", (431,)),
                ("many headers", b"GET /healthz HTTP/1.1\r\n" + host + many + b"\r\n", (431,)),
                ("long URI", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n" + host + b"\r\n", (414, 431))):
            with self.subTest(name):
                self.assertIn(statuses(talk(server.port, data))[0], expected)

    def test_pipelined_requests_are_answered_in_order(self):
        server = self.start()
        Node(server, "n1")
        host = f"Host: 127.0.0.1:{server.port}\r\n"
        text = "".join(f"GET {path} HTTP/1.1\r\n{host}\r\n" for path in
                       ("/healthz", "/v1/nodes/n1", "/v1/nodes/ghost", "/v1/node/jobs?node_id=n1&wait=100ms"))
        text += f"GET /v1/nothing HTTP/1.1\r\n{host}Connection: close\r\n\r\n"
        self.assertEqual(statuses(talk(server.port, text.encode())), [200, 200, 404, 200, 404])

    def test_keep_alive_and_close(self):
        server = self.start()
        with server.client() as client:
            for _ in range(50):
                self.assertEqual(client.get("/healthz").status, 200)
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.settimeout(5 * SLOW)
            sock.sendall(f"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            while sock.recv(65536):
                pass  # HTTP/1.0 without keep-alive is closed after its answer

    def test_chunked_body_and_expect(self):
        server = self.start()
        body = json.dumps({"node_id": "n1", "max_concurrent_jobs": 1, "semantic_langs": ["en"],
                           "nmt_pairs": [["en", "zh"]]}).encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7))
        head = f"POST /v1/node/register HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n".encode()
        got = talk(server.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        self.assertEqual(statuses(got), [200], got)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW) as sock:
            sock.sendall(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertTrue(sock.recv(100).startswith(b"HTTP/1.1 100"))
            sock.sendall(body)
            self.assertEqual(statuses(sock.recv(65536)), [200])

    def test_expect_is_refused_before_the_body_is_sent(self):
        server = self.start(body_bytes_max=100000)
        head = (f"POST /v1/dispatch/task HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
                "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        self.assertEqual(statuses(talk(server.port, head.encode())), [413])

    def test_a_slow_header_is_cut_off(self):
        server = self.start(header_timeout_ms=300)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
            got = b""
            while piece := sock.recv(65536):
                got += piece
            self.assertIn(statuses(got), ([], [408]))

    def test_a_slow_body_is_cut_off(self):
        server = self.start(body_timeout_ms=300)
        head = f"POST /v1/node/register HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100\r\n\r\n{{"
        self.assertIn(statuses(talk(server.port, head.encode(), 10, until_close=False)), ([], [408]))

    def test_an_idle_connection_is_closed(self):
        server = self.start(idle_timeout_ms=300)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW) as sock:
            sock.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            while sock.recv(65536):
                pass

    def test_idle_timeout_does_not_cut_a_wait(self):
        server = self.start(idle_timeout_ms=300)
        Node(server, "n1")
        begun = time.monotonic()
        self.ok(server.get("/v1/node/jobs?node_id=n1&wait=1s"))
        self.assertGreaterEqual(time.monotonic() - begun, 0.99)

    def test_connections_are_bounded(self):
        """Connections that have sent a request stay (without tokens that makes them known). A further one is refused or closed."""
        server = self.start(connections_max=5, loops=1)
        held = []
        for _ in range(5):
            held.append(sock := socket.create_connection(("127.0.0.1", server.port)))
            sock.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            self.assertTrue(sock.recv(65536).startswith(b"HTTP/1.1 200"))
        with socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW) as more:
            try:
                more.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
                self.assertIn(statuses(more.recv(65536)), ([], [503]))
            except ConnectionError:
                pass
        for sock in held:
            sock.close()
        eventually("a new connection is served", lambda: self.answers(server))

    @staticmethod
    def answers(server):
        try:
            return server.get("/healthz").status == 200
        except (OSError, http.client.HTTPException):
            return False
