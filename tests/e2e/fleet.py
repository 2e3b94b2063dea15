"""A fleet that does everything a fleet may do: nodes on WebSockets that move between instances and send messages twice, late or over
another connection, and clients that retry at another instance. It counts what the nodes really run at the same time."""
import collections
import json
import random
import threading
import time

import wsclient
from harness import SLOW, Client


class Worker(threading.Thread):
    """One node. It connects to any server of `servers`, a list that may change."""

    def __init__(self, servers, node_id, slots, seed):
        super().__init__(daemon=True)
        self.servers, self.id, self.slots = servers, node_id, slots
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.running = {}  # (job, attempt): when the run ends
        self.reports = collections.OrderedDict()  # (job, attempt): its DONE was not accepted yet
        self.acks = {}  # (job, attempt): its ACK was not answered yet
        self.begun = set()
        self.most = 0
        self.socket = None
        self.asked = {}
        self.number = 0
        self.failure = None

    def run(self):
        try:
            while not self.over.is_set() or self.running or self.reports:
                try:
                    self.connect()
                    while True:
                        self.turn()
                except (wsclient.Closed, wsclient.Refused, OSError, TimeoutError):
                    self.socket = None
                    time.sleep(self.dice.uniform(0.005, 0.05))
        except BaseException as error:  # raised again by the test that joins the thread
            self.failure = error

    def connect(self):
        server = self.dice.choice(self.servers)
        self.socket = wsclient.WebSocket(server.port, "/v1/node/connect", None, 3 * SLOW)
        self.asked = {}
        runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in self.running]
        self.say("hello", protocol=1, node_id=self.id, health="ready", max_concurrent_jobs=self.slots,
                 allowed_types=["dev"], running_jobs=runs)
        deadline = time.monotonic() + 3 * SLOW
        while json.loads(self.socket.recv(3 * SLOW) or "{}").get("msg") != "welcome":
            if time.monotonic() > deadline:
                raise TimeoutError
        self.beat_at = time.monotonic() + 1
        for key in self.reports:
            self.report(key)
        for key in self.acks:
            self.ask(("ack", key), "ack", job_id=key[0], attempt_id=key[1])

    def say(self, msg, **fields):
        self.socket.send(json.dumps({"msg": msg, **fields}))

    def ask(self, what, msg, **fields):
        self.number += 1
        self.asked[self.number] = what
        self.say(msg, id=self.number, **fields)

    def report(self, key):
        self.ask(("done", key), "done", job_id=key[0], attempt_id=key[1])
        if self.dice.random() < 0.1:
            self.ask(("done", key), "done", job_id=key[0], attempt_id=key[1])

    def turn(self):
        now = time.monotonic()
        for key in [key for key, end in self.running.items() if end <= now]:
            del self.running[key]
            self.reports[key] = True
            self.report(key)
        if now >= self.beat_at:
            self.beat_at = now + 1
            runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in list(self.running) + list(self.reports)]
            self.say("heartbeat", node_id=self.id, running_jobs=runs)
            for key in self.reports:  # an instance that was frozen may have answered 503
                self.report(key)
        if self.over.is_set() and not self.running and not self.reports:
            self.socket.close()
            raise wsclient.Closed(1000)
        if self.dice.random() < 0.0005:
            self.socket.drop()  # a lost connection
            raise wsclient.Closed(1006)
        next_end = min(self.running.values(), default=now + 0.05)
        try:
            text = self.socket.recv(max(0.001, min(0.05, next_end - now)))
        except TimeoutError:
            return
        if text:
            self.hear(json.loads(text))

    def hear(self, message):
        if message["msg"] == "job":
            key = (message["job_id"], message["attempt_id"])
            if self.dice.random() < 0.01:
                return  # the job message is lost, so its reservation runs out
            self.acks[key] = True
            for _ in range(1 if self.dice.random() < 0.95 else 2):
                self.ask(("ack", key), "ack", job_id=key[0], attempt_id=key[1])
        elif message["msg"] == "reply" and message.get("re") in self.asked:
            self.answered(*self.asked.pop(message["re"]), message)
        elif message["msg"] in ("cancel", "drop"):
            self.running.pop((message["job_id"], message["attempt_id"]), None)

    def answered(self, what, key, message):
        if what == "ack":
            self.acks.pop(key, None)
        if what == "ack" and message.get("ok") and key not in self.begun:
            self.begun.add(key)
            self.running[key] = time.monotonic() + self.dice.uniform(0, 0.02)
            self.most = max(self.most, len(self.running))
        elif what == "done" and (message.get("ok") or message.get("status") in (404, 409)):
            self.reports.pop(key, None)


class Submitter(threading.Thread):
    """A client that sends `count` jobs, or sends until `over` is set. It tries each job at any instance until one accepts it."""

    def __init__(self, servers, count, name, pause=0.0):
        super().__init__(daemon=True)
        self.servers, self.count, self.name, self.pause = servers, count, name, pause
        self.dice = random.Random(name)
        self.accepted = []
        self.again = set()  # job ids that were accepted, but not at the first try
        self.tries = 0
        self.worst = 0.0
        self.over = threading.Event()
        self.failure = None

    def body(self, number):
        return {"type": "dev", "payload": {"n": number}, "queue_ms": 120000, "max_attempts": 9}

    def one(self, number):
        begun, first = time.monotonic(), self.tries
        body = self.body(number)
        while time.monotonic() - begun < 60 * SLOW:
            self.tries += 1
            try:
                with Client(self.dice.choice(self.servers).port, seconds=3) as client:
                    answer = client.post("/v1/dispatch/task", body, {"Idempotency-Key": f"{self.name}-{number}"})
                if answer.status in (200, 202):
                    self.worst = max(self.worst, time.monotonic() - begun)
                    if self.tries > first + 1:
                        self.again.add(answer.json["job_id"])
                    return answer.json["job_id"]
                assert answer.status in (429, 503, 504), str(answer)
            except (OSError, TimeoutError, ValueError, ConnectionError):
                pass
            except Exception as error:  # a server that was killed sent half an answer
                if type(error).__module__ != "http.client":
                    raise
            time.sleep(self.dice.uniform(0.005, 0.05))
        raise AssertionError(f"job {number} was never accepted")

    def run(self):
        try:
            for number in range(self.count):
                if self.over.is_set():
                    break
                self.accepted.append(self.one(number))
                if self.pause:
                    time.sleep(self.pause)
            self.count = len(self.accepted)
        except BaseException as error:
            self.failure = error


class Diary:
    """What jobs of real agents record: a line when they begin and one when they end, in the order in which it happened (each line is one
    write to a file opened for appending)."""

    def __init__(self, path):
        self.path = path
        self.gate = path.with_name(path.name + ".gate")

    def command(self, then):
        """A job's command that records its beginning and its end around `then`."""
        note = f'"$BERTH_NODE_ID $BERTH_JOB_ID $BERTH_ATTEMPT_ID" >> {self.path}'
        return f"echo b {note}; {then}; echo e {note}"

    def held(self):
        """A job's command that ends once open_gate() was called."""
        return self.command(f"while [ ! -e {self.gate} ]; do sleep 0.05; done")

    def open_gate(self):
        self.gate.touch()

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def most(self):
        """{node: how many jobs ran there at the same time at most}."""
        now, most = collections.Counter(), collections.Counter()
        for what, node, _, _ in self.lines():
            now[node] += 1 if what == "b" else -1
            most[node] = max(most[node], now[node])
        return most

    def times(self, what):
        """{job: how often it began ("b") or ended ("e")}."""
        return collections.Counter(line[2] for line in self.lines() if line[0] == what)
