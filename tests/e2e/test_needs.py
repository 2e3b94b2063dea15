"""What jobs take of their nodes besides a slot, and the keys they count against: given out whole, never twice, and shown to people."""
import signal
import time
import urllib.parse

from harness import Case, Node, WsNode, berth, eventually, in_parallel
from redis import Redis

GPU = {"cpu": 8, "mem_mb": 16000, "gpus": [{"id": 0, "model": "L4", "vram_mb": 24000}, {"id": 3, "model": "T4", "vram_mb": 16000}]}


class Needs(Case):
    def node(self, server, node_id="n1", **facts):
        return Node(server, node_id, **{"allowed_types": ["*"], "max_concurrent_jobs": 50, "resources": GPU, **facts})

    def take(self, node):
        job = eventually("the node gets a job", lambda: node.poll(wait="1s", most=1))[0]
        self.ok(node.ack(job))
        return job

    def left(self, server, name, node_id="n1"):
        return server.node(node_id)["resources"][name]["left"]

    def vram(self, server, node_id="n1"):
        return {gpu["id"]: gpu["vram_mb"]["left"] for gpu in server.node(node_id)["resources"]["gpus"]}


class Taking(Needs):
    def test_all_of_it_or_nothing(self):
        server = self.start()
        node = self.node(server)
        first = self.ok(self.task(server, needs={"cpu": 5.5, "mem_mb": 9000}))["job_id"]
        self.take(node)
        self.assertEqual(server.node("n1")["resources"]["cpu"], {"capacity": 8, "usable": 8, "promised": 5.5, "left": 2.5})
        refused = self.problem(self.task(server, needs={"cpu": 1, "mem_mb": 9000}), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(refused["reasons"], {"RESOURCES": 1})
        self.assertEqual(self.left(server, "cpu"), 2.5)  # nothing of it was taken
        why = self.ok(server.get(refused["explain"]))["decisions"][0]["nodes"][0]
        self.assertEqual((why["reason"], why["node_id"]), ("RESOURCES", "n1"))
        dry = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "needs": {"mem_mb": 9000}}))
        self.assertEqual(dry["outcome"], "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(dry["now"]["nodes"][0]["detail"], "mem_mb: 7000 of 16000 free, needs 9000.")
        self.assertEqual(dry["now"]["nodes"][0]["lack"], {"resource": "mem_mb", "needed": 9000, "left": 7000, "of": 16000})
        waits = self.ok(self.task(server, needs={"mem_mb": 9000}, queue_ms=600000), 202)["job_id"]
        plain = self.ok(self.task(server, queue_ms=600000), 202)["job_id"]  # while a job waits, new ones go through the queue
        job = self.take(node)
        self.assertEqual(job["job_id"], plain)  # a job without room does not hold up this one
        self.ok(node.done({"job_id": first, "attempt_id": 1}))
        self.assertEqual(self.take(node)["job_id"], waits)
        self.assertEqual(server.job(waits)["needs"], {"mem_mb": 9000})

    def test_more_than_anybody_has_is_refused_at_once(self):
        server = self.start()
        self.node(server)
        for needs, said in (({"mem_mb": 16001}, "It has only 16000 mem_mb, and the job needs 16001."), ({"licences": 1}, "It has no licences."),
                            ({"gpus": 3}, "It has only 2 gpus, and the job needs 3."), ({"slots": 51}, "It has only 50 slots, and the job needs 51."),
                            ({"cpu": 8.001}, "It has only 8 cpu, and the job needs 8.001.")):
            body = self.problem(self.task(server, needs=needs, queue_ms=60000), 422, "NO_CAPABLE_NODE")
            self.assertIn("has as much as it needs", body["detail"])
            dry = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "needs": needs}))
            self.assertEqual((dry["now"]["reasons"], dry["now"]["nodes"][0]["detail"]), ({"TOO_SMALL": 1}, said))
        Node(server, "plain", allowed_types=["*"])
        self.problem(self.task(server, needs={"cpu": 9}), 422, "NO_CAPABLE_NODE")
        self.ok(self.task(server, needs={"slots": 2}))  # every node has slots

    def test_gpus(self):
        server = self.start()
        node = WsNode(server, "n1", allowed_types=["*"], max_concurrent_jobs=50, resources=GPU)
        shared = self.ok(self.task(server, needs={"vram_mb": 7000}))["job_id"]
        self.assertEqual(node.expect("job", job_id=shared)["gpus"], [3])  # the GPU that has the least left
        self.assertEqual(server.job(shared)["gpus"], [3])
        whole = self.ok(self.task(server, needs={"gpus": 1}))["job_id"]
        self.assertEqual(node.expect("job", job_id=whole)["gpus"], [0])
        gpus = {gpu["id"]: gpu for gpu in server.node("n1")["resources"]["gpus"]}
        self.assertEqual((gpus[0]["whole"], gpus[0]["model"], gpus[3]["vram_mb"]), (True, "L4", {"capacity": 16000, "usable": 16000, "promised": 7000, "left": 9000}))
        refused = self.problem(self.task(server, needs={"vram_mb": 10000}), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(refused["reasons"], {"RESOURCES": 1})
        dry = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "needs": {"vram_mb": 10000}}))
        self.assertEqual(dry["now"]["nodes"][0]["detail"], "GPU 3: 8.8 of 15.6 GB free, needs 9.8 GB.")
        node.report("fail", {"job_id": whole, "attempt_id": 1}, reason="NODE_OVERLOADED")
        self.ok(self.task(server, needs={"vram_mb": 20000}))

    def test_never_more_than_there_is(self):
        """Many jobs at once over many connections: what runs fits, and in the end everything is returned."""
        server = self.start()
        node = self.node(server, max_concurrent_jobs=1000)
        answers = in_parallel(40, lambda _: self.task(server, needs={"cpu": 1, "mem_mb": 100}, queue_ms=600000))
        self.assertEqual({answer.status for answer in answers} - {200, 202}, set())
        done = 0
        while done < 40:
            jobs = eventually("the node gets jobs", lambda: node.poll(wait="2s", most=100))
            self.assertLessEqual(len(jobs), 8)
            for job in jobs:
                self.ok(node.ack(job))
            self.assertGreaterEqual(self.left(server, "cpu"), 0)
            for job in jobs:
                self.ok(node.done(job))
                done += 1
        eventually("all amounts are returned", lambda: (self.left(server, "cpu"), self.left(server, "mem_mb")) == (8, 16000))
        self.assertSlots(server, "n1", 0, 0)

    def test_what_was_taken_outlives_the_server(self):
        server = self.start()
        node = self.node(server)
        self.ok(self.task(server, needs={"mem_mb": 9000, "gpus": 1}))
        job = self.take(node)
        server.kill()
        server = self.start()
        node.server = server
        eventually("the new server knows what the job has", lambda: server.node("n1")["resources"]["mem_mb"]["left"] == 7000)
        self.ok(node.heartbeat(running_jobs=[{"job_id": job["job_id"], "attempt_id": 1}]))
        self.problem(self.task(server, needs={"mem_mb": 9000}), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.ok(node.done(job))
        self.ok(self.task(server, needs={"mem_mb": 9000}))


class Measured(Needs):
    def test_what_others_use_is_left_alone(self):
        server = self.start()
        node = self.node(server)
        free = {"mem_mb": 5000, "gpus": [{"id": 0, "vram_mb": 3000}]}
        self.ok(node.heartbeat(free=free))
        self.assertEqual(self.left(server, "mem_mb"), 5000)
        self.assertEqual(self.vram(server), {0: 3000, 3: 16000})
        self.problem(self.task(server, needs={"mem_mb": 6000}), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        waits = self.ok(self.task(server, needs={"mem_mb": 6000}, queue_ms=600000), 202)["job_id"]
        eventually("the server shows the new version of the node's record", lambda: server.node("n1")["version"] == 2)
        self.ok(node.heartbeat(free={**free, "mem_mb": 5100}))  # too little changed
        self.ok(node.heartbeat())  # nothing changed
        self.assertEqual(server.node("n1")["version"], 2)
        self.ok(node.heartbeat(free={**free, "mem_mb": 9000}))
        self.assertEqual(self.take(node)["job_id"], waits)
        # The job's memory was promised before and is used now: it does not count twice.
        self.ok(node.heartbeat(free={**free, "mem_mb": 3000}, ours={"mem_mb": 6000}))
        self.assertEqual(server.node("n1")["resources"]["mem_mb"]["left"], 3000)

    def test_by_the_configuration(self):
        config = self.dir / "server.yaml"
        config.write_text("nodes:\n  gpu-*: {resources: {mem_mb: 1000}}\n")
        server = self.start(config=str(config))
        self.node(server, "gpu-1")
        self.assertEqual(list(server.node("gpu-1")["resources"]), ["mem_mb"])
        self.assertEqual(server.node("gpu-1")["fixed"], ["resources"])
        self.problem(self.task(server, needs={"gpus": 1}), 422, "NO_CAPABLE_NODE")


class Selected(Needs):
    def test_what_a_node_has_is_like_a_label(self):
        server = self.start()
        self.node(server, labels={"cpu": "many"})
        self.node(server, "small", resources={"cpu": 2.5, "mem_mb": 4000})
        Node(server, "none", allowed_types=["*"])
        for selector, ids in (("mem_mb >= 16000", ["n1"]), ("mem_mb", ["n1", "small"]), ("gpu.count = 2", ["n1"]), ("gpu.vram_mb > 20000, gpu.model = L4", ["n1"]),
                              ("cpu = many", ["n1"]), ("cpu < 3", ["small"]), ("!mem_mb", ["none"]), ("gpu.model in (T4)", []), ("gpu.count=0", ["small"])):
            found = self.ok(server.get(f"/v1/nodes?selector={urllib.parse.quote(selector)}"))["nodes"]
            self.assertEqual([node["node_id"] for node in found], ids, selector)
        self.assertEqual(server.node("n1")["labels"], {"cpu": "many"})
        self.assertEqual(self.ok(self.task(server, requires="gpu.vram_mb >= 20000"))["node_id"], "n1")


class Types(Needs):
    def test_defaults_of_a_type(self):
        config = self.dir / "server.yaml"
        config.write_text("types:\n  dev: {needs: {cpu: 1.2, mem_mb: 1536}, keys: [kind:dev]}\n")
        server = self.start(config=str(config))
        node = self.node(server)
        job = self.ok(self.task(server))["job_id"]
        self.assertEqual((server.job(job)["needs"], server.job(job)["keys"]), ({"cpu": 1.2, "mem_mb": 1536}, ["kind:dev"]))
        own = self.ok(self.task(server, needs={"mem_mb": 0, "gpus": 1}, keys=["t:a"]))["job_id"]
        self.assertEqual((server.job(own)["needs"], server.job(own)["keys"]), ({"gpus": 1, "cpu": 1.2}, ["t:a"]))
        self.assertNotIn("needs", server.job(self.ok(self.task(server, type="other"))["job_id"]))
        batch = self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}]}))["results"][0]["job_id"]
        self.assertEqual(server.job(batch)["needs"], {"cpu": 1.2, "mem_mb": 1536})
        config.write_text("types:\n  dev: {needs: {cpu: 2}}\n")
        server.process.send_signal(signal.SIGHUP)
        eventually("server.reloaded is logged", lambda: "event=server.reloaded changed=types" in server.log)
        self.assertEqual(server.job(self.ok(self.task(server))["job_id"])["needs"], {"cpu": 2})
        self.assertEqual(server.job(job)["needs"], {"cpu": 1.2, "mem_mb": 1536})
        for message in node.poll(wait="1s", most=100):
            if message["job_id"] == job:
                self.ok(node.ack(message))
                self.ok(node.done(message))
        again = self.ok(server.post(f"/v1/jobs/{job}/retry"))["job_id"]  # with its old needs
        self.assertEqual(server.job(again)["needs"], {"cpu": 1.2, "mem_mb": 1536})

    def test_bad_rows_are_refused(self):
        for row, said in (("dev: {need: {cpu: 1}}", "needs and keys"), ("dev: {needs: {cpu: -1}}", "needs.cpu"), ("dev: [1]", "an object"),
                          ("dev: {keys: [a b]}", "A key"), ('"a b": {}', "no type")):
            config = self.dir / "server.yaml"
            config.write_text(f"types:\n  {row}\n")
            done = berth("config", "show", "--config", config)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("types", done.stderr)
            self.assertIn(said, done.stderr)


