#!/usr/bin/env python3
"""What callers notice while others attack: a polite caller dispatches or reads every 10 ms, first alone and then during each attack, while
ten nodes keep their sockets open.

    make attacks                        all of them, about two minutes
    make attacks ARGS="-k strangers"    those with "strangers" in their name
    make attacks ARGS="--seconds 20"    each longer

A second server, the twin, is not attacked and has a polite caller of its own. What attackers and other programs do to the machine rather
than to the server slows down both. Prints a line for each attack: p50 and p99 of the polite caller before and during it, p99 of the twin's
caller during it, the server's memory and the nodes' sockets. Exits 1 if one of them is out of bounds: p99 more than twice that of before
and that of the twin (below NOISE_MS it is noise), memory twice what it was, a socket lost, or a polite call that failed. Exits 2 if p99
could not be judged: the server's loops waited for a processor for more than STARVED_MAX of the time they wanted one, so other programs
disturbed the measurement (`starved`). Needs a machine that is otherwise idle."""
import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import selectors
import shutil
import socket
import sys
import tempfile
import time

import postgres
from harness import SLOW, Server, WsNode, eventually, percentile
from test_auth import TOKENS, bearer, digest
from test_bodies import memory
from test_strangers import Strangers

NOISE_MS = 5
STARVED_MAX = 0.5
EVERY_S = 0.010
NODES = 10
ATTACKERS = 2  # processes
DEPTH = 16  # requests that an attacker has under way on a connection
# What each attacker does in a second at most. All of the machine shares one loopback queue: when it overflows, packets are dropped, and
# every caller waits for retransmissions, whichever server it calls.
CALLS_MAX, PIECES_MAX = 10000, 1000
BODY = 8 * 1024 * 1024 - 1
READER, SENDER, NODE, POLITE = (bearer(token) for token in ("reader-5c1a", "sender-77d0", "worker-any-03bb", "operator-e2f6"))
QUOTAS = {"flooder-90c2": "rate=20/s,waiting=200", "sender-large-11d7": "rate=1/h"}
FLOODER, LARGE = QUOTAS
forked = multiprocessing.get_context("fork")


def request(method, path, headers, body=b"", length=None):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body) if length is None else length}",
             *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def dial(port):
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Pace:
    """Limits something to `most` a second."""

    def __init__(self, most):
        self.each = 1 / most
        self.due = time.monotonic()

    def __call__(self, count=1):
        self.due = max(self.due + count * self.each, time.monotonic() - 0.1)
        time.sleep(max(0, self.due - time.monotonic()))


# --- attacks: each runs in its own processes until it is killed, and counts what it did ---


def flood(port, count, message, connections=1):
    """Sends the same request over and over, on `connections` connections at once."""
    events = selectors.DefaultSelector()
    pace = Pace(CALLS_MAX)

    def begin():
        sock = dial(port)
        events.register(sock, selectors.EVENT_READ, [DEPTH])  # how many answers are outstanding
        sock.sendall(message * DEPTH)

    for _ in range(connections):
        begin()
    while True:
        for key, _ in events.select():
            try:
                got = key.fileobj.recv(1 << 20)
                if not got:
                    raise ConnectionError
                answers = got.count(b"HTTP/1.1 ")
                count.value += answers
                key.data[0] -= answers
                if key.data[0] <= 0:
                    pace(DEPTH)
                    key.data[0] += DEPTH
                    key.fileobj.sendall(message * DEPTH)
            except OSError:
                events.unregister(key.fileobj)
                key.fileobj.close()
                with contextlib.suppress(OSError):
                    begin()


def bodies(port, count, head, connections=40):
    """Sends a head and as much of a body as the server takes, on many connections at once."""
    events = selectors.DefaultSelector()
    piece = b" " * 65536
    pace = Pace(PIECES_MAX)

    def begin():
        pace()
        sock = dial(port)
        sock.sendall(head)
        sock.setblocking(False)
        events.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        count.value += 1

    for _ in range(connections):
        begin()
    while True:
        for key, ready in events.select():
            try:
                if ready & selectors.EVENT_READ and not key.fileobj.recv(65536):
                    raise ConnectionError
                if ready & selectors.EVENT_WRITE:
                    pace()
                    key.fileobj.send(piece)
            except BlockingIOError:
                continue
            except OSError:
                events.unregister(key.fileobj)
                key.fileobj.close()
                with contextlib.suppress(OSError):
                    begin()


def strangers(port, count, connections=300):
    """Opens connections that send nothing, and opens new ones when they are closed."""
    crowd = Strangers(port, connections)
    pace = Pace(PIECES_MAX)
    while True:
        crowd.again()
        pace(crowd.ended - count.value + 1)
        count.value = crowd.ended


