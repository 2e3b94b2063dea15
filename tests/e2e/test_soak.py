"""A short `make shapes`; shapes.py explains what is counted."""
import json
import os

import shapes
from harness import Case, tags

JOBS, NODES, RATE = 500, 12, 120
SHAPE = {"cpu": 2, "mem_mb": 4000, "licences": 0, "gpus": [{"id": 1, "model": "fake", "vram_mb": shapes.GPU_MB}]}


class Soak(Case):
    def short(self, store):
        said = []
        found = shapes.run(store, JOBS, NODES, rate=RATE, data_root=self.dir, free_s=30, say=said.append)
        self.assertEqual({what: count for what, count in found.items() if count}, {}, said)
        self.assertIn(f"{store}: {JOBS:,} jobs accepted", said[-3])

    @tags("load")
    def test_redis(self):
        self.short("redis")

    @tags("load")
    def test_embedded(self):
        self.short("embedded")


class Judge(Case):
    """Tests the checker itself: it counts each kind of error, and does not count what is over in time."""

    def judged(self, *lines, accepted=("j1", "j2"), jobs=None):
        """The verdict on ledgers with these lines: (time, sign, node n0 or n1, the text after the node's name)."""
        for name in ("n0", "n1"):
            with open(os.path.join(self.dir, f"ledger-{name}"), "w", encoding="utf-8") as file:
                for when, sign, node, rest in lines:
                    if node == name:
                        file.write(f"{when} {sign} {node}{rest and ' '}{rest} .\n")
        with open(os.path.join(self.dir, "accepted"), "w", encoding="utf-8") as file:
            file.write("\n".join(accepted))
        jobs = [{"job_id": name, "state": "DONE"} for name in accepted] if jobs is None else jobs
        found, notes, *_ = shapes.judge(self.dir, {name: (2, SHAPE) for name in ("n0", "n1")}, jobs)
        self.assertEqual(bool(notes), bool(found))
        return dict(found)

    def two(self, first, second, node="n1", job="j2", until=(900, 900), ends=(50, 60), **more):
        """The verdict on a run that begins at 10 and another that begins at 20."""
        def take(one):
            return json.dumps(one, separators=(",", ":"))

        return self.judged((10, "+", "n0", f"j1 1 {until[0]} {take(first)}"), (20, "+", node, f"{job} 1 {until[1]} {take(second)}"),
                           (ends[0], "-", "n0", "j1 1"), (ends[1], "-", node, f"{job} 1"), **more)

    def test_sums(self):
        half, whole, both = {"needs": {"vram_mb": 12000}, "gpus": [1]}, {"needs": {"gpus": 1}, "gpus": [1]}, {"needs": {"slots": 2}}
        key, other = {"keys": ["account:0@1"]}, {"keys": ["account:0@2"]}
        for first, second, node, want in (
                ({}, {}, "n0", {}), (both, {}, "n0", {"over": 1}), (both, {}, "n1", {}), (both, both, "n0", {"over": 1}),
                ({"needs": {"cpu": 1.5}}, {"needs": {"cpu": 0.5}}, "n0", {}), ({"needs": {"cpu": 1.5}}, {"needs": {"cpu": 1}}, "n0", {"over": 1}),
                ({"needs": {"licences": 1}}, {}, "n1", {"over": 1}),
                (half, half, "n0", {}), (half, {**half, "needs": {"vram_mb": 13000}}, "n0", {"over": 1}),
                (half, whole, "n0", {"over": 1}), (half, whole, "n1", {}),
                (whole, {"needs": {"gpus": 1}, "gpus": [4]}, "n1", {"gpus": 1}), (half, {"needs": {"gpus": 1}}, "n1", {"gpus": 1}),
                (key, key, "n1", {}), ({"keys": [*key["keys"] * 2]}, key, "n1", {"over": 1}), ({"keys": [*key["keys"] * 2]}, other, "n1", {})):
            with self.subTest(first=first, second=second, node=node):
                self.assertEqual(self.two(first, second, node), want)

    def test_when_a_run_is_over(self):
        both = '{"needs":{"slots":2}}'
        begun, second = (10, "+", "n0", f"j1 1 100 {both}"), [(150, "+", "n0", f"j2 1 900 {both}"), (160, "-", "n0", "j2 1")]
        for lines, want in (
                ([begun, (140, "-", "n0", "j1 1"), *second], {"broken": 1}),  # its lease was over, which the node should have noticed
                ([begun, (140, "~", "n0", "j1 1"), *second], {}),
                ([begun, *second, (170, "~", "n0", "j1 1")], {}),  # frozen
                ([begun, (50, "=", "n0", "200 j1/1"), *second, (170, "-", "n0", "j1 1")], {"over": 1}),
                ([begun, (50, "=", "n0", "120 j1/1"), *second], {}),
                ([begun, (110, "=", "n0", "200 j1/1"), *second], {}),  # too late: the lease was over
                ([begun, (50, "=", "n0", "200 j1/1"), (140, "x", "n0", ""), *second], {}),
                ([begun, (50, "=", "n0", "200 j1/1"), (140, "x", "n1", ""), *second, (170, "-", "n0", "j1 1")], {"over": 1}),
                ([begun, *second, (170, "+", "n1", f"j2 2 900 {both}"), (180, "x", "n1", "")], {}),
                ([begun, *second[:1], (155, "+", "n1", f"j2 2 900 {both}"), (158, "x", "n1", ""), *second[1:]], {"places": 1}),
                ([begun, *second[:1]], {"broken": 1}), ([begun, *second[:1], (155, "e", "n0", "")], {"broken": 1}), ([begun, *second, (170, "e", "n0", "")], {}),
                ([begun, (30, "?", "n0", ""), *second], {"broken": 1})):
            with self.subTest(lines=lines):
                self.assertEqual(self.judged(*lines), want)

    def test_jobs(self):
        done = {"job_id": "j1", "state": "DONE"}
        for jobs, want in (
                ([done, {"job_id": "j2", "state": "DONE"}], {}), ([done], {"lost": 1}), ([done, {"job_id": "j2", "state": "FAILED"}], {"undone": 1}),
                ([done, {"job_id": "j2", "state": "DONE"}, {"job_id": "j3", "state": "DONE"}], {"strange": 1})):
            with self.subTest(jobs=jobs):
                self.assertEqual(self.two({}, {}, jobs=jobs), want)
        self.assertEqual(self.two({}, {}, job="j3"), {"undone": 1}, "j2 never ran")

    def test_rates(self):
        key, most, seconds = shapes.RATE
        for last, want in ((seconds * 1000, {}), (seconds * 1000 - 1, {"rates": 1})):
            jobs = [{"job_id": name, "state": "DONE", "keys": [f"{key}@1"], "dispatched_ms": 5} for name in ("j1", "j2")]
            others = [{"job_id": f"j{3 + i}", "state": "DONE", "keys": [f"{key}@1"], "dispatched_ms": 5 + i} for i in range(most - 2)]
            others.append({**jobs[0], "job_id": "j999", "dispatched_ms": 5 + last})
            names = [job["job_id"] for job in jobs + others]
            found = self.two({}, {}, accepted=names, jobs=jobs + others)
            self.assertEqual({what: count for what, count in found.items() if what != "undone"}, want)

    def test_a_line_that_was_torn(self):
        path = os.path.join(self.dir, "ledger-n0")
        with open(path, "w", encoding="utf-8") as file:
            file.write("10 + n0 j1 1 900 {} .\n20 - n0 j1\n30 x n0 .\n")
        self.assertEqual(list(shapes.lines_of(path)), [(10, "+", "n0 j1 1 900 {}"), (30, "x", "n0")])
