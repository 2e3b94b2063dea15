"""Callers without a token open connections and keep them: callers with a token are served all the same."""
import contextlib
import selectors
import socket

import wsclient
from harness import SLOW, Client, WsNode, eventually
from test_auth import ADMIN, AuthCase, bearer

WORKER = bearer("worker-any-03bb")


class Strangers:
    """Connections that send nothing. again() replaces those that were closed."""

    def __init__(self, port, count):
        self.port = port
        self.ended = 0
        self.events = selectors.DefaultSelector()
        for _ in range(count):
            self.dial()

    def dial(self):
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30 * SLOW)
        sock.setblocking(False)
        self.events.register(sock, selectors.EVENT_READ)

    def again(self):
        for key, _ in self.events.select(0):
            try:
                if key.fileobj.recv(4096):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            self.events.unregister(key.fileobj)
            key.fileobj.close()
            self.ended += 1
            self.dial()

    def close(self):
        for key in list(self.events.get_map().values()):
            key.fileobj.close()
        self.events.close()


class Crowd(AuthCase):
    def alive(self, node):
        """Whether the server answers on the node's socket."""
        try:
            return "ok" in str(node.ask("heartbeat", node_id=node.id, health="ready"))
        except (wsclient.Closed, OSError):
            return False

    def settle(self, strangers):
        """Waits until the strangers fill the server, and many of their connections were replaced."""
        def enough():
            strangers.again()
            return strangers.ended > 200

        eventually("200 connections of strangers were closed", enough, 60)

    def test_nodes_keep_their_sockets(self):
        """With far more strangers than descriptors no node loses its socket; a node that reconnects succeeds at its first try, and so does
        every caller with a token."""
        server = self.guarded(descriptors=300, loops=2)
        nodes = [WsNode(server, f"n{i}", headers=WORKER) for i in range(10)]
        with contextlib.closing(Strangers(server.port, 600)) as strangers:
            self.settle(strangers)
            self.assertEqual([node.id for node in nodes if not self.alive(node)], [])
            for node in nodes:
                strangers.again()
                node.close()
                back = WsNode(server, node.id, headers=WORKER)
                self.addCleanup(back.close)
                self.assertTrue(self.alive(back), node.id)
            for _ in range(20):
                strangers.again()
                self.ok(server.get("/v1/nodes", **bearer("reader-5c1a")))
        self.assertIn("event=server.connections_fewer", server.log)
        server.token = ADMIN
        self.assertGreater(server.metrics()['berth_connections_dropped_total{reason="unknown"}'], 200)

    def test_of_one_address_only_so_many(self):
        server = self.guarded(loops=1, connections_per_peer_max=20)
        with Client(server.port) as client:
            self.assertEqual(client.get("/v1/nodes", **bearer(ADMIN)).status, 200)
            with contextlib.closing(Strangers(server.port, 100)) as strangers:
                self.settle(strangers)
                server.token = ADMIN
                self.assertLess(server.metrics()["berth_connections"], 40)
                self.assertEqual(client.get("/v1/nodes", **bearer(ADMIN)).status, 200, "the connection of a caller with a token must stay")

    def test_who_is_refused_does_not_stay(self):
        server = self.guarded()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30 * SLOW) as sock:
            sock.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            got = b""
            while piece := sock.recv(65536):
                got += piece
        self.assertTrue(got.startswith(b"HTTP/1.1 401"), got)
        self.assertIn(b"Connection: close", got)

    def test_too_few_descriptors_are_told_at_the_start(self):
        with self.assertRaises(AssertionError) as died:
            self.guarded(descriptors=100, loops=2)
        self.assertIn("100 descriptors are too few for 2 loops", str(died.exception))
