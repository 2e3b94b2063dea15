"""Other job queues, measured in the same run as berth: bench/run --peers. Each peer is a row. The servers take turns; each repetition
starts them anew, with the settings of their packages, on loopback.

A job does nothing: it is submitted, given to one of 16 worker connections in a separate process, and ended as soon as the worker has
it. It
is done when the submitter is notified or the server says so. Measured for each: whole jobs a second with 64 and with 1,024
outstanding, CPU
of the server and of the bench per job, and at 100 jobs a second how long it takes until a worker has a job and until it is done; for
our
embedded store also how long its commits took meanwhile. Our CPU time includes the work until store.db has everything that was
answered."""
import dataclasses
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import typing

import procs
import redis_rows

HERE = os.path.dirname(os.path.abspath(__file__))
CONCS = (64, 1024)
RATE = 100
REPS = 3
WARM_UP_S = 0.5
WARM_UP_LOW_S = 3
TRIES = 2  # for a peer that fails

# Programs and the Debian packages that contain them.
GEARMAND = ("gearmand", "gearman-job-server")
BEANSTALKD = ("beanstalkd", "beanstalkd")
NATS = ("nats-server", "nats-server")
REDIS = ("redis-server", "redis-server")

median = statistics.median


class Server:
    """A running program with its data; as a context manager it ends with both."""

    def __init__(self, process, port, directory):
        self.process, self.port, self.dir = process, port, directory
        self.pids = [process.pid]
        procs.wait_port(port, process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        procs.stop(self.process)
        procs.drop_dir(self.dir)


def gearmand(run):
    directory, port = procs.temp_dir(), procs.free_port()
    command = [procs.installed(*GEARMAND), "--listen", "127.0.0.1", "--port", port, "--log-file", "none",
               "--pid-file", os.path.join(directory, "pid")]
    return Server(procs.spawn(command + (["--user", "root"] if os.getuid() == 0 else [])), port, directory)


def beanstalkd(*flags):
    def start(run):
        directory, port = procs.temp_dir(run.args.data_root), procs.free_port()
        command = [procs.installed(*BEANSTALKD), "-l", "127.0.0.1", "-p", port]
        return Server(procs.spawn(command + [flag.format(dir=directory) for flag in flags]), port, directory)
    return start


def nats(*flags):
    def start(run):
        directory, port = procs.temp_dir(run.args.data_root), procs.free_port()
        command = [procs.installed(*NATS), "-a", "127.0.0.1", "-p", port]
        process = procs.spawn(command + [flag.format(dir=directory) for flag in flags], stderr=subprocess.DEVNULL)
        return Server(process, port, directory)
    return start


def nats_call(port, subject, body):
    """Sends one request; JetStream answers in JSON."""
    text = json.dumps(body)
    with socket.create_connection(("127.0.0.1", port), 10) as sock, sock.makefile("rb") as answers:
        sock.sendall(f'CONNECT {{"verbose":false}}\r\nSUB _INBOX.call 1\r\nPUB {subject} _INBOX.call {len(text)}\r\n{text}\r\n'.encode())
        for line in answers:
            if line.startswith(b"MSG "):
                answer = json.loads(answers.read(int(line.split()[-1])))
                if "error" in answer:
                    raise RuntimeError(f"{subject}: {answer['error']}")
                return
    raise RuntimeError(f"{subject}: no answer")


def jetstream(run):
    """A work queue in a file, pushed to the workers' group; as many jobs may be unacknowledged as are outstanding."""
    server = nats("-js", "-sd", "{dir}")(run)
    nats_call(server.port, "$JS.API.STREAM.CREATE.jobs",
              {"name": "jobs", "subjects": ["jobs.*"], "retention": "workqueue", "storage": "file", "num_replicas": 1, "max_consumers": -1})
    nats_call(server.port, "$JS.API.CONSUMER.DURABLE.CREATE.jobs.noop",
              {"stream_name": "jobs", "config": {"durable_name": "noop", "deliver_subject": "deliver.noop", "deliver_group": "workers",
                                                 "ack_policy": "explicit", "max_ack_pending": 10000}})
    return server


class OnRedis:
    """A Redis, and optionally a server that uses it."""

    def __init__(self, redis, server=None):
        self.redis, self.server = redis, server
        self.port = (server or redis).port
        self.pids = [one.pid for one in (redis, server) if one]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for one in (self.server, self.redis):
            if one:
                one.__exit__(*error)


def berth(run):
    server = run.berth(loops=1)
    server.pids = [server.pid]
    return server


def berth_on_redis(run):
    redis = redis_rows.Redis(appendonly=True, root=run.args.data_root)
    return OnRedis(redis, run.berth(loops=1, store=f"redis://127.0.0.1:{redis.port}/0"))


def load(protocol):
    return lambda run, verb: [run.load, verb, "--protocol", protocol]


def bullmq_client(run, verb):
    """BullMQ's library from npm, in a directory of the bench: nothing is put into the checkout."""
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "web"))
    import packages
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = os.path.join(cache, "berth-bench", "bullmq")
    shutil.copytree(os.path.join(HERE, "bullmq"), directory, dirs_exist_ok=True)
    node = procs.installed("node", "nodejs")
    try:
        packages.fetch(directory)
    except packages.Unreachable as why:
        raise RuntimeError(f"BullMQ is not installed: {why}") from None
    return [node, os.path.join(directory, "client.js"), verb]