class Keys(Needs):
    def test_a_job_that_fails_holds_its_key(self):
        server = self.start()
        node = self.node(server)
        self.ok(self.task(server, keys=["tenant:a", "account:1"]))
        job = self.take(node)
        bad = self.problem(node.fail(job, hold={"key": "account:2", "for_ms": 1000}), 400, "BAD_FIELD")
        self.assertIn("account:2", bad["detail"])
        for hold in ({"key": "account:1"}, {"for_ms": 1000}, {"key": "account:1", "for_ms": 1, "until_ms": 1}, []):
            self.problem(node.fail(job, hold=hold), 400, "BAD_FIELD")
        self.problem(node.done(job, hold={"key": "account:1", "for_ms": 1000}), 400, "BAD_FIELD")
        self.ok(node.fail(job, "QUOTA", hold={"key": "account:1", "until_ms": int(time.time() * 1000) + 3600000, "reason": "closed until six"}))
        self.assertEqual(self.ok(server.get("/v1/limits/account:1"))["hold_reason"], "closed until six")
        answer = self.task(server, keys=["account:1"])
        body = self.problem(answer, 429, "LIMITED")
        self.assertEqual((body["key"], body["why"], body["limit"], body["used"]), ("account:1", "hold", 0, 0))
        self.assertIn(int(answer.headers["Retry-After"]), range(3500, 3601))
        self.assertEqual(self.ok(server.get(body["explain"]))["decisions"][0]["outcome"], "LIMITED")
        dry = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "keys": ["tenant:a", "account:1"]}))
        self.assertEqual((dry["status"], dry["outcome"]), (429, "LIMITED"))
        self.assertRegex(dry["detail"], r"^The key account:1 is held for another \d+ s\.$")
        first, second = dry["now"]["keys"]
        self.assertEqual((first["why"], first["detail"], second["why"]), (None, "tenant:a: 0, no limit", "hold"))
        self.assertRegex(second["detail"], r"^account:1: held for another \d+ s: closed until six$")
        self.assertEqual(self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "keys": ["account:1"], "queue_ms": 1000}))["outcome"], "WAITS")
        self.assertEqual(self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "keys": ["account"]}))["outcome"], "PLACED")
        waits = self.ok(self.task(server, keys=["account:1"], queue_ms=600000), 202)["job_id"]
        self.assertIn("The key account:1 is held", self.ok(server.get(f"/v1/jobs/{waits}/explain"))["now"]["detail"])
        other = self.ok(self.task(server, keys=["tenant:a"], queue_ms=600000), 202)["job_id"]
        self.assertEqual(self.take(node)["job_id"], other)
        self.assertEqual(server.job(waits)["state"], "NEW")
        self.assertEqual(server.job(waits)["keys"], ["account:1"])
        self.assertGreaterEqual(server.metrics()['berth_limited_total{why="hold"}'], 2)
        results = self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev", "keys": ["account:1"]}, {"type": "dev"}]}))["results"]
        self.assertEqual([result["status"] for result in results], [429, 202 if results[1]["status"] == 202 else 200])

    def test_the_attempt_does_not_count_and_it_goes_on_after(self):
        server = self.start()
        node = self.node(server)
        job = self.ok(self.task(server, keys=["account:1"], queue_ms=600000, max_attempts=1))["job_id"]
        self.take(node)
        self.ok(server.post("/v1/job/fail", {"job_id": job, "attempt_id": 1, "node_id": "n1",
                                             "hold": {"key": "account:1", "for_ms": "3s", "reason": "OUT_OF_QUOTA"}}))
        self.assertEqual(server.job(job)["state"], "RETRYING")
        self.assertEqual(server.job(job)["attempts"][0]["reason"], "OUT_OF_QUOTA")
        again = self.take(node)
        self.assertEqual((again["job_id"], again["attempt_id"]), (job, 2))
        self.assertGreaterEqual(server.job(job)["dispatched_ms"] - server.job(job)["attempts"][0]["ended_ms"], 2900)
        self.ok(node.done(again))
        eventually("the job is done", lambda: server.job(job)["state"] == "DONE")


