"""Starts the real binary, talks to it and ends it. Every case has its own server on a free port with its own data directory.
Nothing sleeps for a fixed time; everything waits for a condition.

BERTH_BIN is the binary (default build/berth); BERTH_E2E_SLOW multiplies every deadline (for sanitisers)."""
import atexit
import collections
import http.client
import http.server
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import wsclient

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("BERTH_BIN", str(ROOT / "build" / "berth"))
SLOW = float(os.environ.get("BERTH_E2E_SLOW", "1"))

REPORTS = re.compile(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:|Assertion .* failed")
live = set()


def _end_all():
    for process in list(live):
        process.kill()


atexit.register(_end_all)


def tags(*names):
    """Marks a case for tests/e2e/run. load: heavy, not for sanitised binaries; threads: loops, store and keeper meet; alone: judges
    latency, so no other case may run at the same time; long: started first."""

    def mark(thing):
        thing.tags = set(names) | getattr(thing, "tags", set())
        return thing

    return mark


def eventually(what, check, seconds=30):
    """Calls check() until it returns something true, and returns that. Pass `seconds` only if the case is about the time: a busy disk or
    processor can hold up a server for seconds."""
    deadline = time.monotonic() + seconds * SLOW
    pause = 0.002
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"in {seconds * SLOW:g} s it never happened: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def freeze(process):
    """Sends SIGSTOP and waits until every thread has stopped: each stops only when it next gets a processor."""

    def stands():
        try:
            return all(stat.read_text().rsplit(")", 1)[1].split()[0] in "TZ" for stat in
                       pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat"))
        except OSError:  # a thread that has just ended
            return False

    process.send_signal(signal.SIGSTOP)
    eventually("every thread of the process is stopped", stands)


class Stalls(threading.Thread):
    """Records when this process wanted to run and did not: such time is the machine's fault, not the server's."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.found = []  # (from, to)

    def run(self):
        while not self.over.is_set():
            begun = time.monotonic()
            time.sleep(0.001)
            awake = time.monotonic()
            if awake - begun > 0.003:
                self.found.append((begun + 0.001, awake))

    def within(self, begun, ended):
        return sum(min(ended, b) - max(begun, a) for a, b in self.found if a < ended and b > begun)


def percentile(values, share):
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def in_parallel(count, work):
    """Runs work(i) in threads that start together and returns the results in order. Raises the first exception that a thread raised."""
    results, errors = [None] * count, []
    gate = threading.Barrier(count)

    def one(i):
        try:
            gate.wait()
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Answer:
    """An HTTP answer."""

    def __init__(self, status, headers, body, seconds):
        self.status = status
        self.headers = headers
        self.body = body
        self.seconds = seconds

    @property
    def json(self):
        return json.loads(self.body)

    def __getitem__(self, name):
        return self.json[name]

    def __str__(self):
        return f"{self.status} {self.body[:400].decode(errors='replace')}"


class Client:
    """One keep-alive connection. Never sends a request twice."""

    def __init__(self, port, seconds=30):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds * SLOW)

    def call(self, method, path, body=None, headers=None):
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        begun = time.monotonic()
        self.connection.request(method, path, body=body, headers=headers)
        reply = self.connection.getresponse()
        data = reply.read()
        return Answer(reply.status, reply.headers, data, time.monotonic() - begun)

    def get(self, path, **headers):
        return self.call("GET", path, headers=headers)

    def post(self, path, body=None, headers=None):
        return self.call("POST", path, {} if body is None else body, headers)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Server:
    """A berth process. Settings become flags: reservation_ttl_ms=300 is --reservation-ttl-ms 300. `descriptors` limits how many file
    descriptors it may have."""

    def __init__(self, data_dir, log_dir, verb="server", env=None, args=(), log_path=None, binary=BINARY, descriptors=None,
                 **settings):
        self.data_dir = pathlib.Path(data_dir)
        self.secrets = []
        self.token = None  # to read /metrics with, where the server requires a token
        flags = {"listen": "127.0.0.1:0", "data_dir": str(self.data_dir), **settings}
        command = [*(["prlimit", f"--nofile={descriptors}"] if descriptors else []), binary, verb]
        for name, value in flags.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--" + name.replace("_", "-"), text]
        handle, name = tempfile.mkstemp(prefix="log-", dir=log_dir)
        self.log_path = log_path or pathlib.Path(name)  # the server's own log_file, if it has one
        # The server is killed when this process ends, however it ends.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command, *args], stdin=subprocess.DEVNULL,
            stdout=handle, stderr=handle, env=dict(clean_env(), **(env or {})))
        os.close(handle)
        live.add(self.process)
        self.port = None
        self.port = int(eventually("the server listens", self._listening, 60).group(1))

    def _listening(self):
        found = re.search(r'event"?[=:]"?server\.listening.*?addr"?[=:]\S*?:(\d+)', self.log)
        if not found and self.process.poll() is not None:
            raise AssertionError(f"the server exited {self.process.returncode}:\n{self.log}")
        return found

    @property
    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.is_file() else ""

    @property
    def pid(self):
        return self.process.pid

    def client(self):
        return Client(self.port)

    def call(self, method, path, body=None, headers=None):
        with self.client() as client:
            return client.call(method, path, body, dict(headers or {}, Connection="close"))

    def get(self, path, **headers):
        return self.call("GET", path, headers=headers)

    def post(self, path, body=None, headers=None):
        return self.call("POST", path, {} if body is None else body, headers)

    def node(self, node_id):
        return self.get(f"/v1/nodes/{node_id}").json

    def job(self, job_id, wait=None):
        """The job, or the error answer if there is none. Asks again while the store is too slow (503)."""
        def answer():
            found = self.get(f"/v1/jobs/{job_id}" + (f"?wait={wait}" if wait else ""))
            return found if found.status != 503 else None

        return eventually(f"GET of job {job_id} is answered without 503", answer).json

    def slots(self, node_id):
        """(reserved, running) of a node."""
        node = self.node(node_id)
        return node["reserved"], node["running"]

    def ask(self, path, client=None):
        """GET of `path` as JSON. Asks again while the store is too slow (503)."""
        def answer():
            found = (client or self).get(path)
            return found if found.status != 503 else None

        found = eventually(f"GET {path} is answered without 503", answer)
        assert found.status == 200, f"{path}: {found}"
        return found.json

    def all_jobs(self):
        """Every job, page by page."""
        jobs, cursor = [], ""
        with self.client() as client:
            while cursor is not None:
                page = self.ask(f"/v1/jobs?limit=500{'&cursor=' + cursor if cursor else ''}", client)
                jobs += page["jobs"]
                cursor = page["next_cursor"]
        return jobs

    def metrics(self):
        """The exposition text as {name{labels}: value}; raises on a line that is not well formed."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return parse_metrics(self.get("/metrics", **headers).body.decode())

    def kill(self):
        """Ends the server with SIGKILL, so that it cannot say goodbye."""
        self.process.kill()
        self.process.wait()
        live.discard(self.process)

    def stop(self, seconds=30, number=signal.SIGTERM):
        """Sends SIGTERM or another signal and returns the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the signal did not end it in {seconds * SLOW:g} s:\n{self.log[-2000:]}")
        finally:
            live.discard(self.process)

    def check_log(self):
        """Fails if the log has a sanitizer report, a broken invariant or a secret."""
        lines = self.log.splitlines()
        reports = [number for number, line in enumerate(lines) if REPORTS.search(line)]
        if reports:
            summaries = sorted({line for line in lines if line.startswith("SUMMARY")})
            raise AssertionError("\n".join(["the server reported:", *summaries,
                                            *lines[reports[0] - 1:reports[0] + 50]]))
        for line in lines:
            assert "invariant" not in line, f"an invariant was broken: {line}"
            for secret in self.secrets:
                assert secret not in line, f"a secret is in the log: {line}"


METRIC_LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_]+="[^"\n]*",?)*\})? (\S+)$')


def parse_metrics(text):
    values, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"{name} has two TYPE lines"
            typed.add(name)
        elif line and not line.startswith("#"):
            found = METRIC_LINE.match(line)
            assert found, f"not a line of the exposition format: {line!r}"
            base = re.sub(r"_(bucket|sum|count)$", "", found.group(1))
            assert found.group(1) in typed or base in typed, f"{line!r} has no TYPE line before it"
            key = found.group(1) + (found.group(2) or "")
            assert key not in values, f"{key} is exported twice"
            values[key] = float(found.group(4))
    return values


# Agents of a case run commands on the case's own files, which belong to root if the case runs as root. Without this the commands would run
# as another user.
OWN_WORK = {"job_user": "root", "allow_root": True} if os.geteuid() == 0 else {}


def settings_env(settings):
    """Settings as environment variables."""
    return {f"BERTH_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


def clean_env():
    """The environment without BERTH_ variables, which the binary would take for settings, and without the user's contexts."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("BERTH_")},
            "XDG_CONFIG_HOME": "/dev/null/none"}  # where not even root can create a file


def patient(settings):
    """The settings with long timeouts added, because on a busy machine Redis, a disk, a database or an acknowledging node may take seconds.
    What the case or its configuration file sets itself stays."""
    if "args" in settings:
        return settings
    defaults = {"reservation_ttl_ms": 30000}
    if "heartbeat_ms" not in settings:  # nodes that only speak HTTP send nothing between two steps of a case
        defaults["heartbeat_stale_ms"] = 60000
    if str(settings.get("store", "")).startswith("redis"):
        defaults.update(store_call_ms=int(5000 * SLOW), store_timeout_ms=int(5000 * SLOW))
    else:
        defaults["store_timeout_ms"] = 30000
    if "database" in settings:
        defaults["database_timeout_ms"] = 30000
    said = pathlib.Path(settings["config"]).read_text() if "config" in settings else ""
    return {**{name: value for name, value in defaults.items() if name not in said}, **settings}


def calm_machine(directory):
    """A host_root for agents that shows an idle machine, however busy this one is."""
    proc = pathlib.Path(directory) / "machine" / "proc"
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "loadavg").write_text("0.10 0.10 0.10 1/100 1\n")
    (proc / "meminfo").write_text("MemTotal: 16000000 kB\nMemFree: 15000000 kB\nMemAvailable: 15000000 kB\n"
                                  "SwapTotal: 0 kB\nSwapFree: 0 kB\n")
    cpu = "100 0 100 1000000 0 0 0 0 0 0"
    (proc / "stat").write_text(f"cpu  {cpu}\n" + "".join(f"cpu{i} {cpu}\n" for i in range(4)))
    return str(proc.parent)


