"""Sessions do not slow each other down: 200 at once on a real Redis, each with a client on its own connection and a node on its own
WebSocket. The cases count instead of measuring time: which sessions make progress, and next to which others."""
import json
import pathlib
import random
import selectors
import socket

import wsclient
from harness import SLOW, Case, Client, WsNode, eventually, tags
from redis import Redis

COUNT = 200
# The nodes send no heartbeats, some hold what they got, and the machine may be busy: nothing may time out.
PATIENT = {"heartbeat_stale_ms": "off", "view_drop_ms": 600000, "ping_ms": 120000, "reservation_ttl_ms": 120000,
           "body_timeout_ms": 120000, "header_timeout_ms": 120000, "store_call_ms": 5000}


class Session:
    def __init__(self, number, at, node_at, slots=4):
        self.id, self.ended, self.open = f"s{number}", 0, set()
        self.node = WsNode(node_at, f"n{number}", max_concurrent_jobs=slots)
        self.client = Client(at.port)
        self.client.connection.connect()

    def ask(self):
        """Sends a dispatch; its answer is read later."""
        body = {"session_id": self.id, "src_lang": "en", "tgt_lang": "zh", "audio_ref": "x",
                "options": {"preferred_node_id": self.node.id, "strict": True}}
        self.client.connection.request("POST", "/v1/dispatch/f2f", json.dumps(body), {"Content-Type": "application/json"})

    def answer(self):
        reply = self.client.connection.getresponse()
        text = reply.read()
        assert reply.status == 200, f"{self.id}: {reply.status} {text}"
        placed = json.loads(text)
        assert placed["node_id"] == self.node.id, text
        return placed["job_id"]

    def say(self, msg, job):
        """Sends a message of the node; its reply is read later."""
        self.node.send(msg, id=int(msg == "done"), job_id=job["job_id"], attempt_id=job["attempt_id"], status="ok")

    def said(self, msg):
        reply = self.node.expect("reply", re=int(msg == "done"))
        assert reply.get("ok") and not reply.get("duplicate"), f"{self.id}: {msg} {reply}"

    def life(self):
        """A whole job: all steps, one after the other."""
        self.ask()
        self.answer()
        job = self.node.expect("job")
        for msg in ("ack", "done"):
            self.say(msg, job)
            self.said(msg)
        self.ended += 1

    def close(self):
        self.client.close()
        self.node.socket.drop()


class Crowd:
    """Every session dispatches again when its job has ended, until `lives` jobs have ended in all. Each step is made as soon as it is
    possible."""

    def __init__(self, sessions):
        self.poll = selectors.DefaultSelector()
        for session in sessions:
            self.poll.register(session.client.connection.sock, selectors.EVENT_READ, (session, self.answered))
            self.poll.register(session.node.socket.socket, selectors.EVENT_READ, (session, self.heard))
        self.sessions, self.ended, self.steps = sessions, 0, {}

    def step(self, session, what):
        """Once the client has its answer and the store has the end, the job is over."""
        self.steps.setdefault(session, set()).add(what)
        if len(self.steps[session]) == 2:
            self.steps[session].clear()
            session.ended += 1
            self.ended += 1
            session.ask()

    def answered(self, session):
        session.answer()
        self.step(session, "answered")

    def heard(self, session):
        while True:
            message = json.loads(session.node.socket.recv())
            if message["msg"] == "job":
                session.job = message
                session.say("ack", message)
            elif message["msg"] == "reply":
                assert message.get("ok"), message
                if message["re"]:
                    self.step(session, "ended")
                else:
                    session.say("done", session.job)
            if not session.node.socket.bytes:
                return

    def run(self, lives):
        for session in self.sessions:
            session.ask()
        while self.ended < lives:
            ready = self.poll.select(20 * SLOW)
            assert ready, f"nothing moves after {self.ended} of {lives}"
            for key, _ in ready:
                session, take = key.data
                take(session)
        self.poll.close()


def unsent(port, other_port):
    """How many bytes wait in the server's socket because its peer does not read, from the kernel's table."""
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if [int(words[at].split(":")[1], 16) for at in (1, 2)] == [port, other_port]:
            return int(words[4].split(":")[0], 16)
    raise AssertionError("the connection does not exist")