def said(*command):
    """The version in the output of a program."""
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    if not found:
        raise RuntimeError(f"{' '.join(command)} tells no version")
    return found.group()


def berth_version(run):
    return said(run.binary, "version")


def version(program, flag):
    return lambda run: said(procs.installed(*program), flag)


def bullmq_version(run):
    with open(os.path.join(HERE, "bullmq", "package.json")) as file:
        return json.load(file)["dependencies"]["bullmq"]


@dataclasses.dataclass
class Peer:
    key: str
    name: str  # {version} and {redis} are filled in
    on_disk: str  # when an accepted job is on disk
    done: str  # when a job counts as done
    start: typing.Callable  # called with the run: a context with port and pids
    client: typing.Callable  # called with the run and "sat" or "low": the command of the client
    version: typing.Callable  # called with the run
    jobs: int  # about this many a second; the warm-up finds out how many fill a window
    seconds: int = 4  # length of a window; ours is long enough to include what store.db has to follow
    ours: bool = False
    library: bool = False  # its client does what a server does elsewhere, so it does not count as bench


PEERS = [
    Peer("berth", "berth {version}, embedded store, client WebSocket", "before the answer", "the submitter is told, and the store has accepted the DONE",
         berth, load("socket-together"), berth_version, 30000, seconds=30, ours=True),
    Peer("berth-http", "berth {version}, embedded store, a request for each job", "before the answer", "the store has accepted the worker's DONE",
         berth, load("berth"), berth_version, 15000, ours=True),
    Peer("berth-redis", "berth {version}, Redis {redis} with `appendonly`, client WebSocket", "within a second",
         "the submitter is told, and the store has accepted the DONE",
         berth_on_redis, load("socket-together"), berth_version, 15000, ours=True),
    Peer("beanstalkd-fsync", "beanstalkd {version}, binlog, `-f 0`", "before the answer", "DELETED",
         beanstalkd("-b", "{dir}", "-f", "0"), load("beanstalkd"), version(BEANSTALKD, "-v"), 2000),
    Peer("beanstalkd-binlog", "beanstalkd {version}, binlog", "within 50 ms", "DELETED",
         beanstalkd("-b", "{dir}"), load("beanstalkd"), version(BEANSTALKD, "-v"), 15000),
    Peer("beanstalkd", "beanstalkd {version}", "never", "DELETED",
         beanstalkd(), load("beanstalkd"), version(BEANSTALKD, "-v"), 30000),
    Peer("jetstream", "NATS {version} JetStream, file", "within 2 minutes", "the acknowledgement is acknowledged",
         jetstream, load("jetstream"), version(NATS, "--version"), 30000),
    Peer("nats", "NATS {version}, request and reply", "never", "the reply is there",
         nats(), load("nats"), version(NATS, "--version"), 80000),
    Peer("gearmand", "gearmand {version}", "never", "the submitter is told",
         gearmand, load("gearman"), version(GEARMAND, "--version"), 40000),
    Peer("bullmq", "BullMQ {version}, Redis {redis}", "never", "the event `completed` is there",
         lambda run: OnRedis(redis_rows.Redis()), bullmq_client, bullmq_version, 2000, library=True),
]


