"""Processes of a benchmark: started in temporary directories on free ports, ended by their pid, and their cost. Standard library only."""
import atexit
import contextlib
import ctypes
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

_libc = ctypes.CDLL(None)
_procs, _dirs = [], []


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)


def spawn(command, **options):
    """Starts a process that ends with this one, however this one ends."""
    command = [str(word) for word in command]
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.DEVNULL)
    process = subprocess.Popen(command, preexec_fn=_die_with_parent, **options)
    _procs.append(process)
    return process


def stop(process, sig=signal.SIGKILL):
    """Ends the process by its pid; the default is SIGKILL, because its data is thrown away."""
    if process.poll() is None:
        process.send_signal(sig)
    process.wait()
    if process in _procs:
        _procs.remove(process)


def temp_dir(root=None):
    path = tempfile.mkdtemp(prefix="berth-bench-", dir=root)
    _dirs.append(path)
    return path


def drop_dir(path):
    shutil.rmtree(path, ignore_errors=True)
    if path in _dirs:
        _dirs.remove(path)


def _end_all():
    for process in reversed(list(_procs)):
        with contextlib.suppress(Exception):
            stop(process)
    for path in list(_dirs):
        drop_dir(path)


atexit.register(_end_all)
for _sig in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(_sig, lambda number, frame: os._exit(_end_all() or 128 + number))


def raise_fd_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


_given = set()


def free_port():
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port


def wait_port(port, process, seconds=20, log=None):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = open(log).read()[-800:] if log else ""
            raise RuntimeError(f"{process.args[0]} exited with {process.returncode}: {said}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args[0]} does not listen on port {port}")


def threads(pid):
    """{tid: name}"""
    names = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            names[int(tid)] = open(f"/proc/{pid}/task/{tid}/comm").read().strip()
    return names


def cpu_s(pid):
    """CPU seconds so far."""
    return sum(cpu_by_thread(pid).values())


def cpu_by_thread(pid):
    """{thread name without its number: CPU seconds}, from the scheduler's own account, not from sampled ticks."""
    sums = {}
    for tid, name in threads(pid).items():
        name = re.sub(r"-?\d+$", "", name)
        with contextlib.suppress(OSError):
            ns = int(open(f"/proc/{pid}/task/{tid}/schedstat").read().split()[0])
            sums[name] = sums.get(name, 0) + ns / 1e9
    return sums


def settled_cpu_s(pids):
    """CPU seconds, once the work that is left after the last answers is done."""
    seen = sum(cpu_s(pid) for pid in pids)
    for _ in range(60):
        time.sleep(0.7)  # longer than store.db lags behind
        now = sum(cpu_s(pid) for pid in pids)
        if now - seen < 0.01:
            break
        seen = now
    return now


def background(seconds=0.5):
    """The share of the machine that is busy while we do nothing."""
    def read():
        values = [int(word) for word in open("/proc/stat").readline().split()[1:9]]
        return sum(values) - values[3] - values[4], sum(values)

    busy, total = read()
    time.sleep(seconds)
    busy_after, total_after = read()
    return (busy_after - busy) / max(1, total_after - total)


def rss_kb(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


def installed(name, package):
    """The path of a program, also if it is only in root's PATH."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if not path:
        raise RuntimeError(f"{name} is not installed (Debian: {package})")
    return path


def fdatasync(root, seconds):
    """Appends 4 KiB at a time to a file and makes each durable: how many a second, and how long one takes."""
    path, block, took = os.path.join(temp_dir(root), "fdatasync"), bytes(4096), []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        before = time.monotonic()
        os.write(fd, block)
        os.fdatasync(fd)
        took.append((time.monotonic() - before) * 1e6)
    os.close(fd)
    drop_dir(os.path.dirname(path))
    return {"per_s": len(took) / seconds, "p50_us": percentile(took, .5), "p99_us": percentile(took, .99)}


class Nginx:
    """nginx with `return 200` and one worker: the cheapest answer that a good HTTP server can give."""

    def __init__(self):
        self.dir, self.port = temp_dir(), free_port()
        user = "user root;" if os.getuid() == 0 else ""
        spots = " ".join(f"{kind}_temp_path {self.dir}/{kind};"
                         for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        conf = os.path.join(self.dir, "nginx.conf")
        with open(conf, "w") as out:
            out.write(f"""daemon off; {user} worker_processes 1; pid {self.dir}/pid; error_log {self.dir}/error crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; {spots}
  server {{ listen 127.0.0.1:{self.port} backlog=4096; location / {{ return 200 'ok'; }} }} }}
