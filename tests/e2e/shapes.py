#!/usr/bin/env python3
"""Nodes of different shapes run jobs with mixed needs and keys, while instances and nodes are killed (SIGKILL) and frozen (SIGSTOP) all the
time.

    make shapes                             a million jobs on three instances with Redis, then as many on the embedded store
    make shapes JOBS=50000 ARGS="--store redis --seed 3"

About ten nodes share a process, which is killed and frozen as a whole. Each process appends the runs of its nodes to a ledger: a line when
a run begins, after its ACK was accepted, and one when it ends, before DONE is sent. A line is in the file before the node goes on, so a
kill loses none. A checker, which shares nothing with the program, reads the ledgers in the order of time and adds up what every node, GPU
and key had at every moment.

When is a run over? For the checker it has what it was given until the first of these:
  - Its node writes that the run ended: by itself, or because of a `drop` or `cancel`.
  - Its process was killed. The killer notes the moment at which the process had ended, before a new one connects and lists no runs.
  - Its lease is over, as far as its node can know: 8/9 of the lease after the first ACK was sent, or after the last heartbeat (or hello)
    was sent whose reply renewed the leases. That is the node's part of "a job runs in one place at a time" in PROTOCOL.md, and what an
    agent's shims do even if the agent is frozen: the run of a frozen node ends at that moment. A node that wakes up later does not report
    the run. A node that was frozen for so long when its ACK was accepted does not begin the run. A renewal that arrives later is too late.
A run that has done its work while its node is frozen is not over: it keeps what it has until the node wakes up and writes the line, or
until its lease is over.

Counted, and each must be 0, else it exits 1:
  over      moments at which a node had more of a resource in use than it has (slots and each GPU too), or a key more in flight than its
            limit
  rates     starts beyond what a key's rate allows, by the jobs' dispatch times
  places    runs that began while another run of the same job was not over
  gpus      runs that were given GPUs their node does not have, or not as many as they need
  lost      accepted jobs that the store does not have
  undone    accepted jobs that did not end DONE, or that never ran
  twice     submissions that became two jobs, or whose answers contradict each other
  strange   jobs in the store for which no client got an answer
  left      slots, resources and keys in use, or jobs waiting, 1 s after the last job ended and every lease with it (and one more second,
            in which instances learn of each other's changes)
  broken    invariants, by the servers' own count and logs; lines of a ledger that make no sense"""
import argparse
import collections
import heapq
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time

from harness import SLOW, Client, Server
from kills import RETENTION, forked, frame, messages
from redis import Redis, free_port
from test_shapes import GPU_MB, LIMITS, RATE, demand_of, shapes_of

INSTANCES = 3
CREW = 10  # nodes in a process
SLOTS = (3, 6, 9)
LEASE_MS = 3000
BEAT_NS = 600 * 10**6
SILENT_NS = int(1.5e9 * SLOW)  # a server that does not answer for so long is taken for frozen, and another instance is tried
# a run takes up to RUN_NS; one in a hundred up to LONG_NS, so that it shows when a slot is freed too early
RUN_NS, LONG_NS = 20 * 10**6, 1500 * 10**6
DAWDLE_NS = 300 * 10**6  # some nodes send their hello late: an instance that is frozen meanwhile reads it when it is long out of date
TICK_NS = 25 * 10**6  # how often a process looks at its sockets: messages in batches cost less, and slots are held longer
OUTSTANDING = 1500
SPREAD, SLOW_SPREAD = 25, 8  # how many keys one of test_shapes becomes; fewer where each of them allows fewer jobs a second
FOREVER = 1 << 62
FREE_S = 2  # what is in use later than this is left over: one second, and one more in which instances learn of each other's changes
SETTINGS = {"loops": 1, "queue_max": 1000000, "queue_total_max": 1000000, "reservation_ttl_ms": 3000, "running_lease_ms": LEASE_MS,
            "heartbeat_ms": 1000, "store_timeout_ms": int(5000 * SLOW), "store_call_ms": int(5000 * SLOW), **RETENTION}
COUNTED = ("over", "rates", "places", "gpus", "lost", "undone", "twice", "strange", "left", "broken")


def spread(keys, dice):
    """Replaces each key of test_shapes by one of several with the same limit; each is counted on its own."""
    return [f"{key}@{dice.randrange(SLOW_SPREAD if key == RATE[0] else SPREAD)}" for key in keys]


def limits():
    """The rules of the keys, which are set at the start."""
    rules = {key if key.endswith("*") else f"{key}@*": {"concurrency": most} for key, most in LIMITS.items()}
    return {**rules, f"{RATE[0]}@*": {"rate": f"{RATE[1]}/{RATE[2]:g}s"}}