def berth(*args, env=None, seconds=30, cwd=None):
    """Runs a command that ends by itself; the result has .returncode, .stdout and .stderr."""
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, cwd=cwd,
                          env=dict(clean_env(), **(env or {})), timeout=seconds * SLOW)


EN_ZH = {"health": "ready", "semantic_langs": ["en", "zh"], "nmt_pairs": [["en", "zh"], ["zh", "en"]],
         "tts_langs": ["en", "zh"], "max_concurrent_jobs": 2}


class Clock:
    """Sets the wall clock of programs that were started with its `env`, while they run."""

    def __init__(self, directory, seconds=0):
        handle, self.path = tempfile.mkstemp(prefix="clock-", dir=directory)
        os.close(handle)
        self.set(seconds)
        shim = pathlib.Path(BINARY).parent / "tests" / "setclock.so"
        self.env = {"LD_PRELOAD": str(shim), "SETCLOCK_FILE": self.path}

    def set(self, seconds, slept=0):
        """The clock is `seconds` ahead of the machine's, and the machine slept for `slept` seconds according to a clock that counts
        sleep."""
        with open(self.path, "r+b", buffering=0) as file:
            file.write(struct.pack("=qq", int(seconds * 1000), int(slept * 1000)))


class Node:
    """A node that only speaks HTTP: registers, polls, reports."""

    def __init__(self, server, node_id, register=True, **facts):
        self.server = server
        self.id = node_id
        self.facts = {**EN_ZH, **facts}
        self.facts = {name: value for name, value in self.facts.items() if value is not None}
        if register:
            answer = self.register()
            assert answer.status == 200, f"register answered {answer}"

    def register(self, **facts):
        self.facts.update(facts)
        return self.server.post("/v1/node/register", {"node_id": self.id, **self.facts})

    def heartbeat(self, **more):
        return self.server.post("/v1/node/heartbeat", {"node_id": self.id, **self.facts, **more})

    def poll(self, wait="20s", most=16):
        return self.server.get(f"/v1/node/jobs?node_id={self.id}&wait={wait}&max={most}").json["jobs"]

    def _report(self, what, job, more):
        body = {"job_id": job["job_id"], "attempt_id": job["attempt_id"], "node_id": self.id, **more}
        return self.server.post(f"/v1/job/{what}", body)

    def ack(self, job, **more):
        return self._report("ack", job, more)

    def done(self, job, **more):
        return self._report("done", job, {"status": "ok", **more})

    def fail(self, job, reason="MODEL_LOAD_FAILED", **more):
        return self._report("fail", job, {"status": "error", "reason": reason, **more})


