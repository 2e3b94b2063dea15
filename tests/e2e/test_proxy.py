"""Callers behind a proxy that the server trusts, and others that pretend to be."""
import contextlib
import http.client
import json
import socket

from harness import SLOW, berth, eventually
from test_auth import ADMIN, AuthCase, bearer

PROXY, OTHER = "127.0.0.1", "127.0.0.2"  # the addresses requests come from
WRONG = bearer("nobody-0000")


class ProxyCase(AuthCase):
    def call(self, server, path="/v1/jobs", method="GET", body=None, source=PROXY, headers=None, via=()):
        """A request from the address `source`, with an X-Forwarded-For line for each of `via`; (status, answer)."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * SLOW, source_address=(source, 0))
        with contextlib.closing(connection):
            connection.putrequest(method, path)
            for name, value in {**(headers or {}), "Content-Length": len(body or "")}.items():
                connection.putheader(name, str(value))
            for value in via:
                connection.putheader("X-Forwarded-For", value)
            connection.endheaders((body or "").encode())
            answer = connection.getresponse()
            return answer.status, answer.read()

    def proxied(self, proxies=PROXY, **settings):
        return self.guarded(loops=1, trusted_proxies=proxies, **settings)

    def peers(self, server, count):
        """The peers of refused calls in the audit, oldest first."""
        rows = eventually("all refused calls are in the audit", lambda: (found := self.ok(server.get("/v1/audit?kind=refused"))["audit"])
                          and len(found) >= count and found)
        return [row["peer"] for row in reversed(rows)]


class Caller(ProxyCase):
    def test_who_calls(self):
        """The caller is the last address that is no trusted proxy, if a trusted proxy wrote it down."""
        server = self.proxied(f"{PROXY},10.0.0.0/8,fd00::/8")
        rows = [(PROXY, ["203.0.113.9"], "203.0.113.9"),
                (PROXY, ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),  # the caller itself wrote the first one
                (PROXY, ["198.51.100.1", "203.0.113.9, 10.1.2.3"], "203.0.113.9"),  # lines are one list
                (PROXY, ["203.0.113.9, 10.1.2.3, fd00::7"], "203.0.113.9"),
                (PROXY, ["[2001:db8::7]:5123"], "2001:db8::7"),
                (PROXY, ["203.0.113.9:5123"], "203.0.113.9"),
                (PROXY, ["10.9.9.9, 10.1.2.3"], "10.9.9.9"),  # all are trusted: the request began there
                (PROXY, ["203.0.113.9, unknown, 10.1.2.3"], "10.1.2.3"),  # the trusted proxy names no address
                (PROXY, ["unknown"], PROXY), (PROXY, [""], PROXY), (PROXY, [], PROXY),
                (OTHER, ["203.0.113.9"], OTHER), (OTHER, [], OTHER)]
        for source, via, _ in rows:
            self.assertEqual(self.call(server, source=source, via=via, headers=WRONG)[0], 401)
        found = self.peers(server, len(rows))
        for (source, via, caller), peer in zip(rows, found, strict=True):
            own = caller in (PROXY, OTHER)
            self.assertEqual(peer.rsplit(":", 1)[0] if own else peer, caller, (source, via, peer))
        self.call(server, path="/healthz", via=["203.0.113.9"], headers={"X-Request-Id": "r-17"})
        self.assertRegex(server.log, r"event=request request_id=r-17 .*peer=203\.0\.113\.9 ")

    def test_without_the_setting_nobody_is_believed(self):
        server = self.guarded(loops=1)
        self.call(server, via=["203.0.113.9"], headers=WRONG)
        self.assertTrue(self.peers(server, 1)[0].startswith(f"{PROXY}:"))

    def test_wrong_tokens_are_their_callers(self):
        server = self.proxied(login_failures_max=3)
        for _ in range(3):
            self.assertEqual(self.call(server, via=["203.0.113.1"], headers=WRONG)[0], 401)
        self.assertEqual(self.call(server, via=["203.0.113.1"], headers=WRONG)[0], 429)
        self.assertEqual(self.call(server, via=["203.0.113.2"], headers=WRONG)[0], 401,
                         "another caller of the same proxy must not be limited")
        self.assertEqual(self.call(server, via=["203.0.113.1"], headers=bearer(ADMIN))[0], 200, "a right token must not be limited")
        for number in range(3):
            self.assertEqual(self.call(server, source=OTHER, via=[f"198.51.100.{number}"], headers=WRONG)[0], 401)
        self.assertEqual(self.call(server, source=OTHER, via=["198.51.100.9"], headers=WRONG)[0], 429,
                         "an untrusted address counts as one, whatever headers it sends")

    def stranger(self, server, caller):
        """A connection that has sent a request for this caller without a token."""
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW)
        self.addCleanup(sock.close)
        lines = ["GET /healthz HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *([f"X-Forwarded-For: {caller}"] if caller else [])]
        self.ask(sock, lines)
        return sock, lines

    def ask(self, sock, lines):
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        got = sock.recv(65536)
        while got and not got.endswith(b"}"):
            got += sock.recv(65536)
        self.assertTrue(got.startswith(b"HTTP/1.1 200"), got)

    def test_connections_are_their_callers(self):
        server = self.proxied(connections_per_peer_max=2)
        first, *others = [self.stranger(server, caller) for caller in ("203.0.113.1", "203.0.113.1", "203.0.113.2", "203.0.113.2",
                                                                       "203.0.113.3", None, "203.0.113.1")]
        self.assertEqual(first[0].recv(1), b"", "the oldest connection of the caller with too many is closed")
        for sock, lines in others:
            self.ask(sock, lines)  # the other callers' connections stay

    def test_a_connection_is_who_uses_it(self):
        server = self.proxied(connections_per_peer_max=2)
        shared, lines = self.stranger(server, "203.0.113.1")
        self.ask(shared, [*lines[:2], "X-Forwarded-For: 203.0.113.2"])
        for _ in range(3):
            self.stranger(server, "203.0.113.1")
        self.ask(shared, [*lines[:2], "X-Forwarded-For: 203.0.113.2"])


class Settings(ProxyCase):
    def test_a_bad_row_is_named(self):
        for rows, bad in ((["10.0.0.0/8", "10.0.0.0/33"], 'row 2, "10.0.0.0/33"'), (["proxy.example.net"], 'row 1, "proxy.example.net"')):
            self.config.write_text(json.dumps({"trusted_proxies": rows}))
            done = berth("server", "--config", self.config, "--listen", "127.0.0.1:0", "--data-dir", self.dir / "data")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("trusted_proxies", done.stderr)
            self.assertIn(bad, done.stderr)

    def test_live(self):
        server = self.guarded(loops=1)
        rows = json.loads(self.config.read_text())
        self.config.write_text(json.dumps({**rows, "trusted_proxies": [PROXY]}))
        server.process.send_signal(1)
        eventually("the new setting is logged", lambda: "event=server.reloaded changed=trusted_proxies" in server.log)
        self.call(server, via=["203.0.113.9"], headers=WRONG)
        self.assertEqual(self.peers(server, 1), ["203.0.113.9"])


class Clear(ProxyCase):
    def warned(self, server):
        return "event=server.in_the_clear" in server.log

    def test_a_proxy_that_says_https(self):
        server = self.proxied(listen="0.0.0.0:0", hosts="0.0.0.0")
        self.assertFalse(self.warned(server), "a proxy may be called over https, so there is no warning yet")
        secure = {**bearer(ADMIN), "X-Forwarded-Proto": "https"}
        self.assertEqual(self.call(server, via=["203.0.113.9"], headers=secure)[0], 200)
        self.assertEqual(self.call(server, headers=bearer(ADMIN))[0], 200)  # from this machine
        self.assertEqual(self.call(server, path="/healthz", via=["203.0.113.9"])[0], 200)  # without a token
        self.assertFalse(self.warned(server))
        for _ in range(3):
            self.assertEqual(self.call(server, via=["203.0.113.9"], headers={**bearer(ADMIN), "X-Forwarded-Proto": "https, http"})[0], 200)
        self.assertEqual(server.log.count("event=server.in_the_clear peer=203.0.113.9"), 1, "the warning must be logged once")
