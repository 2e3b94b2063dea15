#!/usr/bin/env python3
"""Kills the server with SIGKILL in the middle of many jobs at full speed, again and again, and compares what is left with what it had
answered.

    make kills                              a million jobs, 20 kills: some minutes
    make kills ARGS="--jobs 50000 --kills 5"

One process submits over a client's WebSocket, other processes play the nodes. Both record the server's answers and reconnect when the
connection breaks. A job whose answer was lost is not submitted again: nobody knows that it was accepted. At the end the server is
stopped, and its store.db is read by this program, which shares nothing with the server but the format of that file:

  lost      jobs that were answered `placed` or `waiting`, and are not in store.db
  undone    jobs whose DONE was accepted, and whose record has another state
  open      jobs that have not ended, though nothing is under way any more
  unheard   jobs that were accepted, and whose end the client never received
  twice     jobs that are in the store twice, or for which the client got contradicting messages
  strange   jobs that nobody submitted
  slots     slots that are taken though nothing runs, according to the nodes' records, and leases

Each must be 0; else it exits 1."""
import argparse
import collections
import json
import multiprocessing
import os
import random
import selectors
import shutil
import signal
import socket
import sqlite3
import struct
import sys
import tempfile
import time

from harness import SLOW, Server, eventually

NODES = 8
OUTSTANDING = 1024
REPORT_EVERY = 100  # jobs
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
JOB_DONE = 6  # the state DONE, as store.db has it
RETENTION = {"retention_ms": 86400000, "retention_jobs_max": 100000000}
SETTINGS = {"loops": 1, "queue_max": 1000000, "queue_total_max": 1000000, "reservation_ttl_ms": 3000,
            "running_lease_ms": 60000, **RETENTION}
forked = multiprocessing.get_context("fork")


def frame(text):
    """A client's text frame. Its mask is all zero, which is legal and costs nothing."""
    data = text.encode()
    head = b"\x81" + (bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack("!H", len(data)))
    return head + bytes(4) + data


def messages(data):
    """The complete messages at the front of the bytes, and the remaining bytes."""
    found, at = [], 0
    while len(data) - at >= 2:
        size, head = data[at + 1] & 0x7F, 2
        if size > 125:
            head = 4 if size == 126 else 10
            if len(data) - at < head:
                break
            size = int.from_bytes(data[at + 2:at + head], "big")
        if len(data) - at < head + size:
            break
        opcode = data[at] & 0x0F
        if opcode == 8:
            raise ConnectionError("closed")
        if opcode == 1:
            found.append(json.loads(data[at + head:at + head + size]))
        at += head + size
    return found, data[at:]