class WsNode:
    """A node on a WebSocket. Messages are dicts; those that expect() skipped are kept in order."""

    def __init__(self, server, node_id, hello=True, headers=None, **facts):
        self.id = node_id
        self.facts = {**EN_ZH, **facts}
        self.waiting = collections.deque()
        self.number = 0
        self.socket = wsclient.WebSocket(server.port, "/v1/node/connect", headers, 30 * SLOW)
        if hello:
            self.hello()
            self.welcome = self.expect("welcome")

    def hello(self, **more):
        self.send("hello", protocol=1, node_id=self.id, **{**self.facts, **more})

    def send(self, msg, **fields):
        self.socket.send(json.dumps({"msg": msg, **fields}))

    def ask(self, msg, **fields):
        """Sends a message with an id and returns the reply."""
        self.number += 1
        self.send(msg, id=self.number, **fields)
        reply = self.expect("reply", re=self.number)
        return reply

    def report(self, msg, job, **fields):
        return self.ask(msg, job_id=job["job_id"], attempt_id=job["attempt_id"], **fields)

    def expect(self, msg, seconds=30, **fields):
        """The first message of that kind with those fields, from those already received or within `seconds`."""
        def fits(message):
            return message["msg"] == msg and all(message.get(k) == v for k, v in fields.items())

        for message in list(self.waiting):
            if fits(message):
                self.waiting.remove(message)
                return message
        deadline = time.monotonic() + seconds * SLOW
        while True:
            text = self.socket.recv(max(0.001, deadline - time.monotonic()))
            if text is None:
                continue
            message = json.loads(text)
            if fits(message):
                return message
            self.waiting.append(message)

    def expect_any(self, *kinds, seconds=30):
        """The first message of one of these kinds; expect() still returns it afterwards."""
        while not any(message["msg"] in kinds for message in self.waiting):
            text = self.socket.recv(seconds * SLOW)
            self.waiting.extend([json.loads(text)] if text else [])
        return next(message for message in self.waiting if message["msg"] in kinds)

    def closed(self, seconds=30):
        """Waits until the server closes the connection; the close code."""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            try:
                self.socket.recv(max(0.001, deadline - time.monotonic()))
            except wsclient.Closed as end:
                return end.code

    def close(self):
        self.socket.close()