def unread(port, count, message, connections=20):
    """Requests the longest answers there are, again and again, and does not read them."""
    while True:
        socks = []
        for _ in range(connections):
            with contextlib.suppress(OSError):
                sock = dial(port)
                sock.sendall(message * 4)
                socks.append(sock)
                count.value += 1
        time.sleep(2)
        for sock in socks:
            sock.close()


def cursors(rig):
    return flood, request("GET", "/v1/deployments?cursor=%ff", READER)


def large_bodies(rig):
    return bodies, request("POST", "/v1/dispatch/batch", {}, length=BODY + 1)


def refused(rig):
    return flood, request("POST", "/v1/nodes/n0/drain", READER, b"{}")


def silent(rig):
    return (strangers,)


def submissions(rig):
    return flood, request("POST", "/v1/dispatch/task", bearer(FLOODER), json.dumps({"type": "flood", "queue_ms": 600000}).encode())


def large_submissions(rig):
    """The largest bodies there are, from a token that is over its rate."""
    return bodies, request("POST", "/v1/dispatch/batch", bearer(LARGE), length=BODY + 1)


def lists(rig):
    rig.fill()
    return flood, request("GET", "/v1/jobs?limit=1000", READER), 20


def lists_unread(rig):
    rig.fill()
    return unread, request("GET", "/v1/jobs?limit=1000", READER)


# name: (how it is prepared, settings of the server)
ATTACKS = {
    "bad cursors on PostgreSQL": (cursors, {"database": True}),
    "large bodies without a token": (large_bodies, {}),
    "refused calls": (refused, {}),
    "silent strangers": (silent, {"descriptors": 300}),
    "submissions over a quota": (submissions, {}),
    "large bodies over a quota": (large_submissions, {}),
    "huge lists": (lists, {}),
    "huge lists, not read": (lists_unread, {}),
}


# --- the polite caller ---

WARM, BEFORE, PAUSE, DURING, OVER = range(5)


def polite(port, phase, calls, results):
    """Makes one call every 10 ms, each kind in turn; sends (phase, ms, good) of each through `results`."""
    connection, found, number = None, [], 0
    due = time.monotonic()
    while phase.value != OVER:
        due = max(due + EVERY_S, time.monotonic() - EVERY_S)
        time.sleep(max(0, due - time.monotonic()))
        method, path, body, headers = calls[number % len(calls)]
        number += 1
        now, begun = phase.value, time.monotonic()
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            good = answer.status < 300
        except (OSError, http.client.HTTPException):
            connection, good = None, False
        found.append((now, (time.monotonic() - begun) * 1000, good))
    results.send(found)


class Rig:
    """A server with tokens and nodes, in its own directory."""

    def __init__(self, database=False, **settings):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="berth-attacks-"))
        self.postgres = postgres.Postgres(self.dir) if database else None
        self.processes = []
        tokens = [{"name": token.rsplit("-", 1)[0], "sha256": digest(token), "scopes": scopes, "format": 2,
                   **({"node_id": node} if node else {})} for token, (scopes, node) in TOKENS.items()]
        tokens += [{"name": token, "sha256": digest(token), "scopes": ["submit"], "quota": quota, "format": 2} for token, quota in QUOTAS.items()]
        (self.dir / "server.yaml").write_text(json.dumps({"tokens": tokens, **({"database": self.postgres.url} if database else {})}))
        self.server = Server(self.dir / "data", self.dir, config=self.dir / "server.yaml", reservation_ttl_ms=600000, **settings)
        self.nodes = [WsNode(self.server, f"n{i}", headers=NODE, max_concurrent_jobs=100000, allowed_types=["dev"]) for i in range(NODES)]
        self.calls = [("POST", "/v1/dispatch/f2f", json.dumps({"src_lang": "en", "tgt_lang": "zh"}), POLITE),
                      ("GET", "/v1/nodes?limit=10", None, POLITE)]
        if database:
            self.calls.append(("POST", "/v1/deployments/renew", json.dumps({"node_id": "n0"}), NODE))

    def fill(self):
        """Adds jobs with large payloads, for lists to show."""
        with self.server.client() as client:
            for _ in range(300):
                answer = client.post("/v1/dispatch/task", {"type": "dev", "payload": {"text": "x" * 100000}}, SENDER)
                assert answer.status == 200, answer

    def run(self, target, *args):
        process = forked.Process(target=target, args=args, daemon=True)
        process.start()
        self.processes.append(process)
        return process

    def sockets(self):
        """How many nodes still get an answer on their socket."""
        def alive(node):
            try:
                return "ok" in str(node.ask("heartbeat", node_id=node.id, health="ready"))
            except Exception:
                return False

        return sum(alive(node) for node in self.nodes)

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.close()
        self.server.kill()
        if self.postgres:
            self.postgres.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def attacker(count, target, *args):
    """Runs `target` with the lowest scheduling class, so that it gets only idle processor time: a real attacker has a machine of its
    own."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    target(*args[:1], count, *args[1:])


def processor(server):
    """(ns that the server's loops ran, ns that they waited for a processor) so far."""
    tasks = [task for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir() if (task / "comm").read_text().startswith("berth-loop")]
    figures = [tuple(map(int, (task / "schedstat").read_text().split()[:2])) for task in tasks]
    return [sum(column) for column in zip(*figures)]


def most_memory(server, seconds):
    """The largest resident memory the server had within `seconds`."""
    until, most = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        most = max(most, memory(server, "VmRSS"))
        time.sleep(0.02)
    return most


def percentiles(found, phase):
    times = [ms for when, ms, _ in found if when == phase]
    return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "failed": sum(not good for when, _, good in found if when == phase)}


