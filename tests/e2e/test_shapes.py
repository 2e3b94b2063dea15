"""Nodes of different shapes run jobs with mixed needs and keys, while instances and nodes are killed and frozen. The nodes record what ran
where and when, and the test adds it up without asking the program."""
import collections
import os
import random
import signal
import threading
import time

import test_instances
from fleet import Submitter, Worker
from harness import SLOW, Case, eventually, tags

JOBS = int(os.environ.get("BERTH_E2E_JOBS", "1200"))
NODES = int(os.environ.get("BERTH_E2E_NODES", "6"))
GPU_MB = 24000
LIMITS = {"account:0": 2, "account:1": 5, "tenant:*": 8}  # concurrency
RATE = ("api:slow", 40, 1.0)  # that many starts in that many seconds


class Ledger:
    """What the nodes ran: a line when a run begins and one when it ends, in the order in which it happened."""

    def __init__(self):
        self.lines, self.lock = [], threading.Lock()

    def note(self, sign, node, take):
        with self.lock:
            self.lines.append((sign, node, take))

    def wrong(self, nodes):
        """Every moment at which a node, a GPU or a key had more than it may, and what is left at the end."""
        now, found = collections.Counter(), []

        def move(what, amount, most):
            now[what] += amount
            if now[what] > most:
                found.append((what, now[what], most))

        for sign, node, take in self.lines:
            shape = nodes[node]
            for name, amount in take["needs"].items():
                move((node, name), sign * amount, shape[name])
            for gpu in take["gpus"]:
                whole = take["whole"]
                move((node, "gpu", gpu), sign * (GPU_MB if whole else take["vram"]), GPU_MB)
                assert gpu in [one["id"] for one in shape["gpus"]], (node, gpu)
            for key in take["keys"]:
                limit = LIMITS.get(key, LIMITS["tenant:*"] if key.startswith("tenant:") else None)
                if limit is not None:
                    move(("key", key), sign, limit)
        left = {what: amount for what, amount in now.items() if amount}
        return found, left


def shape_of(dice):
    """The resources of a node."""
    gpus = [{"id": 3 * i + 1, "model": "fake", "vram_mb": GPU_MB} for i in range(dice.choice((0, 1, 2, 4)))]
    return {"cpu": dice.choice((2, 4, 8)), "mem_mb": dice.choice((4000, 16000)), "licences": dice.choice((0, 1, 3)), "gpus": gpus}


def shapes_of(dice, count):
    """The resources of `count` nodes. The first has some of everything, so that each job fits somewhere."""
    shapes = [shape_of(dice) for _ in range(count)]
    shapes[0]["gpus"] = [{"id": i, "model": "fake", "vram_mb": GPU_MB} for i in range(2)]
    shapes[0].update(licences=3, cpu=8, mem_mb=16000)
    return shapes


def demand_of(dice):
    """The demand of a job; many jobs need nothing."""
    kind = dice.random()
    needs = {}
    if kind > 0.3:
        needs = {"cpu": dice.choice((0.5, 1, 1.5)), "mem_mb": dice.choice((200, 1000, 3000))}
    if 0.5 < kind < 0.6:
        needs["licences"] = 1
    if 0.6 < kind < 0.8:
        needs["vram_mb"] = dice.choice((2000, 7000, 12000))
    elif kind > 0.95:
        needs["gpus"] = dice.choice((1, 1, 2))
    if dice.random() < 0.2:
        needs["slots"] = 2
    keys = []
    if dice.random() < 0.6:
        keys.append(f"tenant:{dice.randrange(5)}")
    if dice.random() < 0.3:
        keys.append(f"account:{dice.randrange(2)}")
    if dice.random() < 0.1:
        keys.append(RATE[0])
    return {**({"needs": needs} if needs else {}), **({"keys": keys} if keys else {})}


class Node(Worker):
    """A node that has more resources than slots, and knows what each of its runs was given."""

    def __init__(self, servers, node_id, slots, seed, shape, ledger):
        super().__init__(servers, node_id, slots, seed)
        self.shape, self.ledger, self.takes = shape, ledger, {}

    def say(self, msg, **fields):
        if msg == "hello":
            fields["resources"] = self.shape
        super().say(msg, **fields)

    def hear(self, message):
        if message["msg"] == "job":
            needs = dict(message.get("needs", {}))
            whole, vram = needs.pop("gpus", 0), needs.pop("vram_mb", 0)
            slots = needs.pop("slots", 1)
            needs = {name: amount for name, amount in needs.items() if amount}
            gpus = message.get("gpus", [])
            assert len(gpus) == (whole or (1 if vram else 0)), message
            self.takes[message["job_id"], message["attempt_id"]] = {
                "needs": {**needs, "slots": slots}, "gpus": gpus, "whole": whole > 0, "vram": vram, "keys": message.get("keys", [])}
        super().hear(message)

    def answered(self, what, key, message):
        before = set(self.running)
        super().answered(what, key, message)
        for begun in set(self.running) - before:
            self.ledger.note(1, self.id, self.takes[begun])

    def turn(self):
        now = time.monotonic()
        for key, end in self.running.items():
            if end <= now and self.takes.get(key):
                self.ended(key)
        if self.dice.random() < 0.0002:  # killed: the node comes back without its runs
            for key in list(self.running):
                self.ended(key)
            self.running.clear()
            self.acks.clear()
            self.socket.drop()
        if self.dice.random() < 0.0002:
            time.sleep(self.dice.uniform(0.2, 1.5))  # frozen
            return
        before = set(self.running)
        super().turn()
        for key in before - set(self.running):  # the server dropped these runs
            self.ended(key)

    def ended(self, key):
        take = self.takes.pop(key, None)
        if take:
            self.ledger.note(-1, self.id, take)