def limit_of(key):
    """How many jobs with this key may run at once; None: any number."""
    base = key.partition("@")[0]
    return LIMITS.get(base, LIMITS["tenant:*"] if base.startswith("tenant:") else None)


class Link:
    """A WebSocket that never blocks. It breaks if the other side does not take all of a message at once."""

    def __init__(self, port, path):
        self.data, self.is_open, self.since = b"", False, time.monotonic_ns()
        self.sock = socket.create_connection(("127.0.0.1", port), 0.5)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                  "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())

    def send(self, data):
        if self.sock.send(data) != len(data):
            raise ConnectionError("it takes no more")

    def take(self):
        """The messages that have arrived; raises if the connection broke. Sets `is_open` once the handshake was answered."""
        piece = self.sock.recv(1 << 20)
        if not piece:
            raise ConnectionError("gone")
        self.data += piece
        if not self.is_open:
            if b"\r\n\r\n" not in self.data:
                return []
            head, self.data = self.data.split(b"\r\n\r\n", 1)
            if b" 101 " not in head.split(b"\r\n")[0] + b" ":
                raise ConnectionError(head)
            self.is_open = True
        found, self.data = messages(self.data)
        return found


def tick(loop):
    """Sleeps until it is time for the next turn."""
    now = time.monotonic_ns()
    if now < loop.ticked + TICK_NS:
        time.sleep((loop.ticked + TICK_NS - now) / 1e9)
        now = time.monotonic_ns()
    loop.ticked = now


class Party:
    """The owner of a link, which is opened again after it broke."""

    link, again_ns = None, 0

    def dial(self, waits, port, path):
        try:
            self.link = Link(port, path)
            waits.register(self.link.sock, selectors.EVENT_READ, self)
        except OSError:
            self.again_ns = time.monotonic_ns() + 40 * 10**6

    def hang_up(self, waits):
        waits.unregister(self.link.sock)
        self.link.sock.close()
        self.link = None
        self.again_ns = time.monotonic_ns() + 10 * 10**6


class Ack:
    """An ACK that was sent and not answered. Each job message of the same attempt may have assigned something else."""

    def __init__(self):
        self.sent_ns = time.monotonic_ns()
        self.takes = {}  # send_id: what that job message assigned
        self.last = None
        self.again = False


