"""A short `make kills`; kills.py explains what is counted."""
import contextlib
import os
import sqlite3

import kills
from harness import Case, tags

JOBS, KILLS = 3000, 3


class Kills(Case):
    @tags("load")
    def test_nothing_that_was_said_is_gone(self):
        said = []
        found = kills.run(JOBS, KILLS, self.dir, said.append)
        self.assertEqual({what: count for what, count in found.items() if count}, {}, said)
        self.assertIn(f"{JOBS:,} jobs accepted", said[0])
        self.assertIn(f"{KILLS} kills", said[0])


class Judge(Case):
    """Tests the checker itself: it counts each kind of error."""

    def judged(self, rows, **changes):
        path = os.path.join(self.dir, "store.db")
        with contextlib.closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE job(id INTEGER PRIMARY KEY, state INT, spec TEXT)")
            base.executemany("INSERT INTO job VALUES(?, ?, ?)", [(id_, state, f'{{"payload":{{"n":{n}}}}}') for id_, state, n in rows])
            base.commit()
        said = {"accepted": {0: "j1", 1: "j2"}, "ended": {0: "j1", 1: "j2"}, "done": ["j1", "j2"], "submitted": 2, "wrong": [], **changes}
        found, count = kills.judge(path, **said)
        os.remove(path)
        self.assertEqual(count, len(rows))
        return {what: count for what, count in found.items() if count}

    def test_each_kind_of_wrong(self):
        good = [(1, kills.JOB_DONE, 0), (2, kills.JOB_DONE, 1)]
        for rows, changes, want in (
                (good, {}, {}),
                (good[:1], {}, {"lost": 1, "undone": 1}),
                ([good[0], (2, kills.JOB_DONE + 1, 1)], {}, {"undone": 1}),
                ([good[0], (2, 4, 1)], {"done": ["j1"]}, {"open": 1}),
                (good, {"ended": {0: "j1"}}, {"unheard": 1}),
                ([*good, (3, kills.JOB_DONE, 1)], {}, {"twice": 1}),
                ([*good, (3, kills.JOB_DONE, 7)], {}, {"strange": 1}),
                ([good[0], (2, kills.JOB_DONE, 5)], {"submitted": 6}, {"lost": 1}),
                (good, {"wrong": ["ended twice"]}, {"twice": 1})):
            with self.subTest(want=want):
                self.assertEqual(self.judged(rows, **changes), want)

    def test_ids(self):
        self.assertEqual([kills.number_of(text) for text in ("j0", "j10", "j1z")], [0, 32, 63])
