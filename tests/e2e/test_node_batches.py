"""Nodes that asked for several jobs in one frame and for one answer to many of their messages: nothing is lost, answered twice, or answered
before it is true. tests/server/test_hub_batch.c shows in which order messages may come."""
import collections
import json

from harness import SLOW, Case, WsNode, tags


class TogetherNode(WsNode):
    """Numbers its messages in ascending order; `answers` has the answer to each."""

    def __init__(self, server, node_id, **facts):
        super().__init__(server, node_id, takes_jobs=True, takes_accepted=True, **facts)
        self.sent, self.answers, self.frames = [], {}, collections.Counter()

    def say(self, msg, job, **fields):
        self.number += 1
        self.sent.append(self.number)
        self.send(msg, id=self.number, job_id=job["job_id"], attempt_id=job["attempt_id"], **fields)
        return self.number

    def hear(self, seconds=30):
        """Reads one message and returns its jobs; notes what it accepts."""
        message = json.loads(self.socket.recv(seconds * SLOW))
        self.frames[message["msg"]] += 1
        if message["msg"] == "accepted":
            for number in self.sent:
                if number <= message["upto"] and number not in self.answers:
                    self.answers[number] = {"ok": True, **message}
        elif message["msg"] == "reply" and message["re"] is not None:
            assert message["re"] not in self.answers, f"answered twice: {message}"
            self.answers[message["re"]] = message
        return message["jobs"] if message["msg"] == "jobs" else [message] if message["msg"] == "job" else []

    def until(self, *numbers):
        while any(number not in self.answers for number in numbers):
            self.hear()
        return [self.answers[number] for number in numbers]


class Together(Case):
    def start_node(self, **facts):
        self.server = self.start()
        return TogetherNode(self.server, "n1", allowed_types=["dev"], max_concurrent_jobs=1000, **facts)

    def test_answers(self):
        node = self.start_node()
        jobs = [self.ok(self.task(self.server, **more)) for more in ({}, {"max_attempts": 1}, {"timeout_ms": 60000}, {})]
        acks = [node.say("ack", job) for job in jobs]
        dones = [node.say("done", job, status="ok", result={"n": 1}) for job in jobs[:3]]
        late = node.say("ack", {**jobs[0], "attempt_id": 7})
        again = node.say("done", jobs[0], status="ok", result={"n": 1})
        failed = node.say("fail", jobs[3], reason="CANCELLED")
        answers = node.until(*acks, *dones, late, again, failed)
        self.assertTrue(all(answer["ok"] for answer in answers[:7] + answers[9:]), answers)
        terms = [(answer["msg"], answer.get("lease_ms"), "stop_grace_ms" in answer) for answer in answers[:4]]
        self.assertEqual(terms, [("accepted", 120000, False), ("accepted", None, False), ("accepted", 120000, True), ("accepted", 120000, False)])
        self.assertEqual((answers[7]["msg"], answers[7]["status"], answers[7]["attempt_id"]), ("reply", 409, 1))
        self.assertEqual((answers[8]["msg"], answers[8]["duplicate"]), ("reply", True))
        node.send("ack", id=3, job_id=jobs[0]["job_id"], attempt_id=1)  # an id that is lower than earlier ones
        self.assertEqual(node.expect("reply", re=3)["status"], 409)
        self.assertTrue(node.ask("heartbeat")["ok"])
        for job in jobs[:3]:
            self.assertEqual(self.server.job(job["job_id"])["result"], {"n": 1})

    @tags("threads")
    def test_many(self):
        node = self.start_node()
        count, known, done = 0, set(), 0

        def work():
            nonlocal done
            for job in node.hear():
                self.assertNotIn(job["job_id"], known)
                known.add(job["job_id"])
                node.say("ack", job)
                node.say("done", job, status="ok")
                done += 1
        submitted = set()
        # how often messages are combined is a matter of chance
        while count < 5000 or not node.frames["jobs"] or node.frames["accepted"] >= len(node.answers):
            results = self.ok(self.server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev", "max_attempts": 1}] * 100}))["results"]
            submitted |= {result["job_id"] for result in results}
            count += 100
            while done < count:
                work()
        node.until(*node.sent)
        self.assertEqual(known, submitted)
        self.assertTrue(all(answer["ok"] for answer in node.answers.values()))
        self.assertEqual(node.frames["reply"], 0)
        self.assertSlots(self.server, "n1", 0, 0)

    def test_a_cancel_comes_behind_its_job(self):
        node = self.start_node()
        results = self.ok(self.server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}] * 10}))["results"]
        for result in results:
            self.ok(self.server.post(f"/v1/jobs/{result['job_id']}/cancel"))
        seen, cancelled = set(), set()
        while len(cancelled) < len(results):
            message = json.loads(node.socket.recv(10 * SLOW))
            for job in message.get("jobs", [message] if message["msg"] == "job" else []):
                seen.add(job["job_id"])
            if message["msg"] == "cancel":
                self.assertIn(message["job_id"], seen)
                cancelled.add(message["job_id"])

    def test_who_did_not_ask(self):
        self.server = self.start()
        node = WsNode(self.server, "n1", allowed_types=["dev"], max_concurrent_jobs=1000)
        results = self.ok(self.server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}] * 50}))["results"]
        for result in results:
            job = node.expect("job", job_id=result["job_id"])
            self.assertEqual(node.report("ack", job)["lease_ms"], 120000)
        self.assertFalse({message["msg"] for message in node.waiting} & {"jobs", "accepted"})