class Node(Party):
    """Node `name` with `slots` and a shape. It begins each attempt once, and repeats its DONE until the server accepts it."""

    def __init__(self, crew, number, slots, shape):
        self.crew, self.name = crew, f"n{number}"
        self.facts = {"protocol": 1, "node_id": self.name, "health": "ready", "allowed_types": ["dev"], "max_concurrent_jobs": slots,
                      "resources": shape, **({"takes_jobs": True, "takes_accepted": True} if number % 5 else {})}
        self.tells_send = number % 2 == 0  # the other nodes do not name the send in their ACK
        self.running = {}  # (job, attempt): when the lease is over
        self.reports = {}  # (job, attempt): whether DONE must be sent again
        self.acks = {}
        self.begun = set()
        self.number = 0
        self.beat_ns = 0

    def opened(self):
        self.said, self.beats, self.greeted = {}, {}, False
        self.beat_ns = time.monotonic_ns() + (int(self.crew.dice.random() * DAWDLE_NS) if self.crew.dice.random() < 0.2 else 0)

    def say(self, what, key, send_id=None):
        self.number += 1
        self.said[self.number] = (what, key, send_id)
        more = ',"status":"ok"' if what == "done" else f',"send_id":{json.dumps(send_id)}' if send_id is not None else ""
        return frame(f'{{"msg":"{what}","id":{self.number},"job_id":"{key[0]}","attempt_id":{key[1]}{more}}}')

    def say_ack(self, key):
        return self.say("ack", key, self.acks[key].last if self.tells_send else None)

    def beat(self, msg, **facts):
        """Sends a heartbeat or hello. Attempts whose DONE was not accepted yet are still listed: no other node has them yet."""
        now = time.monotonic_ns()
        self.beat_ns = now + BEAT_NS
        self.number += 1
        keys = [key for key, until in self.running.items() if now < until]
        self.beats[self.number] = (now, keys)
        runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in [*keys, *self.reports]]
        self.link.send(frame(json.dumps({"msg": msg, "id": self.number, "node_id": self.name, **facts, "running_jobs": runs})))

    def due(self, now):
        """Sends what is due; False if the server seems to be frozen."""
        if not self.link.is_open or any(now - sent > SILENT_NS for sent, _ in self.beats.values()):
            return now - self.link.since < SILENT_NS
        if not self.greeted:
            self.greeted = True
            self.beat("hello", **self.facts)
            return True
        if self.crew.dice.random() < 0.02:
            return False  # simulates a lost connection
        again = [key for key, wanted in self.reports.items() if wanted]
        out = [self.say("done", key) for key in again]
        self.reports.update(dict.fromkeys(again, False))
        for key, ack in self.acks.items():
            if ack.again:
                ack.again = False
                out.append(self.say_ack(key))
        self.beat("heartbeat")
        if out:
            self.link.send(b"".join(out))
        return True

    def hear(self):
        was_open = self.link.is_open
        found, out = self.link.take(), []
        if self.link.is_open and not was_open:
            self.opened()
        for message in found:
            kind = message["msg"]
            if kind == "accepted":
                lease_ms = message.get("lease_ms")
                for number in [number for number in self.said if number <= message["upto"]]:
                    self.believed(*self.said.pop(number), lease_ms)
            elif kind == "job" or kind == "jobs":
                for job in message.get("jobs", [message]):
                    self.given(job, out)
            elif kind == "reply":
                self.answered(message)
            elif kind == "drop" or kind == "cancel":
                key = (message["job_id"], message["attempt_id"])
                self.reports.pop(key, None)
                self.end(key)
            elif kind == "welcome":
                out += [self.say("done", key) for key in self.reports]
                out += [self.say_ack(key) for key in self.acks]
        self.crew.flush()
        if out:
            self.link.send(b"".join(out))

    def given(self, job, out):
        key, dice = (job["job_id"], job["attempt_id"]), self.crew.dice.random()
        if key in self.begun or dice < 0.002:
            return  # some messages are lost, so their reservations run out
        ack = self.acks.setdefault(key, Ack())
        ack.last = job["send_id"]
        ack.takes[ack.last] = {name: job[name] for name in ("needs", "gpus", "keys") if name in job}
        out += [self.say_ack(key) for _ in range(2 if dice > 0.98 else 1)]

    def answered(self, message):
        number = message.get("re")
        if number in self.beats:
            sent, keys = self.beats.pop(number)
            if message.get("running_lease_ms"):
                self.renewed(keys, sent + message["running_lease_ms"] * 10**6 * 8 // 9)
        elif number in self.said:
            what, key, send_id = self.said.pop(number)
            if message.get("ok"):
                self.believed(what, key, send_id, message.get("lease_ms"))
            elif message["status"] not in (404, 409):  # 5xx: sent again with the next heartbeat
                if what == "done" and key in self.reports:
                    self.reports[key] = True
                elif what == "ack" and key in self.acks:
                    self.acks[key].again = True
            elif what == "done":
                self.reports.pop(key, None)
            elif key in self.acks and send_id in (None, self.acks[key].last):
                del self.acks[key]

    def renewed(self, keys, until):
        now = time.monotonic_ns()
        keys = [key for key in keys if now < self.running.get(key, 0) < until]
        if keys:
            self.running.update(dict.fromkeys(keys, until))
            self.crew.lines.append(f"{now} = {self.name} {until} {' '.join(f'{job}/{attempt}' for job, attempt in keys)} .\n")

    def believed(self, what, key, send_id, lease_ms):
        if what == "done":
            self.reports.pop(key, None)
            return
        ack = self.acks.pop(key, None)
        if not ack or key in self.begun:
            return
        self.begun.add(key)
        now = time.monotonic_ns()
        until = ack.sent_ns + lease_ms * 10**6 * 8 // 9 if lease_ms else FOREVER
        if now >= until:
            return
        self.running[key] = until
        take = json.dumps(ack.takes[ack.last if send_id is None else send_id], separators=(",", ":"))
        self.crew.lines.append(f"{now} + {self.name} {key[0]} {key[1]} {until} {take} .\n")
        most = LONG_NS if self.crew.dice.random() < 0.01 else RUN_NS
        heapq.heappush(self.crew.ends, (now + int(self.crew.dice.random() * most), key, self))

    def end(self, key):
        """Whether the run ended before its lease was over."""
        until, now = self.running.pop(key, None), time.monotonic_ns()
        if until is None:
            return False
        self.crew.lines.append(f"{now} {'-' if now < until else '~'} {self.name} {key[0]} {key[1]} .\n")
        return now < until


class Crew:
    """The nodes of one process, and their ledger."""

    ticked = 0

    def __init__(self, path, nodes, ports, seed):
        self.dice, self.ports = random.Random(seed), ports
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.lines, self.ends = [], []
        self.nodes = [Node(self, *node) for node in nodes]
        self.waits = selectors.DefaultSelector()

    def flush(self):
        """Writes pending lines to the file before the node goes on."""
        if self.lines:
            os.write(self.file, "".join(self.lines).encode())
            self.lines.clear()

    def finish(self):
        """Ends the runs whose time has come: writes them to the ledger first, then reports DONE."""
        now, done = time.monotonic_ns(), collections.defaultdict(list)
        while self.ends and self.ends[0][0] <= now:
            _, key, node = heapq.heappop(self.ends)
            if node.end(key):
                done[node].append(key)
        self.flush()
        for node, keys in done.items():
            node.reports.update(dict.fromkeys(keys, False))
            if node.link and node.link.is_open and node.greeted:
                often = 2 if self.dice.random() < 0.02 else 1
                self.guarded(node, lambda: node.link.send(b"".join(node.say("done", key) for key in keys * often)))

    def guarded(self, node, work):
        try:
            if work() is False:
                node.hang_up(self.waits)
        except OSError:
            node.hang_up(self.waits)

    def turn(self):
        tick(self)
        wake = min(self.ticked + BEAT_NS // 4, self.ends[0][0] if self.ends else FOREVER)
        for key, _ in self.waits.select(max(0, wake - self.ticked) / 1e9):
            if key.data.link:
                self.guarded(key.data, key.data.hear)
        self.finish()
        now = time.monotonic_ns()
        for node in self.nodes:
            if not node.link and now >= node.again_ns:
                node.dial(self.waits, self.dice.choice(self.ports), "/v1/node/connect")
            elif node.link and now >= node.beat_ns:
                self.guarded(node, lambda: node.due(now))


def work(path, nodes, ports, seed):
    crew, parent = Crew(path, nodes, ports, seed), os.getppid()
    while os.getppid() == parent:
        crew.turn()


class Channel(Party):
    """One of the submitter's links: which requests are not answered yet, and for which jobs it awaits the end."""

    def __init__(self):
        self.asked, self.follows, self.credit = {}, set(), 0


class Submitter:
    """Submits each job until it is accepted, and follows it until its end arrives, at any instance that answers."""

    ticked = 0

    def __init__(self, path, wanted, rate, seconds, ports, seed, pipe):
        self.wanted, self.rate, self.seconds, self.ports, self.pipe = wanted, rate, seconds, ports, pipe
        self.dice = random.Random(seed)
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.bodies, self.ids = {}, {}  # of jobs whose answer, or whose end, is awaited
        self.again = collections.deque()  # (not before, number): to be submitted or attached
        self.next = self.accepted = self.ended = self.undone = 0
        self.wrong = []
        self.waits = selectors.DefaultSelector()
        self.channels = [Channel() for _ in range(2 * len(ports))]
        self.begun, self.told_ns = time.monotonic(), 0

    def body(self, number):
        demand = demand_of(self.dice)
        demand["keys"] = spread(demand.get("keys", []), self.dice)
        return json.dumps({"type": "dev", "payload": {"n": number}, "queue_ms": 3600000, "max_attempts": 9, **demand}, separators=(",", ":"))

    def lost(self, channel):
        """Closes a broken channel; what it was waiting for is requested over another one."""
        channel.hang_up(self.waits)
        self.again.extend((0, number) for number in [*channel.asked, *channel.follows])
        channel.asked, channel.follows, channel.credit = {}, set(), 0

    def hear(self, channel):
        ids = []
        for message in channel.link.take():
            kind, number = message["msg"], message.get("id")
            if kind in ("placed", "waiting", "attached"):
                channel.asked.pop(number, None)
                channel.follows.add(number)
                known, job = self.ids.get(number), message["job_id"]
                if known is None:
                    self.ids[number] = job
                    del self.bodies[number]
                    self.accepted += 1
                    ids.append(job + "\n")
                elif known != job:
                    self.wrong.append(f"{number} was {known} and is {job}")
            elif kind == "ended":
                channel.follows.discard(number)
                if self.ids.pop(number, None) != message["job_id"]:
                    self.wrong.append(f"{number} ended as {message}")
                self.ended += 1
                if message["state"] != "DONE":
                    self.undone += 1
                    self.wrong.append(f"{message}")
            elif kind == "refused":
                channel.asked.pop(number, None)
                if message["status"] not in (429, 503, 504):
                    raise AssertionError(f"{message} to {self.bodies.get(number, self.ids.get(number))}")
                self.again.append((time.monotonic_ns() + int(self.dice.uniform(2e7, 2e8)), number))
            channel.credit += message.get("credit", 1 if kind in ("placed", "waiting", "attached", "refused") else 0)
            channel.credit += message["n"] if kind == "credit" else 0
        os.write(self.file, "".join(ids).encode())

    def feed(self, channel, now):
        """Sends as many submissions and attaches as the channel has credit for."""
        out, most = [], OUTSTANDING // len(self.channels)
        while channel.credit > 0 and self.again and self.again[0][0] <= now:
            out.append(self.again.popleft()[1])
            channel.credit -= 1
        while (channel.credit > 0 and self.next < self.wanted and len(channel.asked) + len(channel.follows) + len(out) < most
               and (not self.rate or self.next < (time.monotonic() - self.begun) * self.rate)):
            self.bodies[self.next] = self.body(self.next)
            out.append(self.next)
            self.next += 1
            channel.credit -= 1
        channel.asked.update(dict.fromkeys(out, now))
        if out:
            channel.link.send(b"".join(frame(
                f'{{"msg":"attach","id":{number},"job_id":"{self.ids[number]}"}}' if number in self.ids else
                f'{{"msg":"submit","id":{number},"idempotency_key":"s-{number}","job":{self.bodies[number]}}}') for number in out))

    def turn(self):
        tick(self)
        touched = {key.data for key, _ in self.waits.select(0.02)}
        now = time.monotonic_ns()
        for channel in self.channels:
            try:
                if not channel.link:
                    if now >= channel.again_ns:
                        channel.dial(self.waits, self.dice.choice(self.ports), "/v1/submit/connect")
                    continue
                if channel in touched:
                    self.hear(channel)
                oldest = next(iter(channel.asked.values()), now) if channel.link.is_open else channel.link.since
                if now - oldest > 2 * SILENT_NS:
                    raise ConnectionError("it is silent")
                self.feed(channel, now)
            except OSError:
                self.lost(channel)
        if now - self.told_ns > 2 * 10**8:
            self.told_ns = now
            if self.seconds and time.monotonic() - self.begun > self.seconds:
                self.wanted = self.next
            self.pipe.send((self.wanted, self.accepted, self.ended))

    def run(self):
        parent = os.getppid()
        while self.ended < self.wanted and os.getppid() == parent:
            self.turn()
        self.pipe.send((self.accepted, self.ended, time.monotonic(), self.undone, self.wrong))


def submit(*args):
    Submitter(*args).run()


def lines_of(path):
    """(time, sign, rest) of each line of a ledger. A line that a kill tore has no full stop; what it was about did not happen."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith(" .\n"):
                when, sign, rest = line[:-3].split(" ", 2)
                yield int(when), sign, rest


class Sums:
    """What nodes, GPUs and keys have in use, as the ledgers are read in the order of time."""

    def __init__(self, nodes):
        self.nodes = {name: {**shape, "slots": slots} for name, (slots, shape) in nodes.items()}
        self.now = collections.Counter()
        self.most = collections.Counter()
        self.open = {}  # (node, job, attempt): (what it takes, when its lease is over)
        self.places = collections.Counter()  # job: the number of its runs
        self.leases = []
        self.found = collections.Counter()
        self.notes = []
        self.runs = self.lapsed = 0

    def note(self, what, text):
        self.found[what] += 1
        if self.found[what] <= 5:
            self.notes.append(f"{what}: {text}")

    def amounts(self, node, take):
        """[(what, how much is taken, how much there is)]."""
        shape, needs = self.nodes[node], dict(take.get("needs", {}))
        whole, vram, gpus = needs.pop("gpus", 0), needs.pop("vram_mb", 0), take.get("gpus", [])
        needs.setdefault("slots", 1)
        if len(gpus) != (whole or bool(vram)) or len(set(gpus) & {gpu["id"] for gpu in shape["gpus"]}) != len(gpus):
            self.note("gpus", f"{node} {take}")
        found = [((node, name), amount, shape.get(name, 0)) for name, amount in needs.items()]
        found += [((node, "gpu", gpu), GPU_MB if whole else vram, GPU_MB) for gpu in gpus]
        return found + [(("key", key), 1, limit_of(key)) for key in take.get("keys", []) if limit_of(key) is not None]

    def begin(self, when, node, job, attempt, until, take):
        key, takes = (node, job, attempt), self.amounts(node, json.loads(take))
        if key in self.open:
            self.note("places", f"{when} {key} began twice")
            return
        self.runs += 1
        self.open[key] = (takes, int(until))
        heapq.heappush(self.leases, (int(until), key))
        self.places[job] += 1
        if self.places[job] > 1:
            self.note("places", f"{when} {[one for one in self.open if one[1] == job]}")
        for what, amount, most in takes:
            self.now[what] += amount
            self.most[what] = max(self.most[what], self.now[what])
            if self.now[what] > most:
                who = [one for one, (others, _) in self.open.items() if any(other[0] == what for other in others)]
                self.note("over", f"{when} {what} has {self.now[what]} of {most}: {who}")

    def end(self, key):
        for what, amount, _ in self.open.pop(key)[0]:
            self.now[what] -= amount
        self.places[key[1]] -= 1
        if not self.places[key[1]]:
            del self.places[key[1]]

    def pass_time(self, when):
        """Ends the runs whose leases are over by then."""
        while self.leases and self.leases[0][0] <= when:
            until, key = heapq.heappop(self.leases)
            if key in self.open and self.open[key][1] == until:
                self.lapsed += 1
                self.end(key)

    def take(self, when, sign, rest):
        self.pass_time(when)
        words = rest.split(" ", 4)
        if sign == "+":
            self.begin(when, *words)
        elif sign == "-":
            if tuple(words) in self.open:
                self.end(tuple(words))
            else:
                self.note("broken", f"{when} ended, and had not begun: {rest}")
        elif sign == "~":
            if tuple(words) in self.open:
                self.note("broken", f"{when} too late, and yet its lease was not over: {rest}")
        elif sign == "=":
            node, until, *runs = rest.split(" ")
            for run in runs:
                key = (node, *run.split("/"))
                if key in self.open:
                    self.open[key] = (self.open[key][0], int(until))
                    heapq.heappush(self.leases, (int(until), key))
        elif sign == "x" or sign == "e":
            gone = set(rest.split(" "))
            for key in [key for key in self.open if key[0] in gone]:
                self.end(key)
                if sign == "e":
                    self.note("broken", f"{when} it runs though every job has ended: {key}")
        else:
            self.note("broken", f"{when} {sign} {rest}")


def jobs_of(port):
    """Every job of the store, page by page."""
    cursor = ""
    with Client(port) as client:
        while cursor is not None:
            page = client.get(f"/v1/jobs?limit=500{'&cursor=' + cursor if cursor else ''}")
            if page.status == 503:
                time.sleep(0.1)
                continue
            page = page.json
            yield from page["jobs"]
            cursor = page["next_cursor"]


def judge(where, nodes, jobs):
    """({what: how many}, notes, runs, leases that ran out, {what: the most in use}), from the ledgers and the store's jobs."""
    sums = Sums(nodes)
    with open(os.path.join(where, "accepted"), encoding="utf-8") as file:
        accepted = set(file.read().split())
    idle = set(accepted)  # never seen to run
    ledgers = [os.path.join(where, name) for name in os.listdir(where) if name.startswith("ledger-")]
    for when, sign, rest in heapq.merge(*(lines_of(path) for path in ledgers)):
        if sign == "+":
            idle.discard(rest.split(" ", 2)[1])
        sums.take(when, sign, rest)
    for key in sums.open:
        sums.note("broken", f"{key} never ended")
    starts = collections.defaultdict(list)
    for job in jobs:
        name = job["job_id"]
        if name not in accepted:
            sums.note("strange", f"{job}")
        elif job["state"] != "DONE":
            sums.note("undone", f"{job}")
        accepted.discard(name)
        for key in job.get("keys", []):
            if key.startswith(RATE[0]):
                starts[key].append(job["dispatched_ms"])
    for name in accepted:
        sums.note("lost", name)
    for name in idle:
        sums.note("undone", f"{name} never ran")
    for key, times in starts.items():
        times.sort()
        for first, last in zip(times, times[RATE[1]:]):
            if last - first < RATE[2] * 1000:
                sums.note("rates", f"{key} from {first} to {last}")
    return sums.found, sums.notes, sums.runs, sums.lapsed, sums.most


def check(where, nodes, port, pipe):
    pipe.send(judge(where, nodes, jobs_of(port)))


class Storm:
    """Servers and crews, and the kills and freezes that happen to them."""

    def __init__(self, where, store, nodes, seed):
        self.where, self.nodes, self.dice = where, nodes, random.Random(seed)
        self.redis = Redis(os.path.join(where, "redis")) if store == "redis" else None
        self.ports = [free_port() for _ in range(INSTANCES if self.redis else 1)]
        self.logs, self.servers, self.crews = [], [None] * len(self.ports), []
        self.thaws = []  # (when, pid, what)
        self.counts = collections.Counter()
        self.next = 0
        self.gap = 0.6

    def begin(self):
        for number in range(len(self.ports)):
            self.serve(number)
        for key, rule in limits().items():
            answer = self.servers[0].call("PUT", f"/v1/limits/{key}", rule)
            if answer.status != 200:
                raise AssertionError(f"{key}: {answer}")
        names = list(self.nodes)
        for first in range(0, len(names), CREW):
            self.crews.append([names[first:first + CREW], None, 0])
            self.man(self.crews[-1])

    def serve(self, number):
        settings = {**SETTINGS, "listen": f"127.0.0.1:{self.ports[number]}", **({"store": self.redis.url} if self.redis else {})}
        self.servers[number] = Server(os.path.join(self.where, f"data{number}"), self.where, **settings)
        self.logs.append(self.servers[number])

    def ledger(self, crew):
        return os.path.join(self.where, f"ledger-{crew[0][0]}")

    def man(self, crew):
        """Starts the process of these nodes; they have no runs."""
        names, _, times = crew
        nodes = [(int(name[1:]), *self.nodes[name]) for name in names]
        crew[1] = forked.Process(target=work, args=(self.ledger(crew), nodes, self.ports, f"{names[0]} {times}"), daemon=True)
        crew[1].start()
        crew[2] += 1

    def fell(self, crew, sign="x"):
        """Kills the process with SIGKILL and notes the moment from which none of its nodes runs anything, after a line that may be torn.
        Sign `e`: they should run nothing by now."""
        crew[1].kill()
        crew[1].join()
        with open(self.ledger(crew), "a", encoding="utf-8") as file:
            file.write(f"\n{time.monotonic_ns()} {sign} {' '.join(crew[0])} .\n")

    def freeze(self, pid, what, seconds):
        os.kill(pid, signal.SIGSTOP)
        heapq.heappush(self.thaws, (time.monotonic() + seconds, pid, what))
        self.counts[f"{what} freezes"] += 1

    def thaw(self, until):
        while self.thaws and self.thaws[0][0] <= until:
            os.kill(heapq.heappop(self.thaws)[1], signal.SIGCONT)

    def blow(self):
        """Kills or freezes something if it is time for that. At most one instance is frozen at a time."""
        now = time.monotonic()
        self.thaw(now)
        if now < self.next:
            return
        self.next = now + self.dice.expovariate(1 / self.gap)
        frozen = {pid for _, pid, _ in self.thaws}
        at_server = self.dice.random() < (0.5 if self.redis else 0.3)
        kill = self.dice.random() < (0.9 if at_server and not self.redis else 0.5)  # nothing happens while the only server is frozen
        if at_server:
            if any(what == "server" for _, _, what in self.thaws):
                return
            number = self.dice.randrange(len(self.servers))
            if kill:
                self.servers[number].kill()
                self.serve(number)
                self.counts["server kills"] += 1
            else:
                self.freeze(self.servers[number].pid, "server", self.dice.uniform(0.2, 2.5))
        else:
            crew = self.dice.choice(self.crews)
            if crew[1].pid in frozen:
                return
            if kill:
                self.fell(crew)
                self.man(crew)
                self.counts["node kills"] += 1
            else:
                self.freeze(crew[1].pid, "node", self.dice.uniform(0.2, 3))

    def alive(self):
        """Fails if a server or crew ended that should run."""
        for server in self.servers:
            if server.process.poll() is not None:
                raise AssertionError(f"a server ended with {server.process.returncode}:\n{server.log[-4000:]}")
        for crew in self.crews:
            if crew[1].exitcode is not None:
                raise AssertionError(f"the process of {crew[0]} ended with {crew[1].exitcode}")

    def left(self):
        """What is in use according to the servers."""
        found, cursor = collections.Counter(), ""
        nodes = self.servers[0].ask("/v1/nodes?limit=1000")["nodes"]
        for node in nodes:
            found["slots"] += node["running"] + node["reserved"]
            for name, one in (self.servers[0].ask(f"/v1/nodes/{node['node_id']}").get("resources") or {}).items():
                for row in [gpu["vram_mb"] for gpu in one] if name == "gpus" else [one]:
                    found["promised"] += (row["promised"] or 0) > 0
        while cursor is not None:
            page = self.servers[0].ask(f"/v1/limits?limit=1000{'&cursor=' + cursor if cursor else ''}")
            found["keys"] += sum((row["in_flight"] or 0) + (row["waiting"] or 0) for row in page["limits"])
            cursor = page["next_cursor"]
        found["nodes"] += len(nodes) != len(self.nodes)
        return +found

    def broken(self):
        """Broken invariants, from the metrics and from all logs."""
        found = []
        for server in self.servers:
            found += [name for name, value in server.metrics().items() if name.startswith("berth_invariant_violations_total") and value]
        for server in self.servers:
            if server.stop() != 0:
                found.append("a server did not stop well")
        for server in self.logs:
            try:
                server.check_log()
            except AssertionError as error:
                found.append(str(error))
        return found

    def end(self):
        for crew in self.crews:
            if crew[1]:
                crew[1].kill()
                crew[1].join()
        for server in self.servers:
            if server and server.process.poll() is None:
                server.kill()
        if self.redis:
            self.redis.kill()


def weather(counts):
    return ", ".join(f"{counts[what]} {what}" for what in ("server kills", "server freezes", "node kills", "node freezes"))


def hear_from(pipe, child, who):
    """The next message from a child process; an error with its exit code if it has ended."""
    try:
        return pipe.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"the {who} ended with {child.exitcode}") from None


def follow(storm, ours, child, say):
    """Waits for the submitter's last message and returns it. Kills and freezes stop once all jobs are submitted."""
    begun = moved = shown = time.monotonic()
    report = before = (1, 0, 0)
    while len(report) == 3:
        if ours.poll(0.02):
            last, report = report, hear_from(ours, child, "submitter")
            if report != last:
                moved = time.monotonic()
        now = time.monotonic()
        if len(report) == 3 and report[1] < report[0]:
            storm.blow()
        else:
            storm.thaw(FOREVER)
        storm.alive()
        if now - moved > 120 * SLOW:
            raise AssertionError(f"nothing moved any more: {report}; {storm.left()}")
        if now - shown >= 10 and len(report) == 3:
            say(f"{now - begun:5.0f} s  {report[1]:,} accepted, {report[2]:,} ended ({(report[2] - before[2]) / (now - shown):,.0f}/s), "
                f"{weather(storm.counts)}")
            shown, before = now, report
    storm.thaw(FOREVER)
    return report, time.monotonic() - begun


def run(store, jobs, count, seed=1, rate=0, seconds=0, data_root=None, keep=False, free_s=FREE_S, say=print):
    """{what: how many}; each should be 0."""
    where = tempfile.mkdtemp(prefix="berth-shapes-", dir=data_root)
    dice = random.Random(seed)
    nodes = {f"n{number}": (dice.choice(SLOTS), shape) for number, shape in enumerate(shapes_of(dice, count))}
    storm, child, wrong = Storm(where, store, nodes, seed), None, True
    try:
        storm.begin()
        deadline = time.monotonic() + 60 * SLOW
        while any(len(server.ask("/v1/nodes?limit=1000")["nodes"]) < count for server in storm.servers):
            if time.monotonic() > deadline:
                raise AssertionError("not all nodes have registered")
            time.sleep(0.05)
        ours, theirs = forked.Pipe()
        child = forked.Process(target=submit, args=(os.path.join(where, "accepted"), jobs, rate, seconds, storm.ports, seed, theirs), daemon=True)
        child.start()
        theirs.close()
        (accepted, ended, last, undone, notes), took = follow(storm, ours, child, say)
        found = collections.Counter({"undone": undone, "twice": len(notes) - undone})
        asked, left = time.monotonic(), storm.left()
        while left and asked - last < free_s * SLOW:
            time.sleep(0.02)
            asked, left = time.monotonic(), storm.left()
        found["left"] = sum(left.values())
        for crew in storm.crews:
            storm.fell(crew, "e")
        ours, theirs = forked.Pipe()
        checker = forked.Process(target=check, args=(where, nodes, storm.ports[0], theirs), daemon=True)
        checker.start()
        theirs.close()
        counted, more, runs, lapsed, most = hear_from(ours, checker, "checker")
        checker.join()
        broken = storm.broken()
        found.update(counted)
        found["broken"] += len(broken)
        full = sum(amount == nodes[what[0]][0] for what, amount in most.items() if what[1] == "slots")
        keys = sum(amount == limit_of(what[1]) for what, amount in most.items() if what[0] == "key")
        say(f"{store}: {accepted:,} jobs accepted, {ended:,} ended, {runs:,} runs on {count} nodes, {lapsed:,} ended by their lease, "
            f"{weather(storm.counts)}, {took:.0f} s ({ended / took:,.0f}/s)")
        say(f"  {full} nodes were full at some time, {keys} keys at their limit; "
            f"{dict(left) if left else 'nothing'} in use {asked - last:.2f} s after the last end")
        say("  " + "  ".join(f"{what} {found[what]}" for what in COUNTED))
        for line in [*notes[:5], *more, *broken[:5]]:
            say(f"  {line}")
        wrong = any(found.values())
        return {what: found[what] for what in COUNTED}
    finally:
        if child:
            child.kill()
            child.join()
        storm.end()
        if keep and wrong:
            say(f"  ledgers and logs: {where}")
        else:
            shutil.rmtree(where, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000000)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--store", choices=("redis", "embedded", "both"), default="both")
    parser.add_argument("--seed", type=int, default=1, help="shapes, demands and what happens follow from it; the moments do not")
    parser.add_argument("--rate", type=float, default=0, help="submit so many in a second (default: as fast as it goes)")
    parser.add_argument("--seconds", type=float, default=0, help="submit no more after so many seconds, for each store")
    parser.add_argument("--keep", action="store_true", help="leave ledgers and logs where they are when something is wrong")
    parser.add_argument("--data-root", help="where the store's files go: a real disk (default: the temporary directory)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    found = [run(store, args.jobs, args.nodes, args.seed, args.rate, args.seconds, args.data_root, args.keep,
                 say=lambda text: print(text, flush=True))
             for store in (("redis", "embedded") if args.store == "both" else (args.store,))]
    sys.exit(any(count for one in found for count in one.values()))


if __name__ == "__main__":
    main()