class Line:
    """A WebSocket that reconnects whenever it breaks."""

    def __init__(self, port, path):
        self.port, self.path = port, path
        self.sock = None
        self.data = b""

    def dial(self):
        while True:
            try:
                self.sock = socket.create_connection(("127.0.0.1", self.port), 30 * SLOW)
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sock.sendall(f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
                self.data = b""
                while b"\r\n\r\n" not in self.data:
                    self.more()
                head, self.data = self.data.split(b"\r\n\r\n", 1)
                if b" 101 " not in head.split(b"\r\n")[0] + b" ":
                    raise ConnectionError(head)
                return
            except OSError:
                time.sleep(0.02)

    def more(self):
        piece = self.sock.recv(1 << 20)
        if not piece:
            raise ConnectionError("gone")
        self.data += piece

    def take(self):
        """The messages that have arrived. Reads once if there is none yet."""
        found, self.data = messages(self.data)
        if not found:
            self.more()
            found, self.data = messages(self.data)
        return found


def submit(port, wanted, pipe):
    """Submits until `wanted` jobs were accepted and have ended. Sends through `pipe`: {number: job_id}, {number: job_id of the end}, how
    many were submitted, and which messages contradict earlier ones."""
    accepted, ended, wrong = {}, {}, []
    number = reported = 0
    line = Line(port, "/v1/submit/connect")

    def job(n):
        return frame(f'{{"msg":"submit","id":{n},"job":{{"type":"dev","max_attempts":9,"queue_ms":3600000,"payload":{{"n":{n}}}}}}}')

    while len(ended) < wanted:
        line.dial()
        under_way, unattached, asked = set(), [n for n in accepted if n not in ended], set()
        credit = unanswered = 0
        try:
            while len(ended) < wanted:
                for message in line.take():
                    kind, n = message["msg"], message.get("id")
                    if kind in ("placed", "waiting"):
                        if n in accepted:
                            wrong.append(f"{n} was accepted as {accepted[n]} and {message['job_id']}")
                        accepted[n] = message["job_id"]
                        unanswered -= 1
                    elif kind == "ended":
                        if n in ended or message["job_id"] != accepted.get(n):
                            wrong.append(f"{message} after {accepted.get(n)}, ended {ended.get(n)}")
                        if message["state"] != "DONE":
                            wrong.append(f"{message}")
                        ended[n] = message["job_id"]
                        under_way.discard(n)
                    elif kind == "refused":
                        assert message["status"] in (429, 503, 504), message
                        under_way.discard(n)
                        if n in asked:
                            unattached.append(n)
                        else:
                            unanswered -= 1
                    credit += message.get("credit", 1 if kind in ("placed", "waiting", "attached", "refused") else 0)
                    credit += message["n"] if kind == "credit" else 0
                out = []
                while credit > 0 and unattached:
                    n = unattached.pop()
                    asked.add(n)
                    under_way.add(n)
                    out.append(frame(f'{{"msg":"attach","id":{n},"job_id":"{accepted[n]}"}}'))
                    credit -= 1
                while credit > 0 and len(under_way) < OUTSTANDING and len(accepted) + unanswered < wanted:
                    under_way.add(number)
                    out.append(job(number))
                    number += 1
                    unanswered += 1
                    credit -= 1
                if out:
                    line.sock.sendall(b"".join(out))
                if len(ended) - reported >= REPORT_EVERY:
                    reported = len(ended)
                    pipe.send((len(accepted), reported))
        except OSError:
            continue
    pipe.send((accepted, ended, number, wrong))


class Node:
    """A node of the fleet. Attempts whose end the server has not accepted yet are kept for the next connection."""

    def __init__(self, name, port):
        self.name, self.line = name, Line(port, "/v1/node/connect")
        self.running = {}  # job_id: attempt_id
        self.done = []  # job_ids whose DONE was accepted

    def hello(self):
        self.line.dial()
        self.said, self.upto = [], 0
        runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in self.running.items()]
        self.line.sock.sendall(frame(json.dumps(
            {"msg": "hello", "protocol": 1, "node_id": self.name, "health": "ready", "allowed_types": ["dev"],
             "max_concurrent_jobs": 100000, "takes_jobs": True, "takes_accepted": True, "running_jobs": runs})))

    def say(self, what, job, attempt):
        self.said.append((what, job, attempt))
        status = ',"status":"ok"' if what == "done" else ""
        return frame(f'{{"msg":"{what}","id":{len(self.said) - 1},"job_id":"{job}","attempt_id":{attempt}{status}}}')

    def believed(self, number, out):
        what, job, attempt = self.said[number]
        if what == "ack":
            self.running[job] = attempt
            out.append(self.say("done", job, attempt))
        elif what == "done":
            self.running.pop(job, None)
            self.done.append(job)

    def take(self):
        out = []
        for message in self.line.take():
            kind = message["msg"]
            if kind == "welcome":
                out += [self.say("done", job, attempt) for job, attempt in self.running.items()]
            elif kind in ("job", "jobs"):
                out += [self.say("ack", job["job_id"], job["attempt_id"]) for job in message.get("jobs", [message])]
            elif kind == "accepted":
                for number in range(self.upto, message["upto"] + 1):
                    if self.said[number]:
                        self.believed(number, out)
                self.upto = max(self.upto, message["upto"] + 1)
            elif kind == "reply" and message.get("re") is not None:
                what, job, _ = self.said[message["re"]]
                if message.get("ok"):
                    self.believed(message["re"], out)
                elif message["status"] == 409 or message["status"] == 404:
                    self.running.pop(job, None)  # the attempt belongs to another node by now
                else:
                    out.append(self.say(*self.said[message["re"]]))
                self.said[message["re"]] = None
            elif kind == "drop":
                self.running.pop(message["job_id"], None)
        if out:
            self.line.sock.sendall(b"".join(out))


def work(port, first, count, pipe):
    """Runs some nodes of the fleet until the parent sends something. Sends back the jobs whose DONE was accepted."""
    nodes = [Node(f"n{first + i}", port) for i in range(count)]
    waits = selectors.DefaultSelector()
    waits.register(pipe, selectors.EVENT_READ)

    def open_line(node):
        node.hello()
        waits.register(node.line.sock, selectors.EVENT_READ, node)

    for node in nodes:
        open_line(node)
    beat = time.monotonic()
    while True:
        for key, _ in waits.select(1):
            if not key.data:
                pipe.recv()
                pipe.send([job for node in nodes for job in node.done])
                return
            try:
                key.data.take()
            except OSError:
                waits.unregister(key.fileobj)
                key.fileobj.close()
                open_line(key.data)
        if time.monotonic() - beat > 2:
            beat = time.monotonic()
            for node in nodes:
                runs = [{"job_id": job, "attempt_id": attempt} for job, attempt in node.running.items()]
                try:
                    node.line.sock.sendall(frame(json.dumps({"msg": "heartbeat", "node_id": node.name, "health": "ready", "running_jobs": runs})))
                except OSError:
                    pass  # select() reports it