class Limits(Needs):
    def test_a_list_shows_bounds_and_their_use(self):
        server = self.start()
        at = {"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}
        self.node(server)
        for limit in (("tenant:*", "--concurrency", 2, "--queue", 7), ("account:1", "--concurrency", 1, "--rate", "60/1m")):
            self.assertEqual(berth("limit", "set", *limit, env=at).returncode, 0)
        self.ok(self.task(server, keys=["tenant:a", "account:1"]))
        rows = {line.split()[0]: line.split()[1:6] for line in berth("limit", "ls", env=at).stdout.splitlines()[1:]}
        self.assertEqual(rows["tenant:*"], ["-/2", "-", "-", "-", "7"])
        self.assertEqual(rows["tenant:a"], ["1/2", "-", "0", "0", "7"])
        self.assertEqual(rows["account:1"], ["1/1", "60/1m", "1", "0", "-"])

    def limit(self, server, key, **rule):
        self.ok(server.call("PUT", f"/v1/limits/{key}", rule))

    def test_who_waits_goes_on_at_once(self):
        server = self.start()
        node = self.node(server)
        self.limit(server, "account:*", concurrency=1)
        self.ok(self.task(server, keys=["account:1"]))
        first = self.take(node)
        answer = self.task(server, keys=["account:1"])
        body = self.problem(answer, 429, "LIMITED")
        self.assertEqual((body["key"], body["why"], body["limit"], body["used"], answer.headers["Retry-After"]), ("account:1", "concurrency", 1, 1, "1"))
        jobs = [self.ok(self.task(server, keys=["account:1"], queue_ms=600000), 202)["job_id"] for _ in range(3)]
        held = {"key": "account:1", "why": "concurrency", "detail": f"account:1: 1 of 1, held by {first['job_id']}", "held_by": [first["job_id"]]}
        self.assertEqual(self.ok(server.get(f"/v1/jobs/{jobs[2]}/explain"))["now"]["keys"], [held])
        self.assertEqual(self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev", "keys": ["account:1"]}))["now"]["keys"], [held])
        self.assertEqual(self.ok(server.get("/v1/limits/account:1"))["held_by"], [first["job_id"]])
        self.ok(node.done(first))
        second = self.take(node)
        self.assertEqual(second["job_id"], jobs[0])
        self.limit(server, "account:*", concurrency=2)  # the limit is raised
        self.assertEqual(self.take(node)["job_id"], jobs[1])
        self.ok(server.post("/v1/limits/account:1/hold", {"for_ms": 3600000}))
        self.ok(node.done(second))
        self.assertEqual(node.poll(wait="2s"), [])
        self.ok(server.post("/v1/limits/account:1/release"))
        self.assertEqual(self.take(node)["job_id"], jobs[2])

    def test_tenants_take_turns_by_weight(self):
        server = self.start()
        self.limit(server, "tenant:c", weight=3)
        node = self.node(server, max_concurrent_jobs=1)
        jobs = [{"type": "dev", "keys": [f"tenant:{name}"], "queue_ms": 600000} for name in "aaabbbccc" * 20]
        for answer in self.ok(server.post("/v1/dispatch/batch", {"jobs": sorted(jobs, key=lambda job: job["keys"])}))["results"]:
            self.assertIn(answer["status"], (200, 202))
        order = ""
        while "ccc" not in order[:-25] and len(order) < 100:  # weights are read again only once a second
            job = self.take(node)
            order += job["keys"][0][-1]
            self.ok(node.done(job))
        counts = {name: order[-25:].count(name) for name in "abc"}
        self.assertTrue(4 <= counts["a"] <= 6 and 4 <= counts["b"] <= 6 and 13 <= counts["c"] <= 17, (counts, order))


class InRedis(Needs):
    """Two servers on one Redis: what one gives out the other cannot."""

    def pair(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        return [self.start(data_dir=name, store=redis.url) for name in ("a", "b")]

    def test_both_give_out_the_same(self):
        one, two = self.pair()
        node = self.node(one)
        eventually("the other server knows the node", lambda: two.get("/v1/nodes/n1").status == 200)
        answers = in_parallel(40, lambda i: self.task((one, two)[i % 2], needs={"cpu": 1, "vram_mb": 2000}, queue_ms=600000))
        self.assertEqual({answer.status for answer in answers} - {200, 202}, set())
        done = 0
        while done < 40:
            jobs = eventually("the node gets jobs", lambda: node.poll(wait="2s", most=100))
            self.assertLessEqual(len(jobs), 8)
            for job in jobs:
                self.assertEqual(len(job["gpus"]), 1)
                self.ok(node.ack(job))
                self.ok(node.done(job))
                done += 1
        for server in (one, two):
            eventually("all amounts are returned", lambda: self.left(server, "cpu") == 8 and self.vram(server) == {0: 24000, 3: 16000})

    def test_a_hold_is_everybodys(self):
        one, two = self.pair()
        node = self.node(one)
        eventually("the other server knows the node", lambda: two.get("/v1/nodes/n1").status == 200)
        self.ok(self.task(one, keys=["account:1"]))
        self.ok(node.fail(self.take(node), "QUOTA", hold={"key": "account:1", "for_ms": 5000}))
        self.problem(self.task(two, keys=["account:1"]), 429, "LIMITED")
        waits = self.ok(self.task(two, keys=["account:1"], queue_ms=600000), 202)["job_id"]
        self.assertEqual(self.take(node)["job_id"], waits)