class Client(Submitter):
    def __init__(self, *args):
        super().__init__(*args)
        self.bodies = {}

    def body(self, number):
        return {**super().body(number), **self.bodies.setdefault(number, demand_of(self.dice))}


class Shapes:
    """The rounds, for any store."""

    def furnish(self):
        """Sets the limits, and starts nodes and clients."""
        dice = random.Random(11)
        for key, concurrency in LIMITS.items():
            self.ok(self.all[0].call("PUT", f"/v1/limits/{key}", {"concurrency": concurrency}))
        self.ok(self.all[0].call("PUT", f"/v1/limits/{RATE[0]}", {"rate": f"{RATE[1]}/1s"}))
        self.ledger = Ledger()
        shapes = shapes_of(dice, NODES)
        self.workers = [Node(self.all, f"n{i}", 6, i, shapes[i], self.ledger) for i in range(NODES)]
        self.submitters = [Client(self.all, JOBS // 3, f"c{i}") for i in range(3)]
        self.addCleanup(self.all.clear)
        for thread in self.workers:
            thread.start()
        eventually("all nodes have registered", lambda: all(self.all[0].get(f"/v1/nodes/{node.id}").status == 200 for node in self.workers))
        for thread in self.submitters:
            thread.start()

    def finish(self):
        for thread in self.submitters:
            thread.join()
            if thread.failure:
                raise thread.failure
        accepted = {job for thread in self.submitters for job in thread.accepted}
        server = self.all[0]

        def all_ended():
            return not [job for job in server.all_jobs() if job["job_id"] in accepted and job["state"] not in ("DONE", "FAILED")]

        eventually("every accepted job has ended", all_ended, 120 * SLOW + JOBS / 50)
        for worker in self.workers:
            worker.over.set()
        for worker in self.workers:
            worker.join(30 * SLOW)
            if worker.failure:
                raise worker.failure
        found, left = self.ledger.wrong({node.id: {**node.shape, "slots": node.slots} for node in self.workers})
        self.assertEqual(found[:5], [], f"{len(found)} moments with more than there is")
        self.assertEqual(left, {})
        self.nothing_left(server)
        jobs = [job for job in server.all_jobs() if job["job_id"] in accepted]
        self.assertEqual([(job["job_id"], job["reason"]) for job in jobs if job["state"] != "DONE"], [])
        self.rates(jobs)
        print(f"{len(accepted)} jobs, {len(self.ledger.lines) // 2} runs written down, 0 moments with more than there is", flush=True)

    def nothing_left(self, server):
        def clean():
            rows = self.ok(server.get("/v1/limits?limit=1000"))["limits"]
            return not [row for row in rows if row["in_flight"] or row["waiting"]]

        eventually("no key is in use", clean, 20 * SLOW)
        for worker in self.workers:
            eventually(f"{worker.id} has no slot taken", lambda: server.slots(worker.id) == (0, 0), 20 * SLOW)

    def rates(self, jobs):
        """Checks the rate by the jobs' dispatch times."""
        key, most, seconds = RATE
        starts = sorted(job["dispatched_ms"] for job in jobs if key in job.get("keys", []))
        for at, first in enumerate(starts):
            inside = [start for start in starts[at:at + most + 1] if start - first < seconds * 1000]
            self.assertLessEqual(len(inside), most, f"{key} from {first}")


@tags("long")
class OnRedis(Shapes, test_instances.Instances):
    def instance(self, number, **settings):
        return super().instance(number, reservation_ttl_ms=3000, running_lease_ms=10000, **settings)

    def test_never_more_than_there_is(self):
        dice, turn = random.Random(7), 0
        self.furnish()
        while any(thread.is_alive() for thread in self.submitters):
            victim, turn = turn % 3, turn + 1
            if dice.random() < 0.5:
                self.all[victim].kill()
                self.all[victim] = self.instance(f"r{victim}-{time.monotonic_ns()}")
            else:
                self.all[victim].process.send_signal(signal.SIGSTOP)
                time.sleep(dice.uniform(0.5, 2.5))
                self.all[victim].process.send_signal(signal.SIGCONT)
            time.sleep(dice.uniform(0.5, 1.5))
        self.finish()


@tags("long")
class Embedded(Shapes, Case):
    def begin(self):
        return self.start(reservation_ttl_ms=3000, running_lease_ms=10000)

    def test_never_more_than_there_is(self):
        dice = random.Random(8)
        self.all = [self.begin()]
        self.furnish()
        while any(thread.is_alive() for thread in self.submitters):
            time.sleep(dice.uniform(0.5, 1.5))
            self.all[0].kill()
            self.all[0] = self.begin()
        self.finish()
