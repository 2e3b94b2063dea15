"""What callers may have waiting: all together, and each token by its quota; and who submitted a job."""
import json

from harness import Node, eventually
from test_auth import bearer, digest
from test_bodies import Sender
from test_http import statuses
from test_instances import Instances
from test_tokens import TokenCase

WAITS = {"queue_ms": 600000}


class TokenNode(Node):
    def __init__(self, *args, token, **facts):
        self.token = token
        super().__init__(*args, **facts)

    def register(self, **facts):
        self.facts.update(facts)
        return self.server.post("/v1/node/register", {"node_id": self.id, **self.facts}, bearer(self.token))


class QuotaCase(TokenCase):
    def task(self, server, token=None, type="dev", **fields):
        return server.post("/v1/dispatch/task", {"type": type, **WAITS, **fields}, bearer(token))

    def waits(self, server, token=None, **fields):
        return self.ok(self.task(server, token, **fields), 202)["job_id"]

    def over(self, answer, part, token):
        """Checks that the call was refused by this part of that token's quota."""
        self.problem(answer, 429, "QUOTA_EXCEEDED")
        self.assertEqual(answer.json["field"], f"quota.{part}")
        self.assertIn(f" {token} ", answer.json["detail"])
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        return answer

    def made(self, server, name, quota, scope="submit,read"):
        return self.cli(server, "token", "create", name, "--scope", scope, "--quota", quota, token=server.token)

    def cancel(self, server, job, token=None):
        self.ok(server.post(f"/v1/jobs/{job}/cancel", headers=bearer(token)))

    def full(self, **settings):
        """A server whose only slot is taken."""
        server, root = self.guarded(**settings)
        TokenNode(server, "n1", token=root, allowed_types=["dev", "other"], max_concurrent_jobs=1)
        self.ok(self.task(server, root))
        return server, root


class All(QuotaCase):
    def test_types_do_not_multiply_what_may_wait(self):
        server = self.start(queue_max=3, queue_total_max=10)
        types = [f"t{i}" for i in range(20)]
        Node(server, "n1", allowed_types=types, max_concurrent_jobs=1)
        self.ok(self.task(server, type="t0"))
        jobs = [self.waits(server, type=types[i]) for i in range(10)]
        answer = self.task(server, type="t19")
        self.problem(answer, 429, "QUEUE_FULL")
        self.assertIn("queue_total_max", answer.json["detail"])
        self.assertEqual(answer.headers["Retry-After"], "1")
        self.assertEqual(server.metrics()['berth_dispatch_total{outcome="QUEUE_FULL"}'], 1)
        for job in jobs[3:5]:
            self.cancel(server, job)
            self.waits(server, type="t0")
        self.cancel(server, jobs[5])
        answer = self.task(server, type="t0")
        self.problem(answer, 429, "QUEUE_FULL")
        self.assertIn("(queue_max)", answer.json["detail"], "queue_max must be named, not queue_total_max")

    def test_what_waits_still_counts_after_a_crash(self):
        server = self.start(queue_total_max=3)
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server))
        for _ in range(3):
            self.waits(server)
        server.kill()
        server = self.start(queue_total_max=3)
        eventually("the node is known again, and the queue is full", lambda: self.task(server).status == 429)
        self.problem(self.task(server), 429, "QUEUE_FULL")


