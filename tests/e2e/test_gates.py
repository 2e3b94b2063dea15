"""The gates of the store, one by one, on a real Redis: each prints a line with what was measured, which `make test` shows."""
import collections
import json
import pathlib
import re
import struct
import subprocess
import threading
import time

from harness import BINARY, SLOW, Case, Node, berth, eventually, percentile, tags
from redis import Redis

READS = {"FCALL", "FUNCTION", "HGET", "HMGET", "HGETALL", "HSCAN", "GET", "MGET", "ZRANGEBYLEX", "ZREVRANGEBYLEX",
         "SUBSCRIBE", "UNSUBSCRIBE", "INFO", "CONFIG", "ROLE", "PING", "AUTH", "SELECT", "HELLO", "CLIENT", "CLUSTER"}
RETENTION_MS = 600000


class LockWatch:
    """Counts how often each thread of a berth process takes or waits for a lock, and how often it allocates memory
    (tests/tools/lockwatch.c)."""

    library = pathlib.Path(BINARY).parent / "tests" / "lockwatch.so"

    def __init__(self, path):
        self.path = path
        self.env = {"LD_PRELOAD": str(self.library), "LOCKWATCH": str(path)}

    def counts(self):
        """{thread name: locks taken or waited for so far}; threads with the same name are added up."""
        return self._column(0)

    def allocations(self):
        return self._column(1)

    def _column(self, number):
        counts = collections.Counter()
        data = self.path.read_bytes()
        for at in range(0, len(data), 32):
            name, *row = struct.unpack_from("<16sQQ", data, at)
            if name[0]:
                counts[name.split(b"\0")[0].decode()] += row[number]
        return counts


class Watch:
    """Records every command that Redis gets, and whether a script sent it, with MONITOR."""

    def __init__(self, redis):
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "redis-cli", "-p", str(redis.port), "MONITOR"],
                                        stdout=subprocess.PIPE, text=True, errors="replace")
        self.process.stdout.readline()
        self.direct, self.scripted = set(), 0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            found = re.match(r'\d+\.\d+ \[\d+ (\S+?)\] "(\w+)"', line)
            if found and found.group(1) == "lua":
                self.scripted += 1
            elif found:
                self.direct.add(found.group(2).upper())

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.thread.join(5)
        self.process.stdout.close()