def measure(name, seconds):
    prepare, settings = ATTACKS[name]
    with contextlib.ExitStack() as ends:
        rig, twin = (ends.enter_context(contextlib.closing(Rig(**settings))) for _ in range(2))
        target, *message = prepare(rig)
        phase = forked.Value("i", WARM)
        pipes = [forked.Pipe(False) for _ in (rig, twin)]
        for one, (_, theirs) in zip((rig, twin), pipes):
            one.run(polite, one.server.port, phase, one.calls, theirs)
        time.sleep(1)
        phase.value = BEFORE
        before = {"memory": most_memory(rig.server, seconds), "sockets": rig.sockets()}
        phase.value = PAUSE
        counts = [forked.Value("q", 0) for _ in range(ATTACKERS)]
        attackers = [rig.run(attacker, count, target, rig.server.port, *message) for count in counts]
        eventually("every attacker has done something", lambda: all(count.value > 0 for count in counts), 60)
        begun, since = sum(count.value for count in counts), time.monotonic()
        used = processor(rig.server)
        phase.value = DURING
        during = {"memory": most_memory(rig.server, seconds), "sockets": rig.sockets()}
        phase.value = OVER
        ran, waited = (now - then for now, then in zip(processor(rig.server), used))
        during["starved"] = waited / max(1, ran + waited)
        during["rate"] = (sum(count.value for count in counts) - begun) / (time.monotonic() - since)
        assert all(one.is_alive() for one in attackers), "an attacker process ended by itself"
        found, others = (ours.recv() for ours, _ in pipes)
        before.update(percentiles(found, BEFORE))
        during.update(percentiles(found, DURING), twin=percentiles(others, DURING))
        return before, during


def verdict(before, during):
    wrong = []
    slow = during["p99"] > max(2 * before["p99"], 2 * during["twin"]["p99"], NOISE_MS)
    if slow and during["starved"] <= STARVED_MAX:
        wrong.append("p99")
    if during["memory"] >= 2 * before["memory"]:
        wrong.append("memory")
    if during["sockets"] < before["sockets"] or before["sockets"] < NODES:
        wrong.append("sockets")
    if during["failed"] > during["twin"]["failed"]:
        wrong.append(f"{during['failed']} calls failed")
    return wrong, slow and during["starved"] > STARVED_MAX


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", metavar="TEXT", default="", help="attacks with TEXT in their name")
    parser.add_argument("--seconds", type=float, default=6 * SLOW, help="before, and during, each attack")
    options = parser.parse_args()
    mib = 1024 * 1024
    bad = unjudged = False

    print(f"{'attack':30} {'a second':>9} {'p50 ms':>13} {'p99 ms':>15} {'twin':>7} {'starved':>8} {'memory MiB':>15} {'sockets':>9}   verdict")
    for name in (one for one in ATTACKS if options.k in one):
        before, during = measure(name, options.seconds)
        wrong, unknown = verdict(before, during)
        bad |= bool(wrong)
        unjudged |= unknown
        print(f"{name:30} {during['rate']:9.0f} {before['p50']:5.2f} > {during['p50']:5.2f} {before['p99']:6.2f} > {during['p99']:6.2f}"
              f" {during['twin']['p99']:7.2f} {100 * during['starved']:6.0f} % {before['memory'] / mib:6.1f} > {during['memory'] / mib:6.1f} {before['sockets']:4} > {during['sockets']:2}"
              f"   {', '.join(wrong + ['p99 not judged'] * unknown) or 'ok'}", flush=True)
    sys.exit(1 if bad else 2 if unjudged else 0)


if __name__ == "__main__":
    main()