# ------------------------------------------------------------------------------------ measuring

def window(run, peer, server, verb, **flags):
    """One run of the client, with the CPU time that the server used for it."""
    words = [word for name, value in flags.items() for word in ("--" + name, value)]
    command = [*peer.client(run, verb), "--port", server.port, *words]
    before = sum(procs.cpu_s(pid) for pid in server.pids)
    found = procs.run_json(command, timeout=300)
    after = procs.settled_cpu_s(server.pids) if peer.ours and verb == "sat" else sum(procs.cpu_s(pid) for pid in server.pids)
    return {**found, "server_cpu_s": after - before}


def measure_low(run, peer, server, seconds):
    commits = isinstance(server, procs.Berth)
    before = server.commits() if commits else None
    low = window(run, peer, server, "low", rate=RATE, secs=seconds)
    found = {f"{what}_p{share}_us": procs.percentile(low[f"{what}_us"], share / 100) for what in ("start", "done") for share in (50, 99)}
    if commits:
        found.update({f"commit_p{share}_us": procs.bucket_quantile(before, server.commits(), share / 100) for share in (50, 99)})
    return found


def measure_once(run, peer):
    seconds = 0.3 if run.quick else peer.seconds
    figures = {}
    with peer.start(run) as server:
        # First, with a disk that has nothing else to do: for seconds after a window at full speed the system still writes.
        window(run, peer, server, "low", rate=RATE, secs=0.3 if run.quick else WARM_UP_LOW_S)
        figures["low"] = measure_low(run, peer, server, 1 if run.quick else 10 if peer.ours else 5)
        for conc in CONCS:
            warm = window(run, peer, server, "sat", jobs=max(conc, int(peer.jobs * (0.1 if run.quick else WARM_UP_S))), conc=conc)
            jobs = max(conc, int(warm["jobs"] / warm["elapsed_s"] * seconds))
            found = window(run, peer, server, "sat", jobs=jobs, conc=conc)
            figures[str(conc)] = {"per_s": jobs / found["elapsed_s"], "seconds": found["elapsed_s"],
                                  **{f"{who}_us": found[f"{who}_cpu_s"] / jobs * 1e6 for who in ("server", "submit", "worker")}}
    return figures


def machine(run):
    with open("/proc/cpuinfo") as file:
        rows = dict(re.split(r"\s*:\s*", line.strip(), maxsplit=1) for line in file if re.search(r":\s*\S", line))
    return {"cpu": rows.get("model name", platform.machine()), "cores": os.cpu_count(), "virtual": "hypervisor" in rows.get("flags", ""),
            "kernel": platform.release(), "filesystem": run.filesystem(), "load": os.getloadavg()[0]}


def measure(run, wanted):
    """The figures that report.py reads. A peer that cannot be measured has an error instead of figures, and no further turn."""
    figures = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine(run), "redis": version(REDIS, "--version")(run), "disk": [],
               "peers": {peer.key: {"runs": []} for peer in wanted}}
    for turn in range(1 if run.quick else REPS):
        run.quiet()
        figures["disk"].append(procs.fdatasync(run.args.data_root, 0.3 if run.quick else 2))
        for peer in wanted:
            if "error" not in figures["peers"][peer.key]:
                run.quiet()
                take_turn(run, peer, figures["peers"][peer.key])
                print(f"{peer.key}: turn {turn + 1} of {1 if run.quick else REPS}", file=sys.stderr, flush=True)
    figures["other_work"] = round(run.busy, 3)
    return figures


def take_turn(run, peer, found):
    """A first failure may be the machine's fault; a second one is reported."""
    for left in reversed(range(TRIES)):
        try:
            found["version"] = peer.version(run)
            found["runs"].append(measure_once(run, peer))
            return
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            if not left:
                found["error"] = str(error)