class Rate(QuotaCase):
    def test_a_burst_and_then_no_more(self):
        server, root = self.guarded()
        token = self.made(server, "ci", "rate=5/h")
        other = self.made(server, "other", "waiting=5")
        answers = [self.task(server, token) for _ in range(8)]
        self.assertEqual([answer.status for answer in answers], [422] * 5 + [429] * 3)
        self.assertIn("rate=5/h", self.over(answers[5], "rate", "ci").json["detail"])
        self.assertGreater(int(answers[5].headers["Retry-After"]), 60, "Retry-After must say when there is room again")
        self.assertEqual(server.metrics()['berth_dispatch_total{outcome="QUOTA_EXCEEDED"}'], 3)
        self.assertEqual(self.task(server, other).status, 422, "another token has its own rate")
        self.assertEqual(self.task(server, root).status, 422)
        self.assertEqual(self.status(server, token), 200, "the rate limits only submissions")
        self.over(server.post("/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh"}, bearer(token)), "rate", "ci")
        self.over(server.post("/v1/dispatch/task?dry_run=1", {"type": "dev"}, bearer(token)), "rate", "ci")
        self.cli(server, "token", "create", "third", "--scope", "read", token=root)
        self.over(self.task(server, token), "rate", "ci")  # still refused after the tokens have changed

    def test_each_job_of_a_batch_counts(self):
        server, root = self.guarded()
        token = self.made(server, "ci", "rate=4/h")
        answer = self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}] * 7}, bearer(token)))
        self.assertEqual([(row["status"], row.get("field")) for row in answer["results"]],
                         [(422, None)] * 4 + [(429, "quota.rate")] * 3)

    def test_over_the_rate_no_body_is_read(self):
        server, root = self.guarded()
        token = self.made(server, "ci", "rate=3/h")
        for path in ("task", "f2f", "batch"):  # each request counts as one job when its head arrives, whether its body follows or not
            sender = Sender(server, path=f"/v1/dispatch/{path}", token=token, length=1000, Expect="100-continue")
            self.assertEqual(statuses(sender.answer()), [100], path)
            sender.socket.close()
        for path in ("task", "f2f", "batch"):
            sender = Sender(server, path=f"/v1/dispatch/{path}", token=token, length=1000000)
            got = sender.answer()  # nothing of the body was sent
            self.assertEqual(statuses(got), [429], path)
            for word in (b"QUOTA_EXCEEDED", b"quota.rate", b"Retry-After: ", b"Connection: close"):
                self.assertIn(word, got)
            sender.socket.close()
        self.assertEqual(server.metrics()['berth_dispatch_total{outcome="QUOTA_EXCEEDED"}'], 3)

    def test_a_retry_counts(self):
        server, root = self.guarded()
        token = self.made(server, "ops", "rate=1/h", scope="operate")
        TokenNode(server, "n1", token=root, allowed_types=["dev"])
        job = self.ok(self.task(server, root))["job_id"]
        self.cancel(server, job, root)
        again = self.ok(server.post(f"/v1/jobs/{job}/retry", headers=bearer(token)))
        shown = self.ok(server.get(f"/v1/jobs/{again['job_id']}", **bearer(root)))
        self.assertEqual(shown["submitted_by"], "ops", "the token that asked for the retry")
        self.over(server.post(f"/v1/jobs/{job}/retry", headers=bearer(token)), "rate", "ops")


