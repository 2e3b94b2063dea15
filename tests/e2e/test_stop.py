"""A server is stopped while its store does not answer: every call that is under way then has an owner, and the sanitised build checks that
each of them is freed."""
import json
import pathlib
import re
import signal
import threading

from harness import Case, Node, WsNode, eventually
from redis import Redis
from relay import Relay
from wsclient import WebSocket


class HoldRelay(Relay):
    """Sits between an instance and Redis. From the first call that matches `until` on it passes nothing."""

    def __init__(self, port):
        super().__init__(port)
        self.until = None

    def passes(self, pair, data):
        if self.until and self.until.search(data):
            self.cut()
        return super().passes(pair, data)


def call_of(letter):
    """Matches the letter of a verb, as redis_wire.c writes it among the words of a call."""
    return re.compile(rb"\r\n" + letter.encode() + rb"\r\n")


class CallsUnderWay(Case):
    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.relay = HoldRelay(self.redis.port)
        self.addCleanup(self.relay.close)
        # No call is given up while the loops run.
        self.server = self.start(store=f"redis://127.0.0.1:{self.relay.port}/0", store_call_ms=60000, store_timeout_ms=60000, loops=2)
        self.node = Node(self.server, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        self.socket = WsNode(self.server, "w1", semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        self.client = WebSocket(self.server.port, "/v1/submit/connect")
        self.client.send(json.dumps({"msg": "submit", "job": {"src_lang": "fr", "tgt_lang": "de"}}))
        self.job = self.ok(self.task(self.server))
        self.ok(self.node.ack(self.job))
        self.ok(self.task(self.server, queue_ms=60000), 202)

    def asks(self, *words, **more):
        """A request that is answered after the stop, if at all."""
        def ask():
            try:
                self.server.client().call(*words, **more)
            except OSError:
                pass

        threading.Thread(target=ask, daemon=True).start()

    def threads(self):
        found = set()
        for path in pathlib.Path(f"/proc/{self.server.pid}/task").glob("*/comm"):
            try:
                found.add(path.read_text().strip())
            except OSError:
                pass  # it ended meanwhile
        return found

    def ends(self):
        """Stops the server with every kind of call under way, queued after the one that is held."""
        eventually("a call is held", lambda: not self.relay.open.is_set(), 30)
        self.asks("POST", "/v1/dispatch/task", {"type": "dev"})
        self.asks("POST", "/v1/dispatch/task", {"type": "dev", "queue_ms": 60000})
        self.asks("POST", "/v1/dispatch/f2f", {"src_lang": "fr", "tgt_lang": "de"})
        self.asks("POST", "/v1/job/done", {"job_id": self.job["job_id"], "attempt_id": 1, "node_id": "n1"})
        self.asks("POST", "/v1/node/heartbeat", {"node_id": "n1"})
        self.asks("POST", "/v1/node/register", {"node_id": "n2", "allowed_types": ["dev"]})
        self.asks("GET", "/v1/breakers")
        self.asks("GET", f"/v1/jobs/{self.job['job_id']}")
        self.asks("POST", f"/v1/jobs/{self.job['job_id']}/cancel")
        self.asks("PUT", "/v1/deployments/web", {"command": "true"})
        self.socket.send("heartbeat", node_id="w1")
        self.socket.send("done", id=7, job_id=self.job["job_id"], attempt_id=1)
        self.client.send(json.dumps({"msg": "submit", "job": {"type": "dev", "queue_ms": 60000}}))
        self.client.send(json.dumps({"msg": "attach", "job_id": self.job["job_id"]}))
        self.asks("GET", "/healthz")
        self.server.process.send_signal(signal.SIGTERM)
        eventually("the loops of the server have ended", lambda: not self.threads() & {"berth-loop-0", "berth-loop-1"}, 20)
        self.relay.close()
        self.assertEqual(self.server.stop(60), 0, self.server.log[-3000:])
        self.server.check_log()

    def test_a_look_at_the_lanes(self):
        self.relay.until = re.compile(rb"lanes\r\n")
        self.ends()

    def test_a_renewal_that_nobody_waits_for(self):
        self.relay.until = call_of("N")
        self.asks("POST", "/v1/node/heartbeat", {"node_id": "n1"})
        self.ends()

    def test_a_reservation(self):
        self.relay.until = re.compile(rb"w1")
        self.asks("POST", "/v1/dispatch/f2f", {"src_lang": "fr", "tgt_lang": "de"})
        self.ends()