""")
        self.process = spawn([installed("nginx", "nginx-light"), "-c", conf, "-p", self.dir, "-e", f"{self.dir}/error"])
        wait_port(self.port, self.process)
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        while not (kids := open(children).read().split()):  # the port was open before its worker was started
            time.sleep(0.01)
        self.pid = int(kids[0])

    def stop(self):
        stop(self.process, signal.SIGTERM)
        drop_dir(self.dir)


# Other work can delay a disk or Redis for longer than callers wait by default. That may make a figure worse, but must not prevent it.
PATIENT = {"store_timeout_ms": 60000, "store_call_ms": 60000}


class Berth:
    """A new server with its own durable store."""

    def __init__(self, binary, data_root=None, **settings):
        self.dir, self.port = temp_dir(), free_port()
        self.data = temp_dir(data_root)
        settings = {"listen": f"127.0.0.1:{self.port}", "data_dir": os.path.join(self.data, "data"),
                    "log_level": "warn", **PATIENT, **settings}
        command = [binary, "server"]
        for name, value in settings.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        self.log = os.path.join(self.dir, "log")
        with open(self.log, "wb") as log:
            self.process = spawn(command, stdout=log, stderr=log)
        self.pid = self.process.pid
        wait_port(self.port, self.process, log=self.log)

    def register(self, count, slots=1000000, prefix="node"):
        """Registers nodes that poll in the pool en:zh, over up to 16 connections."""
        numbers, errors, lock = iter(range(count)), [], threading.Lock()

        def work():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            while not errors:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                body = json.dumps({"node_id": f"{prefix}-{number}", "health": "ready", "semantic_langs": ["en", "zh"],
                                   "nmt_pairs": [["en", "zh"], ["zh", "en"]], "tts_langs": ["en", "zh"],
                                   "max_concurrent_jobs": slots})
                connection.request("POST", "/v1/node/register", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    errors.append(f"{answer.status} {text[:200]}")

        crew = [threading.Thread(target=work) for _ in range(min(16, count))]
        for one in crew:
            one.start()
        for one in crew:
            one.join()
        if errors:
            raise RuntimeError("a node could not be registered: " + errors[0])

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 202):
            raise RuntimeError(f"{path}: {answer.status} {text[:200]}")
        return json.loads(text)

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()

    def ended(self):
        """How many jobs have ended, by state."""
        return {state: float(value) for state, value in re.findall(r'^berth_jobs_total\{state="(\w+)"\} (\S+)', self.metrics(), re.M)}

    def commits(self):
        """[(us, how many commits of the journal took at most that long)]."""
        return [(float(le) * 1e6, int(value))
                for le, value in re.findall(r'^berth_store_commit_seconds_bucket\{le="([^"]+)"\} (\d+)', self.metrics(), re.M)]

    def wait_done(self, count, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.ended()
            if sum(ended.values()) >= count:
                if ended.get("FAILED"):
                    raise RuntimeError(f"{ended['FAILED']:.0f} of {count} jobs failed")
                return int(ended["DONE"])
            time.sleep(0.05)
        raise RuntimeError(f"{count} jobs did not end in {seconds} s: {self.ended()}")

    def stop(self):
        stop(self.process)
        drop_dir(self.dir)
        drop_dir(self.data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Agent:
    """A real agent with 16 slots, on a simulated idle machine (its host_root)."""

    def __init__(self, binary, server):
        root = os.path.join(server.dir, "machine")
        os.makedirs(os.path.join(root, "proc"))
        files = {"loadavg": "0.10 0.10 0.10 1/100 1\n", "stat": "cpu  100 0 100 1000000 0 0 0 0 0 0\n",
                 "meminfo": "MemTotal: 16000000 kB\nMemAvailable: 15000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"}
        files["stat"] += "".join(f"cpu{i} 100 0 100 1000000 0 0 0 0 0 0\n" for i in range(4))
        for name, text in files.items():
            with open(os.path.join(root, "proc", name), "w") as file:
                file.write(text)
        with open(os.path.join(server.dir, "agent.log"), "wb") as log:
            self.process = spawn([binary, "agent", "--server", f"http://127.0.0.1:{server.port}", "--node-id", "bench",
                                  "--data-dir", os.path.join(server.data, "agent"), "--host-root", root, "--slots-fixed", "16",
                                  "--max-concurrent-jobs", "16", "--allow-commands", "--log-level", "warn"],
                                 stdout=log, stderr=log)
        self.pid = self.process.pid
        deadline = time.monotonic() + 10
        jobs = [{"type": "task", "command": ["/bin/true"]}]
        while server.post("/v1/dispatch/batch", {"jobs": jobs})["results"][0]["status"] != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("the agent did not connect")
            time.sleep(0.05)

    def zombies(self):
        """How many ended processes were not reaped within 5 s."""
        deadline = time.monotonic() + 5
        while (left := self._zombies()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    @staticmethod
    def _zombies():
        count = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            count += rest.split()[0] == "Z" and ("berth" in name or "true" in name)
        return count

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stop(self):
        stop(self.process)


def machine_cpu_s():
    """The CPU seconds that the whole machine has used since it started."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def program(binary, name):
    """The path of a program of bench/, which is built if need be."""
    build = os.path.dirname(binary)
    path = os.path.join(build, "bench", name)
    if os.path.exists(os.path.join(build, "build.ninja")):
        done = subprocess.run(["ninja", "-C", build, "bench/" + name], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"bench/{name} cannot be built: " + done.stdout[-400:])
    if not os.path.exists(path):
        raise RuntimeError(f"{path} is not there")
    return path