class Waiting(QuotaCase):
    def test_how_many_wait(self):
        server, root = self.full()
        token = self.made(server, "ci", "waiting=2")
        jobs = [self.waits(server, token), self.waits(server, token, type="other")]
        self.over(self.task(server, token), "waiting", "ci")
        self.waits(server, root)
        batch = self.ok(server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev", **WAITS}]}, bearer(token)))
        self.assertEqual((batch["results"][0]["status"], batch["results"][0]["field"]), (429, "quota.waiting"))
        server.kill()
        server = self.start()
        server.token = root
        eventually("the node is known again, and the quota is used up", lambda: self.task(server, token).status == 429)
        self.over(self.task(server, token), "waiting", "ci")
        self.cancel(server, jobs[0], root)
        self.waits(server, token)
        self.over(self.task(server, token), "waiting", "ci")

    def test_how_large_they_are(self):
        server, root = self.full()
        token = self.made(server, "ci", "bytes=64KiB")
        first = self.waits(server, token, payload="x" * 40000)
        self.over(self.task(server, token, payload="x" * 40000), "bytes", "ci")
        self.waits(server, token, payload="x" * 20000)
        self.over(self.task(server, token, payload="x" * 20000, type="other"), "bytes", "ci")
        self.cancel(server, first, root)
        self.waits(server, token, payload="x" * 40000)
        self.over(self.task(server, token, payload="x" * 70000), "bytes", "ci")


class Shared(QuotaCase, Instances):
    count = 2

    def test_both_bounds_are_over_all_instances(self):
        for server in self.all:
            self.assertEqual(server.stop(), 0)
        root, token = "root-secret", "ci-secret"
        path = self.dir / "tokens.yaml"
        path.write_text(json.dumps([
            {"name": "root", "sha256": digest(root), "scopes": ["admin"]},
            {"name": "ci", "sha256": digest(token), "scopes": ["submit"], "quota": "waiting=4,bytes=1MiB"}]))
        self.all = [self.instance(f"shared{i}", queue_total_max=6, tokens_file=path) for i in range(self.count)]
        for server in self.all:
            server.token = root
        TokenNode(self.all[0], "n1", token=root, allowed_types=["dev"], max_concurrent_jobs=1)
        eventually("both instances know the node",
                   lambda: all(server.get("/v1/nodes/n1", **bearer(root)).status == 200 for server in self.all))
        self.ok(self.task(self.all[0], root))
        jobs = [self.waits(self.all[i % 2], token) for i in range(4)]
        for server in self.all:
            self.over(self.task(server, token), "waiting", "ci")
        self.cancel(self.all[1], jobs[0], root)
        self.waits(self.all[0], token)
        self.over(self.task(self.all[1], token), "waiting", "ci")
        for server in self.all:
            self.waits(server, root)
        for server in self.all:
            answer = self.task(server, root)
            self.problem(answer, 429, "QUEUE_FULL")
            self.assertIn("queue_total_max", answer.json["detail"])


class Written(QuotaCase):
    def test_quotas_are_listed_and_kept(self):
        server, root = self.guarded()
        self.made(server, "ci", "bytes=65536,rate=600/m")
        listed = json.loads(self.cli(server, "token", "ls", "-o", "json", token=root))["tokens"]
        self.assertEqual([row["quota"] for row in listed], [None, "rate=600/m,bytes=64KiB"])
        self.assertIn("rate=600/m,bytes=64KiB", self.cli(server, "token", "ls", token=root))
        self.assertIn("rate=600/m", (server.data_dir / "tokens.yaml").read_text())
        made = self.ok(server.post("/v1/tokens", {"name": "api", "scopes": ["submit"], "quota": "rate=1/h"}, bearer(root)), 201)
        self.assertEqual(made["quota"], "rate=1/h")
        self.assertEqual([self.task(server, made["token"]).status for _ in range(2)], [422, 429])
        for quota in ("rate=1", "rate=0/s", "waiting=x", "bytes=1MB", "fast", "rate=1/s,rate=2/s", ""):
            self.cli(server, "token", "create", "x", "--scope", "submit", "--quota", quota, token=root, code=2)
        for quota in ("rate=1", "fast", "", 5, {}):
            self.problem(server.post("/v1/tokens", {"name": "x", "scopes": ["submit"], "quota": quota}, bearer(root)), 400, "BAD_FIELD")


class Submitter(QuotaCase):
    def test_a_job_tells_who_submitted_it(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=2)
        before = self.ok(self.task(server, submitted_by="somebody"))["job_id"]
        self.assertNotIn("submitted_by", server.job(before), "without tokens the field is ignored")
        root = server.token = self.cli(server, "token", "create", "root", "--scope", "admin")
        token = self.cli(server, "token", "create", "ci", "--scope", "submit", token=root)
        running = self.ok(self.task(server, token, submitted_by="root"))["job_id"]
        waiting = self.waits(server, token, submitted_by="root")
        for job in (running, waiting):
            self.assertEqual(self.ok(server.get(f"/v1/jobs/{job}", **bearer(root)))["submitted_by"], "ci")
        self.assertRegex(self.cli(server, "job", "show", running, token=root), r"submitted_by:?\s+ci")
