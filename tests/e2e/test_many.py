"""Very many waiting and very many running jobs on one Redis with three instances must not slow down other jobs. `make many` uses 100,000 of
each, and a million that wait, and then checks Redis' log of slow calls as well. The embedded store gets a million waiting jobs: how much
memory they need, and when a server with them is ready."""
import os
import pathlib
import re
import subprocess
import threading
import time

from harness import BINARY, ROOT, Case, Client, Node, Server, eventually, percentile, tags
from redis import Redis

FILL = ROOT / os.path.dirname(BINARY) / "tests" / "fill"
COUNT = int(os.environ.get("BERTH_E2E_MANY", "0"))  # 0: as many as a normal run of the tests can afford
SLOW_MS = 20  # no call may occupy Redis for longer
TYPES, NODES = 10, 50


@tags("load")
class Many(Case):
    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis", "--slowlog-log-slower-than", str(SLOW_MS * 1000), "--slowlog-max-len", "10000")
        self.addCleanup(self.redis.kill)
        self.over = threading.Event()
        self.threads = []
        self.addCleanup(self.end)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def instance(self, name):
        return self.start(name, store=self.redis.url, store_call_ms=80 if COUNT else 10000, queue_total_max=10000000)

    def fill(self, waiting, running):
        subprocess.run([FILL, self.redis.url, str(waiting), str(TYPES), str(running), str(NODES)], check=True, timeout=1200, cwd=self.dir)

    def beside(self, work):
        """Calls work() in a thread again and again until the end."""
        def run():
            while not self.over.is_set():
                work()

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def test_nobody_else_notices(self):
        count, seconds = (COUNT, 60) if COUNT else (2000, 3)
        servers = [self.instance(name) for name in "abc"]
        living = servers[:2]
        busy = [Node(living[i % 2], f"busy-{i}", allowed_types=["run"], max_concurrent_jobs=count // NODES) for i in range(NODES)]
        shut = Node(living[0], "shut", allowed_types=[f"wait-{i}" for i in range(TYPES)], max_concurrent_jobs=0)
        node = Node(living[0], "free", allowed_types=["other"], max_concurrent_jobs=64)
        self.fill(count, count)
        refused, took_ms, done = [], [], []

        def beat():
            for one in [*busy, shut]:
                one.heartbeat()
            self.over.wait(2)

        def serve():
            node.heartbeat()
            for job in node.poll(wait="1s"):
                self.ok(node.ack(job))
                self.ok(node.done(job))
                done.append(job)

        clients = [Client(server.port) for server in living]

        def ask():
            if len(took_ms) - len(done) >= 128:  # one worker cannot do more at a time
                self.over.wait(0.01)
                return
            for client in clients:
                answer = client.post("/v1/dispatch/task", {"type": "other", "queue_ms": 10000})
                took_ms.append(answer.seconds * 1000)
                if answer.status not in (200, 202):
                    refused.append(str(answer))

        self.redis.say("SLOWLOG", "RESET")
        for work in (beat, serve, ask):
            self.beside(work)
        eventually("some of the other jobs are done", lambda: len(done) > 10)
        servers[2].kill()
        killed = time.monotonic()
        eventually(f"{seconds} s pass", lambda: time.monotonic() - killed > seconds, seconds + 1)
        self.end()
        slow = int(self.redis.say("SLOWLOG", "LEN"))
        print(f"{count} wait, {count} run: {len(took_ms)} others asked for in p50 {percentile(took_ms, 0.5):.1f}, "
              f"p99 {percentile(took_ms, 0.99):.1f} ms, {len(refused)} refused; {slow} calls kept Redis for more than {SLOW_MS} ms", flush=True)
        self.assertEqual(refused, [])
        self.assertEqual({living[0].slots(one.id) for one in busy}, {(0, count // NODES)})
        eventually("the server knows all waiting jobs", lambda: living[0].metrics()["berth_queue_depth"] >= count)
        if COUNT:
            self.assertEqual(slow, 0, self.redis.say("SLOWLOG", "GET", "10"))

    def test_a_start_beside_them(self):
        count = 10 * COUNT or 20000
        first = self.instance("first")
        Node(first, "shut", allowed_types=[f"wait-{i}" for i in range(TYPES)], max_concurrent_jobs=0)
        self.fill(count, 0)
        self.assertEqual(first.stop(), 0)
        self.redis.say("SLOWLOG", "RESET")
        begun = time.monotonic()
        server = self.instance("second")
        eventually("the server is ready", lambda: server.get("/readyz").status == 200, 5 if COUNT else 30)
        print(f"{count} wait: a server is ready after {time.monotonic() - begun:.1f} s; "
              f"{self.redis.say('SLOWLOG', 'LEN')} calls kept Redis for more than {SLOW_MS} ms", flush=True)
        eventually("the server knows all waiting jobs", lambda: server.metrics()["berth_queue_depth"] == count, 5 if COUNT else 30)


@tags("load")
class Embedded(Case):
    def test_starts_beside_them(self):
        count = 10 * COUNT or 20000
        types = [f"wait-{i}" for i in range(TYPES)]
        server = self.start()
        Node(server, "shut", allowed_types=types, max_concurrent_jobs=0)
        self.assertEqual(server.stop(), 0)
        subprocess.run([FILL, "embedded:", str(count), str(TYPES), "0", "1", "120"], check=True, timeout=1200, cwd=server.data_dir)
        for end, how, other in ((Server.kill, "a clean stop", "other-1"), (Server.stop, "kill -9", "other-2")):
            begun = time.monotonic()
            server = self.start(queue_max=1000000, queue_total_max=10 * count)
            answer = server.post("/v1/dispatch/task", {"type": types[0], "queue_ms": 3600000})
            ready_s = time.monotonic() - begun
            self.ok(answer, 202)
            count += 1
            Node(server, f"takes-{other}", allowed_types=[other], max_concurrent_jobs=1000)
            with server.client() as client:
                answers = [client.post("/v1/dispatch/task", {"type": other}) for _ in range(1000)]
            self.assertEqual({one.status for one in answers}, {200})
            took_ms = [one.seconds * 1000 for one in answers]
            eventually("the server knows all waiting jobs", lambda: server.metrics()["berth_queue_depth"] == count)
            bytes_each = self.memory(server) / count
            print(f"{count} wait: ready {ready_s:.1f} s after {how}; {bytes_each:.0f} bytes of memory for each; "
                  f"others p50 {percentile(took_ms, 0.5):.1f}, p99 {percentile(took_ms, 0.99):.1f} ms", flush=True)
            if COUNT:
                self.assertLess(bytes_each, 1000)
            end(server)

    @staticmethod
    def memory(server):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.pid}/status").read_text()).group(1)) * 1024