class Idle:
    """Connected nodes that do nothing (`load idle`); the rate of their heartbeats can be changed."""

    def __init__(self, load, port, conns, rate=0, **flags):
        command = [load, "idle", "--port", port, "--conns", conns, "--heartbeats-per-s", rate]
        for name, value in flags.items():
            command += ["--" + name, value]
        self.process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"load idle exited with {self.process.wait()}")
        self.opened = json.loads(line)

    def rate(self, per_s):
        self.process.stdin.write(f"{per_s}\n")
        self.process.stdin.flush()

    def stop(self):
        """Ends it; returns how many heartbeats were sent."""
        self.process.stdin.close()
        line = self.process.stdout.readline()
        code = self.process.wait()
        stop(self.process)
        if code:
            raise RuntimeError(f"load idle exited with {code}: {line}")
        return json.loads(line)


def wrk(port, seconds, conns=64):
    """One window; raises if an answer was not 2xx, because then the figures mean nothing."""
    lua = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dispatch.lua")
    command = ["wrk", "-t1", f"-c{conns}", f"-d{seconds}s", "--timeout", "10s", "-s", lua,
               f"http://127.0.0.1:{port}/v1/dispatch/f2f"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, preexec_fn=_die_with_parent)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"wrk: {done.stderr or done.stdout}")
    result = json.loads(lines[-1])
    if result["refused"] or result["broken"]:
        raise RuntimeError(f"of {result['requests']} dispatches {result['refused']} were refused and "
                           f"{result['broken']} broke")
    result["per_s"] = result["requests"] / result["secs"]
    return result


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def bucket_quantile(before, after, share):
    """A quantile of what a histogram counted between two readings; inside a bucket values are taken as evenly spread."""
    counts = [(us, now - was) for (us, now), (_, was) in zip(after, before)]
    wanted, low_us, below = share * counts[-1][1], 0, 0
    if not counts[-1][1]:
        raise RuntimeError("nothing was counted")
    for us, upto in counts:
        if upto >= wanted and upto > below:
            return low_us + (us - low_us) * (wanted - below) / (upto - below) if us != float("inf") else low_us
        low_us, below = us, upto
    raise AssertionError("the last bucket has everything")


def run_json(command, timeout=120):
    """Runs a program of the bench to its end and parses its last line as JSON."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                          preexec_fn=_die_with_parent)
    if done.returncode:
        raise RuntimeError(f"{command[1:3]} exited with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])