def spread(figures, key, *path):
    """(least, median, most) of a figure over the repetitions."""
    values = []
    for one in figures["peers"][key]["runs"]:
        for name in path:
            one = one[name]
        values.append(one)
    return min(values), median(values), max(values)


def has_commits(figures, key):
    return all("commit_p50_us" in one["low"] for one in figures["peers"][key]["runs"])


def judge_latency(run, figures, key):
    """A job is three commits, one after the other; the rest of its time is ours."""
    done, commit = ([spread(figures, key, "low", f"{what}_p{share}_us")[1] for share in (50, 99)] for what in ("done", "commit"))
    run.say(key, "  a commit of the journal meanwhile, p50 / p99", f"{commit[0]:,.0f} / {commit[1]:,.0f} us")
    run.say(key, "  done p50 over 3 commits, beyond them", f"{done[0] - 3 * commit[0]:,.0f} us", "<= 200 us", done[0] <= 3 * commit[0] + 200)
    run.say(key, "  done p99 over a commit's p99", f"{done[1] / commit[1]:.1f}", "<= 6", done[1] <= 6 * commit[1])


# Our figure over theirs: {key: the least share of its rate at 64 outstanding}.
BESIDE = {"beanstalkd": 1.0, "gearmand": 0.7}
CPU_US = {64: 25, 1024: 20}


def judge_beside(run, figures, failed):
    """The goals for berth compared with the others of the same run."""
    there = set(figures["peers"]) - {peer.key for peer in failed}
    if "berth" not in there:
        return
    for key in sorted(there & set(BESIDE)):
        share = spread(figures, "berth", "64", "per_s")[1] / spread(figures, key, "64", "per_s")[1]
        run.say("berth", f"whole jobs, 64 outstanding, over {key}", f"{share:.2f}", f">= {BESIDE[key]}", share >= BESIDE[key])
    for conc, goal in CPU_US.items():
        us = spread(figures, "berth", str(conc), "server_us")[1]
        run.say("berth", f"CPU of the server for a job, {conc:,} outstanding", f"{us:.1f} us", f"<= {goal} us", us <= goal)
    if "gearmand" in there:
        share = spread(figures, "berth", "low", "done_p50_us")[1] / spread(figures, "gearmand", "low", "done_p50_us")[1]
        run.say("berth", f"submit to done at {RATE}/s, p50 over gearmand's", f"{share:.2f}", "<= 1.2", share <= 1.2)


def tell(run, figures, wanted):
    """Prints each figure; returns how many peers have none."""
    disk = figures["disk"]
    run.say("disk", "4 KiB and fdatasync, one after the other; p99",
            f"{median(one['per_s'] for one in disk):,.0f}/s; {max(one['p99_us'] for one in disk):,.0f} us")
    failed = [peer for peer in wanted if "error" in figures["peers"][peer.key]]
    for peer in failed:
        print(f"{peer.key}  could not be measured: {figures['peers'][peer.key]['error']}", flush=True)
    for peer in wanted:
        if peer in failed:
            continue
        for conc in CONCS:
            least, middle, most = spread(figures, peer.key, str(conc), "per_s")
            run.say(peer.key, f"whole jobs, {conc:,} outstanding (worst-best)", f"{middle:,.0f}/s", f"{least:,.0f}-{most:,.0f}")
            us = [spread(figures, peer.key, str(conc), f"{who}_us")[1] for who in ("server", "submit", "worker")]
            goal = ("", None) if peer.library else ("bench < server", us[1] + us[2] < us[0])
            run.say(peer.key, "  CPU per job: server / submitter / workers", " / ".join(f"{one:.1f}" for one in us) + " us", *goal)
        for what in ("start", "done"):
            p50, p99 = (spread(figures, peer.key, "low", f"{what}_p{share}_us")[1] for share in (50, 99))
            run.say(peer.key, f"submit to {what} at {RATE}/s, p50 / p99", f"{p50:,.0f} / {p99:,.0f} us")
        if has_commits(figures, peer.key):
            judge_latency(run, figures, peer.key)
    judge_beside(run, figures, failed)
    return len(failed)