def number_of(job_id):
    """The number of a job in store.db, from its job_id."""
    value = 0
    for letter in job_id[1:]:
        value = value << 5 | DIGITS.index(letter)
    return value


def held_slots(server):
    """How many slots and leases are still held; they should all be free soon after the last job ended."""
    held = {}

    def free():
        nodes = server.get("/v1/nodes?limit=100").json["nodes"]
        held["slots"] = sum(node["running"] + node["reserved"] for node in nodes)
        held["leases"] = sum(value for name, value in server.metrics().items() if name.startswith("berth_leases{"))
        return not held["slots"] and not held["leases"]

    try:
        eventually("every slot is free", free, 60)
    except AssertionError:
        pass
    return int(held["slots"] + held["leases"])


def judge(path, accepted, ended, done, submitted, wrong):
    """{what: how many}, from the recorded answers and the contents of store.db."""
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    state, number, seen = {}, {}, collections.Counter()
    for id_, at, spec in base.execute("SELECT id, state, spec FROM job"):
        state[id_] = at
        n = json.loads(spec)["payload"]["n"]
        number[id_] = n
        seen[n] += 1
    base.close()
    ids = {n: number_of(job) for n, job in accepted.items()}
    return {"lost": sum(number.get(id_) != n for n, id_ in ids.items()),
            "undone": sum(state.get(number_of(job)) != JOB_DONE for job in done),
            "open": sum(at < JOB_DONE for at in state.values()),
            "unheard": len(set(accepted) - set(ended)),
            "twice": sum(count > 1 for count in seen.values()) + len(wrong),
            "strange": sum(not 0 <= n < submitted for n in seen)}, len(state)


def run(jobs, kills, data_root=None, say=print):
    """{what: how many}; each should be 0."""
    where = tempfile.mkdtemp(prefix="berth-kills-", dir=data_root)
    server, crew = Server(os.path.join(where, "data"), where, **SETTINGS), []
    try:
        port = server.port
        pipes = []
        for target, args in ((work, (port, 0, NODES // 2)), (work, (port, NODES // 2, NODES - NODES // 2)), (submit, (port, jobs))):
            if target == submit:
                eventually("all nodes are there", lambda: server.metrics().get('berth_nodes{health="ready"}') == NODES)
            ours, theirs = forked.Pipe()
            crew.append(forked.Process(target=target, args=(*args, theirs), daemon=True))
            crew[-1].start()
            pipes.append(ours)
        *workers, submitter = pipes
        begun, moved, report, downs = time.monotonic(), time.monotonic(), (0, 0), []
        at = sorted(random.sample(range(1, 1000), kills))  # thousandths of the jobs
        while len(report) == 2:  # a longer tuple is the submitter's last message
            if submitter.poll(1):
                report = submitter.recv()
                moved = time.monotonic()
            elif time.monotonic() - moved > 120 * SLOW:
                raise AssertionError(f"nothing moved any more: {report[0]} accepted, {report[1]} ended of {jobs}\n{server.log[-2000:]}")
            if len(report) == 2 and at and report[0] * 1000 >= at[0] * jobs:
                at.pop(0)
                server.kill()
                down = time.monotonic()
                server = Server(os.path.join(where, "data"), where, **{**SETTINGS, "listen": f"127.0.0.1:{port}"})
                downs.append(time.monotonic() - down)
        accepted, ended, submitted, wrong = report
        seconds = time.monotonic() - begun
        # Those whose answer was lost may still be under way.
        eventually("every job has ended", lambda: not server.ask("/v1/jobs?limit=1&state=NEW,DISPATCHED,ACKED,RETRYING")["jobs"], 300)
        slots = held_slots(server)
        broken = int(sum(value for name, value in server.metrics().items() if name.startswith("berth_invariant_violations_total")))
        done = []
        for pipe in workers:
            pipe.send("end")
            done += pipe.recv()
        if server.stop() != 0:
            raise AssertionError("the server did not stop well")
        found, rows = judge(os.path.join(where, "data", "store.db"), accepted, ended, done, submitted, wrong)
        found.update(slots=slots, broken=broken)
        say(f"{len(accepted):,} jobs accepted of {submitted:,} submitted, {len(done):,} DONEs accepted, {rows:,} in the store, {len(downs)} kills, "
            f"{seconds:.0f} s ({len(accepted) / seconds:,.0f}/s), ready again after {max(downs, default=0):.1f} s at most")
        say("  ".join(f"{what} {count}" for what, count in found.items()))
        for line in wrong[:5]:
            say(line)
        return found
    finally:
        for one in crew:
            one.kill()
            one.join()
        if server.process.poll() is None:
            server.kill()
        shutil.rmtree(where, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--data-root", help="where the store's files go: a real disk (default: the temporary directory)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    sys.exit(any(run(args.jobs, args.kills, args.data_root).values()))


if __name__ == "__main__":
    main()