@tags("load")
class Sessions(Case):
    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)

    def instances(self, count, **more):
        return [self.start(f"i{i}", store=self.redis.url, **PATIENT, **more) for i in range(count)]

    def sessions(self, servers, count=COUNT):
        """Clients and nodes at all instances: in some sessions both use the same instance, in others not."""
        made = [Session(i, servers[i % len(servers)], servers[i // len(servers) % len(servers)]) for i in range(count)]
        for session in made:
            self.addCleanup(session.close)
        for server in servers:
            eventually("the server knows every node", lambda: len(server.get("/v1/nodes?limit=1000").json["nodes"]) >= count)
        return made

    def all_free(self, server):
        def free():
            nodes = server.get("/v1/nodes?limit=1000").json["nodes"]
            return all(node["reserved"] == node["running"] == 0 for node in nodes)

        eventually("no slot is taken", free)

    def met(self, what, value, goal, met):
        self.gate(what, value, goal, met, of="sessions")

    @tags("threads")
    def test_all_move_in_every_round(self):
        """Each session has two jobs under way before the first job of any session is acknowledged."""
        servers = self.instances(2)
        sessions = self.sessions(servers)
        rounds, moved = 4, []
        for turn in range(rounds):
            for _ in range(2):
                for session in sessions:
                    session.ask()
                for session in sessions:
                    session.open.add(session.answer())
            moved.append(sum(len(session.open) == 2 for session in sessions))
            for _ in range(2):
                jobs = {session: session.node.expect("job") for session in sessions}
                for msg in ("ack", "done"):
                    random.Random(turn).shuffle(sessions)
                    for session in sessions:
                        session.say(msg, jobs[session])
                    for session in reversed(sessions):
                        session.said(msg)
                for session, job in jobs.items():
                    session.open.remove(job["job_id"])
        self.all_free(servers[0])
        self.met(f"{COUNT} sessions, two jobs each before the first is acknowledged",
                 f"{rounds} rounds, at least {min(moved)} had both", f"all {COUNT}", min(moved) == COUNT)
        self.assertEqual(self.missed, [])

    def test_nobody_is_left_behind(self):
        """All sessions run as fast as they can, until a number of jobs has ended in all. A session's share is compared only with sessions
        whose client and node use the same instances, because the machine decides which instance gets more of the processors."""
        servers = self.instances(2)
        sessions = self.sessions(servers)
        Crowd(sessions).run(20 * COUNT)
        ended = [session.ended for session in sessions]
        alike = [[ended[i] for i in range(COUNT) if (i % 2, i // 2 % 2) == way] for way in ((0, 0), (0, 1), (1, 0), (1, 1))]
        self.met(f"{COUNT} sessions as fast as they can", f"{sum(ended)} lives, each {min(ended)} to {max(ended)}",
                 "at the same instances least >= half of the most", all(min(some) * 2 >= max(some) for some in alike))
        self.assertEqual(self.missed, [])

    @tags("threads")
    def test_one_moves_while_all_others_hold_theirs(self):
        server, = self.instances(1, loops=1)
        sessions = self.sessions([server])
        for session in sessions[1:]:
            session.ask()
        for session in sessions[1:]:
            session.answer()
        for _ in range(50):
            sessions[0].life()
        nodes = server.get("/v1/nodes?limit=1000").json["nodes"]
        held = sum(node["reserved"] for node in nodes)
        self.met(f"one session while {COUNT - 1} hold theirs", f"{sessions[0].ended} lives, {held} still held",
                 f"50 lives, {COUNT - 1} held", (sessions[0].ended, held) == (50, COUNT - 1))
        for session in sessions[1:]:
            job = session.node.expect("job")
            for msg in ("ack", "done"):
                session.say(msg, job)
                session.said(msg)
        self.all_free(server)
        self.assertEqual(self.missed, [])

    # Clients and nodes that misbehave share one loop with those that do not.

    def fill(self, server, port, more):
        """Calls more() until the server's socket to that port takes no more: what comes afterwards waits inside the server."""
        taken = [0]
        with server.client() as other:
            while len(taken) < 6 or len(set(taken[-6:])) > 1 or not taken[-1]:
                more(other)
                for _ in range(2):  # after two requests the only loop has run through all its work
                    self.ok(other.get("/healthz"))
                taken.append(unsent(server.port, port))
        return taken[-1]

    def deaf_node(self, server):
        """A node that stopped reading; its port, and the jobs that were sent to it."""
        node = WsNode(server, "deaf", max_concurrent_jobs=1000, allowed_types=["deaf"])
        self.addCleanup(node.socket.drop)
        port = node.socket.socket.getsockname()[1]
        jobs = set()

        def more(client):
            answer = client.post("/v1/dispatch/task", {"type": "deaf", "payload": {"pad": "x" * 60000}})
            jobs.add(self.ok(answer)["job_id"])

        self.fill(server, port, more)
        return node, port, jobs

    def deaf_client(self, server):
        """A client that sends requests and reads no answer; how many it sent."""
        client = socket.create_connection(("127.0.0.1", server.port))
        self.addCleanup(client.close)
        asks = []

        def more(_):
            client.sendall(b"GET /v1/nodes?limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            asks.append(1)

        self.fill(server, client.getsockname()[1], more)
        return client, len(asks)

    def slow_client(self, server):
        """A client whose request arrives byte by byte; the rest of the request."""
        body = json.dumps({"session_id": "slow", "src_lang": "en", "tgt_lang": "zh", "audio_ref": "y" * 2000,
                           "options": {"preferred_node_id": "n0", "strict": True}}).encode()
        client = socket.create_connection(("127.0.0.1", server.port))
        self.addCleanup(client.close)
        client.sendall(b"POST /v1/dispatch/f2f HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body[:100])
        return client, body[100:]

    def slow_node(self, server):
        """A node whose frame arrives byte by byte; the rest of the frame."""
        node = WsNode(server, "slow", allowed_types=["slow"])
        self.addCleanup(node.socket.drop)
        text = json.dumps({"msg": "heartbeat", "id": 7, "node_id": "slow", "pad": "z" * 2000})
        whole = wsclient.frame(wsclient.TEXT, text.encode())
        node.socket.send_bytes(whole[:50])
        return node, whole[50:]

    def test_who_does_not_read_or_sends_slowly_holds_up_nobody(self):
        server, = self.instances(1, loops=1)
        sessions = self.sessions([server], COUNT - 4)
        node, port, jobs = self.deaf_node(server)
        client, asks = self.deaf_client(server)
        (slow, rest), (slow_node, more) = self.slow_client(server), self.slow_node(server)
        rounds = 5
        for turn in range(rounds):
            slow.sendall(rest[turn:turn + 1])
            slow_node.socket.send_bytes(more[turn:turn + 1])
            for session in sessions:
                session.ask()
            for session in sessions:
                session.answer()
            held = {session: session.node.expect("job") for session in sessions}
            for msg in ("ack", "done"):
                for session in sessions:
                    session.say(msg, held[session])
                for session in sessions:
                    session.said(msg)
        stuck = [unsent(server.port, port), unsent(server.port, client.getsockname()[1])]
        self.met("beside a node and a client that do not read, and two that send byte by byte",
                 f"{rounds} rounds of {len(sessions)} sessions, {stuck[0]} and {stuck[1]} bytes unread", "all, unread > 0",
                 min(stuck) > 0)
        # What waited was kept, and arrives now.
        self.assertEqual({node.expect("job")["job_id"] for _ in jobs}, jobs)
        client.settimeout(20 * SLOW)
        self.assertEqual(self.answers(client, asks), asks)
        slow.settimeout(20 * SLOW)
        slow.sendall(rest[rounds:])
        self.assertEqual(self.answers(slow, 1), 1)
        slow_node.socket.send_bytes(more[rounds:])
        slow_node.expect("reply", re=7)
        self.assertEqual(self.missed, [])

    @staticmethod
    def answers(client, count):
        """Reads until `count` answers 200 have arrived; how many did."""
        data = b""
        while data.count(b"HTTP/1.1 200 ") < count:
            piece = client.recv(1 << 20)
            if not piece:
                break
            data += piece
        return data.count(b"HTTP/1.1 200 ")