@tags("load")
class Gates(Case):
    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)

    def instance(self, name, **more):
        return self.start(name, store=self.redis.url, retention_ms=RETENTION_MS, **more)

    def clients(self, server):
        """Connections to all of its loops, already opened."""
        clients = [server.client() for _ in range(4)]
        for client in clients:
            self.ok(client.get("/healthz"))
        return clients

    def life(self, client, number):
        """One job from dispatch to DONE, with DONE sent twice; how long the dispatch took."""
        answer = client.post("/v1/dispatch/f2f", {"session_id": f"g{number % 8}", "src_lang": "en", "tgt_lang": "zh",
                                                  "audio_ref": "x", "options": {}})
        placed = {**self.ok(answer)}
        self.ok(client.post("/v1/job/ack", placed))
        self.ok(client.post("/v1/job/done", {**placed, "status": "ok"}))
        self.assertTrue(self.ok(client.post("/v1/job/done", {**placed, "status": "ok"}))["duplicate"])
        return answer.seconds

    def lives(self, server, count, look=True):
        """`count` jobs, one after the other; how long each dispatch took. Next to each it measures two calls that do not ask the store:
        they change from process to process as often as a dispatch, which is what takes time on a busy machine."""
        clients, seconds, self.bare = self.clients(server), [], []
        for i in range(count):
            client = clients[i % 4]
            seconds.append(self.life(client, i))
            self.bare.append(sum(client.get("/healthz").seconds for _ in range(2)))
            if look and i % 50 == 0:
                self.counts += self.counters()
        self.hang_up(clients)
        return seconds

    def hang_up(self, clients):
        for client in clients:
            client.close()

    def counters(self):
        """Every counter of every node in the store."""
        dump = json.loads(berth("store", "dump", "--store", self.redis.url, "--limit", "1", "-o", "json").stdout)
        return [node[name] for node in dump["nodes"] for name in ("reserved", "running")]

    def shown(self, server, path, key):
        """All items of a list, without fields that change by themselves, and without versions of pools, which each instance counts
        itself."""
        moving = {"last_heartbeat_ms", "current_load", "health_score", "running", "reserved"}
        if key == "pools":
            moving.add("version")
        return [{name: value for name, value in item.items() if name not in moving}
                for item in server.get(f"{path}?limit=1000").json[key]]

    def ttls(self):
        """{kind of key: time to live in ms} of one key of each kind."""
        kinds = {}
        for key in self.redis.say("KEYS", "*").splitlines():
            kind = key.removeprefix("sched:{f}:").split(":")[0]
            kinds[kind] = int(self.redis.say("PTTL", key))
        return kinds

    @tags("alone")
    def test_gates(self):
        self.counts = []
        a, b = self.instance("a"), self.instance("b")
        Node(a, "n0", max_concurrent_jobs=50)
        watch = Watch(self.redis)
        self.lives(a, 100, look=False)  # self.counters() reads the store as well
        watch.stop()
        steady = self.lives(a, 600)
        beyond = watch.direct - READS
        self.gate("writes only in atomic functions", f"{watch.scripted} commands in functions, beside them {sorted(beyond) or 'reads'}",
                  "none beside them", not beyond and watch.scripted > 1000)
        keys = self.redis.say("KEYS", "*").splitlines()
        self.gate("one hash tag", f"{sum(key.startswith('sched:{f}:') for key in keys)} of {len(keys)} keys", "all",
                  all(key.startswith("sched:{f}:") for key in keys))
        ttl = self.ttls()
        self.gate("times to live", f"sessions {ttl.get('s')} ms, jobs {ttl.get('j')}, nodes {ttl.get('n')}",
                  "sessions: retention; jobs, which only the purge ends, and nodes: none",
                  0 < ttl["s"] <= RETENTION_MS and ttl["j"] == -1 and ttl["n"] == -1)
        metrics = a.metrics()
        hits, misses = (metrics[f'berth_cache_requests_total{{layer="l1",result="{r}"}}'] for r in ("hit", "miss"))
        share = hits / max(1, hits + misses)
        self.gate("L1 hit rate", f"{share:.1%} of {hits + misses:.0f}", ">= 95 %", share >= 0.95)
        self.gate("no negative count", f"least {min(self.counts)} in {len(self.counts)} looks", ">= 0", min(self.counts) >= 0)
        p99, bare = percentile(steady, .99), percentile(self.bare, .99)
        self.gate("dispatch p99", f"{p99 * 1000:.1f} ms of {len(steady)}, two bare calls {bare * 1000:.1f} ms", "< 50 ms beyond those",
                  p99 < 0.05 * SLOW + bare)
        self.delays(a, b)
        self.outage(self.instance("brief", store_call_ms=80))  # with the default store_call_ms; the other instances wait longer
        self.cold(a)
        self.locks()
        self.assertEqual(self.missed, [])

    def delays(self, a, b):
        """A change at one instance is seen at the other, and the result equals a fresh look at everything."""
        worst = 0
        for i in range(10):
            Node(a, f"d{i}", semantic_langs=["en", f"x{i}"], nmt_pairs=[["en", f"x{i}"]])
            begun = time.monotonic()
            eventually("the other instance shows the node", lambda: b.get(f"/v1/nodes/d{i}").status == 200)
            worst = max(worst, time.monotonic() - begun)
        self.ok(a.post("/v1/node/deregister", {"node_id": "d3"}))
        eventually("the other instance does not show the node any more", lambda: b.get("/v1/nodes/d3").status == 404)
        self.gate("update delay", f"at most {worst * 1000:.0f} ms", "< 1 s", worst < 1 * SLOW)
        fresh = self.instance("fresh")
        lists = (("/v1/nodes", "nodes"), ("/v1/pools", "pools"))
        same = all(self.shown(b, *what) == self.shown(fresh, *what) for what in lists)
        self.gate("diffs equal a full reload", ", ".join(f"{len(self.shown(b, *what))} {what[1]}" for what in lists),
                  "every field the same", same)
        self.assertEqual(fresh.stop(), 0)

    def cold(self, warm):
        """The first hundred dispatches of an instance that has just started, alternating with dispatches of one that has run for a while,
        over several starts, so that other load of the machine affects both alike. There are more starts as long as the two differ too
        much."""
        first, steady = [], []
        cold = usual = 0
        for i in range(40):
            if i >= 8 and cold <= 2 * usual:
                break
            server = self.instance(f"cold{i}")
            self.ok(server.get("/readyz"))
            fresh, known = self.clients(server), self.clients(warm)
            for number in range(100):
                first.append(self.life(fresh[number % 4], number))
                steady.append(self.life(known[number % 4], number))
            self.hang_up(fresh + known)
            self.assertEqual(server.stop(), 0)
            cold, usual = percentile(first, .99), percentile(steady, .99)
        self.gate("preload: first 100 dispatches, p99", f"{cold * 1000:.2f} ms of {len(first)} in {len(first) // 100} starts, "
                  f"steady {usual * 1000:.2f} ms, {cold / usual:.2f} x", "<= 2 x steady", cold <= 2 * usual)

    def outage(self, server):
        self.redis.pause()
        try:
            eventually("the server is not ready", lambda: server.get("/readyz").status == 503)
            answer = server.get("/v1/nodes")
            shown = answer.json
        finally:
            self.redis.go_on()
        self.gate("L2 serves while the store is away", f"{len(shown['nodes'])} nodes, stale {shown['stale']}, {shown['age_ms']} ms old",
                  "all, marked", answer.status == 200 and shown["stale"] and len(shown["nodes"]) == 10)
        eventually("the server is ready again", lambda: server.get("/readyz").status == 200)

    def locks(self):
        """Locks that the loops take or wait for while they dispatch, counted by a library inside the process."""
        watch = LockWatch(self.dir / "locks.counts")
        server = self.instance("locks", env=watch.env)
        self.lives(server, 20)
        before = watch.counts()
        self.lives(server, 500)
        after = watch.counts()
        names = {path.read_text().strip() for path in pathlib.Path(f"/proc/{server.pid}/task").glob("*/comm")}
        loops = [name for name in names if name.startswith("berth-loop")]
        locks = sum(after[name] - before[name] for name in loops)
        self.assertGreater(sum(after.values()), 0, "nothing was counted at all")
        self.gate("no lock on the dispatch path", f"{locks} locks or waits of {len(loops)} loops in 500 whole lives", "0",
                  loops and locks == 0)


