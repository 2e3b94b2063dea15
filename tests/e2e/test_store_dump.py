"""`berth store dump`: the contents of the store, read from the store itself while a server runs."""
import json

from harness import Case, Node, berth, eventually
from redis import Redis


class Dump(Case):
    def look(self, server, flags):
        node = Node(server, "n1", max_concurrent_jobs=3)
        running, waiting = self.placed(server, session="s1"), self.placed(server, session="s2")
        self.ok(node.ack(running))
        ended = self.placed(server)
        self.ok(node.done(ended, result={"a": 1}))

        def current():
            """For a moment the last changes may be only in the journal of the embedded store."""
            done = berth("store", "dump", *flags, "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            return found if [ended["job_id"], "DONE"] in [[job["job_id"], job["state"]] for job in found["jobs"]] else None

        dump = eventually("the dump has the job that ended last", current)
        shown = dump["nodes"][0]
        self.assertEqual((shown["node_id"], shown["health"], shown["max"], shown["reserved"], shown["running"]),
                         ("n1", "ready", 3, 1, 1))
        self.assertEqual({lease["job_id"]: lease["kind"] for lease in dump["leases"]},
                         {running["job_id"]: "running", waiting["job_id"]: "reserved"})
        self.assertEqual({job["job_id"]: job["state"] for job in dump["jobs"]},
                         {running["job_id"]: "ACKED", waiting["job_id"]: "DISPATCHED", ended["job_id"]: "DONE"})
        self.assertLessEqual({"s1", "s2"}, {session["session_id"] for session in dump["sessions"]})
        self.assertEqual((dump["breakers"], dump["more"]), ([], False))
        few = json.loads(berth("store", "dump", *flags, "--limit", "1", "-o", "json").stdout)
        self.assertEqual((len(few["jobs"]), len(few["sessions"]), few["more"]), (1, 1, True))
        text = berth("store", "dump", *flags).stdout
        self.assertIn("nodes (1)", text)
        self.assertIn(f"job_id={running['job_id']}", text)
        self.ok(node.done(running))
        self.ok(node.ack(waiting))
        self.ok(node.done(waiting))
        return dump

    def look_at_limits(self, server, flags):
        """Rules, holds, keys, and what is left of a node's resources."""
        node = Node(server, "big", allowed_types=["dev"], max_concurrent_jobs=9,
                    resources={"cpu": 8, "licences": 3, "gpus": [{"id": 0, "vram_mb": 16000}, {"id": 1, "vram_mb": 16000}]})
        self.ok(server.call("PUT", "/v1/limits/tenant:*", {"concurrency": 1, "rate": "60/1m", "queue": 5, "weight": 2}))
        self.ok(server.post("/v1/limits/account:x/hold", {"for_ms": 3600000, "reason": "quota"}))
        task = {"type": "dev", "queue_ms": 600000, "needs": {"cpu": 1.5, "vram_mb": 7000}, "keys": ["tenant:acme"]}
        placed = self.ok(server.post("/v1/dispatch/task", task))
        (job,) = node.poll()
        self.ok(node.ack(job))
        self.ok(server.post("/v1/dispatch/task", task), 202)
        whole = self.ok(server.post("/v1/dispatch/task", {"type": "dev", "needs": {"gpus": 1, "licences": 1}}))

        def current():
            done = berth("store", "dump", *flags, "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            return found if any(lease["job_id"] == whole["job_id"] for lease in found["leases"]) else None

        dump = eventually("the dump has the last lease", current)
        self.assertEqual(dump["limits"], [{"pattern": "tenant:*", "concurrency": 1, "rate": "60/1m", "queue": 5, "weight": 2}])
        held, used = dump["keys"]
        self.assertEqual((held["key"], held["in_flight"], held["waiting"], held["starts"], held["hold_reason"]), ("account:x", 0, 0, 0, "quota"))
        self.assertEqual((used["key"], used["in_flight"], used["waiting"], used["starts"]), ("tenant:acme", 1, 1, 1))
        self.assertLess(abs(used["last_start_ms"] + 3600000 - held["hold_until_ms"]), 600000)
        shown = next(node for node in dump["nodes"] if node["node_id"] == "big")
        self.assertEqual(shown["resources"], {
            "cpu": {"of": 8, "usable": 8, "left": 6.5}, "licences": {"of": 3, "usable": 3, "left": 2},
            "gpus": [{"id": 0, "vram_mb": 16000, "usable_mb": 16000, "left_mb": 9000, "whole": False},
                     {"id": 1, "vram_mb": 16000, "usable_mb": 16000, "left_mb": 0, "whole": True}]})
        self.assertEqual({lease["job_id"]: lease["gpus"] for lease in dump["leases"] if "gpus" in lease},
                         {placed["job_id"]: [0], whole["job_id"]: [1]})
        few = json.loads(berth("store", "dump", *flags, "--limit", "1", "-o", "json").stdout)
        self.assertEqual(([key["key"] for key in few["keys"]], few["more"]), (["account:x"], True))
        self.assertIn("keys (2)", berth("store", "dump", *flags).stdout)

    def test_embedded(self):
        server = self.start()
        dump = self.look(server, ["--data-dir", str(server.data_dir)])
        self.assertEqual(dump["instances"], [])
        self.look_at_limits(server, ["--data-dir", str(server.data_dir)])

    def test_redis(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url)
        dump = self.look(server, ["--store", redis.url])
        self.assertEqual(len(dump["instances"]), 1)
        self.look_at_limits(server, ["--store", redis.url])
        eventually("the dump itself is no instance in the store",
                   lambda: len(json.loads(berth("store", "dump", "--store", redis.url, "-o", "json").stdout)["instances"]) == 1)

    def test_what_cannot_be_read_is_said(self):
        for flags, words in ((["--data-dir", str(self.dir / "none")], "none/store.db cannot be read"),
                             (["--store", "redis://127.0.0.1:1/0"], "cannot be read"),
                             (["--limit", "0"], "--limit must be a number"), (["-o", "xml"], "-o must be")):
            done = berth("store", "dump", *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