class Listener:
    """A local HTTP server that keeps the requests it gets: the receiver of pushed jobs and callbacks. `answers` are the statuses of the
    requests in turn; the last one repeats. With a `gate` (an Event) the answers are held back until it is set."""

    def __init__(self, answers=(200,), port=0, gate=None):
        self.requests = []
        self.answers = list(answers)
        self.gate = gate
        self.arrived = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with outer.arrived:
                    status = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                    outer.requests.append((self.path, dict(self.headers), json.loads(body)))
                    outer.arrived.notify_all()
                if outer.gate:
                    outer.gate.wait(30 * SLOW)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def wait(self, count=1, seconds=30):
        """The requests, once there are that many."""
        with self.arrived:
            ok = self.arrived.wait_for(lambda: len(self.requests) >= count, seconds * SLOW)
        assert ok, f"{len(self.requests)} requests arrived, not {count}"
        return self.requests

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Events:
    """Reads GET /v1/events in a thread and keeps (event, data) and the last id. The constructor returns once the server has subscribed the
    stream; the head of the answer comes before that, so it waits for the first event or ": resumed"."""

    def __init__(self, server, path="/v1/events", last_id=None, headers=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60 * SLOW)
        headers = {"Accept": "text/event-stream", **(headers or {})}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        self.last_id = last_id
        self.connection.request("GET", path, headers=headers)
        self.socket = self.connection.sock  # getresponse() takes the socket away from the connection
        self.reply = self.connection.getresponse()
        self.seen = []
        self.begun = threading.Event()
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.begun.wait(60 * SLOW), "the event stream does not begin"

    def _read(self):
        name, data, number = "message", [], self.last_id
        try:
            for raw in self.reply:
                line = raw.decode().rstrip("\r\n")
                if line.startswith("event:"):
                    name = line[6:].strip()
                elif line.startswith("data:"):
                    data.append(line[5:].strip())
                elif line.startswith("id:"):
                    number = line[3:].strip()
                elif not line and data:  # an event that was cut off in the middle does not count
                    self.last_id = number
                    self.seen.append((name, json.loads("\n".join(data))))
                    name, data = "message", []
                    self.begun.set()
                elif line == ": resumed":  # no missed events; ": alive" may come before the stream is subscribed
                    self.begun.set()
        except (OSError, ValueError, AttributeError):
            pass
        self.begun.set()
        self.ended.set()

    def close(self):
        """Cuts the connection; nothing more is read."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server closed it first
        self.ended.wait(10)
        self.connection.close()


class Case(unittest.TestCase):
    """A test with servers of its own. At the end each server must stop on SIGTERM with exit 0, have counted no broken invariant and have no
    bad line in its log."""

    longMessage = True

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="berth-e2e-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.servers = []
        self.missed = []
        self.tails = []  # the last lines of each log, for the report of a failure
        self.addCleanup(self._end_servers)

    def _end_servers(self):
        for server in self.servers:
            self.tails += server.log.splitlines()[-25:]
            if server.process in live:
                server.process.kill()
                server.process.wait()
                live.discard(server.process)
        self.servers = []

    def start(self, data_dir="data", **settings):
        """A running server. The same data_dir again is the same store."""
        server = Server(self.dir / data_dir, self.dir, **patient(settings))
        self.servers.append(server)
        return server

    def tearDown(self):
        for server in self.servers:
            if server.process in live:
                if server.process.poll() is not None:
                    self.fail(f"the server died with {server.process.returncode}:\n{server.log[-4000:]}")
                broken = {name: value for name, value in server.metrics().items()
                          if name.startswith("berth_invariant_violations_total") and value}
                self.assertEqual(broken, {}, "invariants were broken")
                code = server.stop()
                server.check_log()
                self.assertEqual(code, 0, "SIGTERM")
            server.check_log()

    def gate(self, what, value, goal, met, of="store"):
        """Prints one line with a measurement, which `make test` shows; `missed` collects the gates that were not met."""
        print(f"gate {of} {what}: {value} ({goal}){'' if met else ' NOT MET'}", flush=True)
        if not met:
            self.missed.append(what)

    # The shape of answers, checked in one place.

    def ok(self, answer, status=200):
        self.assertEqual(answer.status, status, str(answer))
        return answer.json

    def problem(self, answer, status, error):
        """Checks an error answer: status, error name, content type, and a `detail` that is a whole sentence."""
        self.assertEqual(answer.status, status, str(answer))
        self.assertEqual(answer.headers.get_content_type(), "application/problem+json", str(answer))
        body = answer.json
        self.assertEqual(body["error"], error, str(answer))
        self.assertTrue(body["detail"].endswith("."), f"detail is not a sentence: {body['detail']!r}")
        return body

    def dispatch(self, server, src="en", tgt="zh", session="room-888", headers=None, **options):
        body = {"session_id": session, "src_lang": src, "tgt_lang": tgt, "audio_ref": "blob://a",
                "options": {"require_tts": False, "preferred_node_id": None, **options}}
        return server.post("/v1/dispatch/f2f", body, headers)

    def placed(self, server, **how):
        """A dispatch that must succeed; returns {job_id, node_id, attempt_id}."""
        return self.ok(self.dispatch(server, **how))

    def task(self, server, type="dev", headers=None, **fields):
        return server.post("/v1/dispatch/task", {"type": type, "payload": {"n": 1}, **fields}, headers)

    def assertSlots(self, server, node_id, reserved, running):
        """Waits, because a reader of a job may see its end before the node's counts are published. A leaked slot stays taken."""
        eventually(f"(reserved, running) of {node_id} are {reserved}, {running}", lambda: server.slots(node_id) == (reserved, running))

    def assertQueue(self, server, depth):
        """Waits for the gauge, which is updated only from time to time."""
        eventually(f"berth_queue_depth is {depth}", lambda: server.metrics()["berth_queue_depth"] == depth)

    def state_of(self, server, job, state, seconds=30):
        """Waits until the job is in that state and returns it."""
        def there():
            found = server.job(job["job_id"])
            return found if found["state"] == state else None

        try:
            return eventually("", there, seconds)
        except AssertionError:
            self.fail(f"the job never was {state}: {server.job(job['job_id'])}")