@tags("load")
class Steady(Case):
    """The embedded store after a warm-up, in which everything was used before."""

    WARM, JOBS = 5000, 10000

    def whole_jobs(self, server, count):
        load = pathlib.Path(BINARY).parent / "bench" / "load"
        subprocess.run([load, "sat", "--port", str(server.port), "--jobs", str(count), "--protocol", "socket"], check=True,
                       stdout=subprocess.DEVNULL, timeout=300 * SLOW)

    def test_no_lock_and_no_allocation(self):
        """Counts for the loop and for the store thread while whole jobs run over WebSockets. Rare work (a growing buffer, a table of the
        last second) may allocate; work per job may not, except for the list of a job's ended attempts."""
        watch = LockWatch(self.dir / "steady.counts")
        server = self.start(loops=1, env=watch.env)
        self.whole_jobs(server, self.WARM)
        locks, allocations = watch.counts(), watch.allocations()
        self.whole_jobs(server, self.JOBS)
        # SQLite allocates for each row, but perhaps only when all jobs are done.
        eventually("allocations are counted", lambda: (watch.allocations() - allocations)["berth-flush"] > self.JOBS)
        locks, allocations = watch.counts() - locks, watch.allocations() - allocations
        self.assertLess(allocations["berth-loop-0"], self.JOBS // 4, allocations)
        self.assertLess(allocations["berth-store"], self.JOBS * 5 // 4, allocations)
        self.assertLess(locks["berth-loop-0"], self.JOBS // 20, "only opening and closing connections may lock")
        self.assertEqual(locks["berth-store"], 0)
