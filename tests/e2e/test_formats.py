"""Two releases with different layouts of records in Redis (tests/store/next_records.h) share one store."""
import pathlib
import re
import signal
import subprocess

import test_instances
from harness import BINARY, SLOW, Case, Node, eventually, freeze, tags
from redis import Redis

NEXT = str(pathlib.Path(BINARY).parent / "tests" / "berth_next")
RECORDS = pathlib.Path(__file__).parents[2] / "src" / "store" / "record.h"
OLDEST, OURS = (int(number) for number in re.search(r"FORMAT_OLDEST = (\d+), FORMAT_NEWEST = (\d+)", RECORDS.read_text()).groups())
# The other release writes one more.
READS = f"this berth reads format {OURS}" if OLDEST == OURS else f"this berth reads format {OLDEST} to {OURS}"

# How many records of nodes and of jobs have which format.
COUNT = """
local found = {}
local function count(kind, key)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if not all[i]:find(':') then
      local name = kind .. all[i + 1]:byte()
      found[name] = (found[name] or 0) + 1
    end
  end
end
count('n', 'sched:{f}:n')
for _, key in ipairs(redis.call('KEYS', 'sched:{f}:j:*')) do count('j', key) end
local names = {}
for name in pairs(found) do names[#names + 1] = name end
table.sort(names)
return table.concat(names, ' ')
"""


class Formats:
    def formats(self):
        """[the format that is written, the oldest and the newest format of records in the store]."""
        return self.redis.say("HGET", "sched:{f}:meta", "format").split()[:3]

    def becomes(self, number):
        eventually(f"every record has format {number}", lambda: self.formats() == [str(number)] * 3, 60 * SLOW)

    def records(self):
        """Which formats nodes and jobs have; n3 means that there are nodes of format 3."""
        return self.redis.say("EVAL", COUNT, 0).split()

    def now(self):
        return int(self.redis.say("TIME").split()[0]) * 1000

    def settled(self):
        """Waits until every instance has had the time to announce which formats it reads since the format last changed, and has called
        again."""
        since = int(self.redis.say("HGET", "sched:{f}:meta", "format").split()[3])
        eventually("16 s have passed since the format changed", lambda: self.now() > since + 16000, 30 * SLOW)
        said = self.now() + 1000
        eventually("every instance has called again", lambda: all(int(text.split()[0]) > said for text in
                   self.redis.say("HVALS", "sched:{f}:instances").split("\n")), 30 * SLOW)

    def refused(self, binary, *flags):
        """The error of a server that refuses to start."""
        done = subprocess.run([binary, "server", "--listen", "127.0.0.1:0", "--data-dir", str(self.dir / "refused"),
                               "--store", self.redis.url, *flags], capture_output=True, text=True, timeout=30 * SLOW)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr


@tags("load")
class UpAndDown(Formats, test_instances.Fleet):
    def replace(self, number, **settings):
        """Starts the new instance first; then the old one stops cleanly."""
        gone = self.all[number]
        super().replace(number, **settings)
        self.assertEqual(gone.stop(), 0)
        gone.check_log()

    def ended(self, server, ids=None):
        """All fields of jobs that have ended."""
        ids = [job["job_id"] for job in server.all_jobs() if job["state"] in ("DONE", "FAILED")][:200] if ids is None else ids
        return {job_id: server.job(job_id) for job_id in ids}

    def test_one_after_the_other_and_back(self):
        self.begin(1000000, pause=0.02)
        for number in range(3):  # as long as one old instance is there, the format that it reads is written
            self.replace(number, binary=NEXT)
            if number < 2:
                self.settled()
                self.assertEqual(self.formats(), [str(OURS)] * 3)
                before = self.ended(self.all[2])
                self.assertEqual(self.ended(self.all[0], before), before)
        self.becomes(OURS + 1)
        self.assertIn(f"its records have format {OURS + 1}, {READS}", self.refused(BINARY))
        middle = self.ended(self.all[0])
        self.assertEqual(self.ended(self.all[1], before), before, "rewritten jobs have the same fields")
        for number in range(3):  # the newer release, with store_format set to what the older one reads
            self.replace(number, binary=NEXT, store_format=OURS)
        self.becomes(OURS)
        for number in range(3):
            self.replace(number)
            self.assertEqual(self.ended(self.all[number], before), before)
            self.assertEqual(self.ended(self.all[number], middle), middle)
        for thread in self.submitters:
            thread.over.set()
        self.finish(60)
        self.assertEqual(self.records(), [f"j{OURS}", f"n{OURS}"])

    def test_records_are_rewritten(self):
        """Records that nothing touches any more are rewritten too, and an instance of the older release that starts meanwhile works."""
        self.begin(300)
        self.finish()
        before = self.ended(self.all[0])
        for number in range(3):
            self.replace(number, binary=NEXT)
        self.becomes(OURS + 1)
        self.assertEqual(self.records(), [f"j{OURS + 1}", f"n{OURS + 1}"])
        self.assertEqual(self.ended(self.all[0], before), before)
        self.assertIn(f"This berth writes no format {OURS + 2} into Redis, but {OLDEST} to {OURS + 1}.", self.refused(NEXT, "--store-format", str(OURS + 2)))
        self.replace(0, binary=NEXT, store_format=OURS)
        self.becomes(OURS)
        self.assertEqual(self.records(), [f"j{OURS}", f"n{OURS}"])
        self.assertEqual(self.ended(self.all[1], before), before)

    test_killed_frozen_and_said_twice = test_rolling_restart = None


class LeftBehind(Formats, Case):
    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)

    def test_an_instance_that_slept_over_it(self):
        """An instance counts as gone after 15 s, so the format may change; when it wakes up, it does nothing and gives the reason."""
        old = self.start("old", store=self.redis.url)
        new = self.start("new", store=self.redis.url, binary=NEXT)
        node = Node(new, "n1")
        self.becomes(OURS)
        freeze(old.process)
        self.becomes(OURS + 1)
        old.process.send_signal(signal.SIGCONT)
        eventually("the old instance is not ready", lambda: old.get("/readyz").status == 503, 20 * SLOW)
        eventually("the old instance gives the reason",
                   lambda: f"its records have format {OURS + 1}, {READS}" in str(old.get("/readyz")), 20 * SLOW)
        self.ok(node.heartbeat())
        self.assertEqual(self.records(), [f"n{OURS + 1}"])
        again = self.start("again", store=self.redis.url, binary=NEXT, store_format=OURS)
        self.becomes(OURS)
        eventually("the old instance is ready again", lambda: old.get("/readyz").status == 200, 20 * SLOW)
        self.assertEqual(self.records(), [f"n{OURS}"])
        self.assertEqual(again.stop(), 0)
