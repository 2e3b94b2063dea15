"""Everything that clients and nodes can cause, over a connection to Redis that fails at every point: cut, silent or slow, before the call
reaches Redis or after it ran there. No client is told that nothing was started when something was; what was accepted reaches a node, in its
first and only attempt."""
import itertools
import threading
import time

from harness import SLOW, Case, Clock, Node, eventually
from redis import Redis
from relay import CallRelay


def heard(answer):
    """None if the message must be sent again."""
    return answer if answer.status < 500 else None


class Witness(threading.Thread):
    """A node that runs everything it gets at once, and records what it got and what it began."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node = node
        self.given, self.began = [], []  # titles of jobs
        self.over = threading.Event()

    def until_heard(self, say, job, **more):
        while not self.over.is_set():
            answer = say(job, **more)
            if answer.status < 500:
                return answer

    def run(self):
        beat_at = 0
        while not self.over.is_set():
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + 1
                self.node.heartbeat()
            answer = self.node.server.get(f"/v1/node/jobs?node_id={self.node.id}&wait=100ms")
            for job in answer.json["jobs"] if answer.status == 200 else ():
                title = job.get("title") or job["audio_ref"]
                self.given.append(title)
                if self.until_heard(self.node.ack, job, send_id=job["send_id"]).status != 200:
                    continue
                self.began.append(title)
                self.until_heard(self.node.done, job)


class Wire(Case):
    """Calls time out soon, so on a busy machine calls other than the one with the fault may be given up too. The test repeats such
    messages, as clients and nodes do."""

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.dir / "redis")
        self.addCleanup(self.redis.kill)
        self.wire = CallRelay(self.redis.port)
        self.addCleanup(self.wire.close)
        self.server = self.start(store=f"redis://127.0.0.1:{self.wire.port}/0", reservation_ttl_ms=int(10000 * SLOW),
                                 store_call_ms=int(100 * SLOW), max_attempts=1)
        self.wire.LATE_S = 0.3 * SLOW
        self.witnesses = []
        self.numbers = itertools.count(1)
        self.maybe, self.refused, self.accepted = {}, [], {}  # title: job_id

    def healed(self):
        eventually("the store takes calls", lambda: self.server.get("/v1/breakers").status == 200)

    def job(self, job_id):
        return self.server.ask(f"/v1/jobs/{job_id}")

    def node(self, name, **facts):
        node = Node(self.server, name, register=False, **facts)
        self.until_heard(node.register)
        return node

    def witness(self, name, **facts):
        witness = Witness(self.node(name, **facts))
        witness.start()
        self.witnesses.append(witness)
        return witness

    def tearDown(self):
        for witness in self.witnesses:
            witness.over.set()
            witness.join()
        super().tearDown()

    def strike(self, fault, when, texts, say):
        """One message whose call meets the fault; its answer. A message that was refused without making that call is sent again: another
        call had been given up."""
        self.healed()
        self.wire.arm(fault, when, *texts)
        answer = say()
        while answer.status == 503 and not self.wire.met.is_set():
            self.healed()
            answer = say()
        self.assertTrue(self.wire.met.wait(30 * SLOW), f"{fault} {when}: no such call was made")
        return answer

    # Submitting.

    def f2f(self, title, key):
        return self.server.post("/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh", "audio_ref": title},
                                {"Idempotency-Key": key} if key else None)

    def at_once(self, title, key):
        return self.task(self.server, title=title, headers={"Idempotency-Key": key} if key else None)

    def waiting(self, title, key):
        return self.task(self.server, title=title, queue_ms=60000, headers={"Idempotency-Key": key} if key else None)

    def judge(self, title, answer):
        """Sorts the job by the client's answer."""
        if answer.status in (200, 202):
            self.accepted[title] = answer["job_id"]
        elif answer.status == 504:
            self.problem(answer, 504, "OUTCOME_UNKNOWN")
            self.assertNotIn("Retry-After", answer.headers)
            self.maybe[title] = answer["job_id"]
        else:
            self.problem(answer, 503, "SCHEDULER_DEPENDENCY_DOWN")
            self.refused.append(title)

    def submit_all(self, submit):
        """Every fault, without a key and with one; a client with a key repeats its request until it is answered."""
        for (fault, when), keyed in itertools.product(CallRelay.FAULTS, (False, True)):
            title = f"{submit.__name__}-{fault}-{when}-{next(self.numbers)}"
            key = f"key-{title}" if keyed else None
            answer = self.strike(fault, when, [title], lambda: submit(title, key))
            if not keyed:
                self.judge(title, answer)
                continue

            def answered():
                again = submit(title, key)
                return again if again.status < 500 else None

            self.judge(title, answer if answer.status < 500 else eventually(f"{title} is answered", answered))
        self.assertTrue(self.maybe, "some outcomes must be unknown")

    def unknown_are_over(self):
        """Waits until every job that may have been accepted has failed, or does not exist."""
        self.healed()
        for title, job_id in self.maybe.items():
            eventually(f"{title} has ended or does not exist",
                       lambda: self.server.get(f"/v1/jobs/{job_id}").status == 404 or self.over(job_id))
            if self.server.get(f"/v1/jobs/{job_id}").status == 200:
                self.assertEqual(self.job(job_id)["state"], "FAILED", title)

    def settle(self):
        """Afterwards every accepted job ran once, and no other job ran."""
        self.healed()
        for title, job_id in self.accepted.items():
            ended = eventually(f"{title} ends", lambda: self.over(job_id))
            self.assertEqual((ended["state"], ended["attempt_id"]), ("DONE", 1), f"{title}: {ended}")
        self.unknown_are_over()
        began = [title for witness in self.witnesses for title in witness.began]
        self.assertEqual(sorted(began), sorted(self.accepted), "accepted jobs must begin once, and no others")
        given = {title for witness in self.witnesses for title in witness.given}
        self.assertFalse(given & set(self.refused), "a refused job was sent to a node")
        self.assertFalse(given & set(self.maybe), "a job with an unknown outcome was sent to a node")

    def over(self, job_id):
        answer = self.server.get(f"/v1/jobs/{job_id}")
        return answer.json if answer.status == 200 and answer["state"] in ("DONE", "FAILED") else None

    def test_face_to_face(self):
        for name in ("n1", "n2"):
            self.witness(name, max_concurrent_jobs=100)
        self.submit_all(self.f2f)
        self.settle()

    def test_tasks(self):
        for name in ("n1", "n2"):
            self.witness(name, max_concurrent_jobs=100, allowed_types=["dev"])
        self.submit_all(self.at_once)
        self.settle()

    def test_queued(self):
        """One job already waits, so the others are queued after it; then there is room."""
        self.node("n1", max_concurrent_jobs=0, allowed_types=["dev"])
        self.judge("first", self.waiting("first", None))
        self.submit_all(self.waiting)
        self.unknown_are_over()
        self.until_heard(self.server.post, "/v1/node/deregister", {"node_id": "n1"})
        self.witness("n2", max_concurrent_jobs=100, allowed_types=["dev"])
        self.settle()

    def test_placed_from_the_queue(self):
        """The reserve of a waiting job meets the fault: the job is sent all the same, and its only attempt is not used up."""
        node = self.node("n1", max_concurrent_jobs=0, allowed_types=["dev"])
        for fault, when in CallRelay.FAULTS:
            self.healed()
            job = self.until_heard(self.task, self.server, queue_ms=600000, status=202)
            self.strike(fault, when, [job["job_id"], "n1"],
                        lambda: eventually("the node's new slot is accepted", lambda: heard(node.register(max_concurrent_jobs=1))))
            came = []
            eventually(f"{fault} {when}: the node gets the job", lambda: came.extend(self.polled(node)) or came)
            self.assertEqual([(one["job_id"], one["attempt_id"]) for one in came], [(job["job_id"], 1)])
            self.until_heard(node.ack, came[0])
            self.until_heard(node.done, came[0])
            self.assertEqual(self.job(job["job_id"])["state"], "DONE")
            self.until_heard(node.register, max_concurrent_jobs=0)

    def polled(self, node):
        answer = self.server.get(f"/v1/node/jobs?node_id={node.id}&wait=1s")
        return answer.json["jobs"] if answer.status == 200 else []

    # Messages of nodes and operators.

    def until_heard(self, say, *words, status=200, **more):
        return self.ok(eventually("the message is answered", lambda: heard(say(*words, **more))), status)

    def placed_on(self, node, **fields):
        self.healed()
        self.until_heard(node.heartbeat)
        job = self.until_heard(self.task, self.server, **fields)
        (message,) = eventually("the node gets the job", lambda: self.polled(node))
        self.assertEqual(message["job_id"], job["job_id"])
        return message

    def say_all(self, word, before=(), **fields):
        """Every fault at one message of a node or an operator: repeated until it is answered, it takes effect once."""
        node = self.node("n1", max_concurrent_jobs=1, allowed_types=["dev"])
        says = {"ack": node.ack, "done": node.done, "fail": node.fail,
                "cancel": lambda job: self.server.post(f"/v1/jobs/{job['job_id']}/cancel"),
                "heartbeat": lambda job: node.heartbeat(running_jobs=[{"job_id": job["job_id"], "attempt_id": 1}])}
        for fault, when in CallRelay.FAULTS:
            job = self.placed_on(node, **fields)
            for earlier in before:
                self.until_heard(says[earlier], job)
            answer = self.strike(fault, when, [job["job_id"]], lambda: says[word](job))
            if word != "heartbeat":
                self.assertIn(answer.status, (200, 503, 504), f"{fault} {when}: {answer}")
            self.healed()
            self.until_heard(says[word], job)
            yield node, job, f"{fault} {when}"

    def test_ack(self):
        for node, job, what in self.say_all("ack"):
            self.assertEqual(self.job(job["job_id"])["state"], "ACKED", what)
            eventually(f"{what}: the slot is counted once", lambda: self.server.slots("n1") == (0, 1))
            self.until_heard(node.done, job)

    def test_done(self):
        for node, job, what in self.say_all("done", ["ack"]):
            self.assertEqual(self.job(job["job_id"])["state"], "DONE", what)
            eventually(f"{what}: the slot is free", lambda: self.server.slots("n1") == (0, 0))

    def test_fail(self):
        for node, job, what in self.say_all("fail", ["ack"], max_attempts=2):
            (again,) = eventually(f"{what}: the node gets the second attempt", lambda: self.polled(node))
            self.assertEqual((again["job_id"], again["attempt_id"]), (job["job_id"], 2), what)
            self.until_heard(node.ack, again)
            self.until_heard(node.done, again)
            self.assertEqual(self.polled(node), [], f"{what}: the job is sent once more")

    def test_cancel(self):
        for node, job, what in self.say_all("cancel", ["ack"]):
            found = self.job(job["job_id"])
            self.assertEqual((found["state"], found["reason"]), ("FAILED", "CANCELLED"), what)
            self.until_heard(node.done, job)
            eventually(f"{what}: the slot is free", lambda: self.server.slots("n1") == (0, 0))

    def test_renewal(self):
        for node, job, what in self.say_all("heartbeat", ["ack"]):
            self.assertEqual(self.job(job["job_id"])["state"], "ACKED", what)
            self.until_heard(node.done, job)

    def test_registration(self):
        for i, (fault, when) in enumerate(CallRelay.FAULTS):
            node = Node(self.server, f"new-{i}", register=False, allowed_types=[f"type{i}"])
            self.strike(fault, when, [node.id], node.register)
            self.healed()
            self.until_heard(node.register)
            job = self.until_heard(self.task, self.server, type=f"type{i}")
            self.assertEqual(job["node_id"], node.id)


class Instances(Case):
    """An instance is killed between the reserve and the send: it never got Redis' answer."""

    def test_killed_between_reserve_and_send(self):
        self.killed(0)

    def test_killed_and_the_clock_is_set_back(self):
        """According to the new clock the dead instance was last seen in the future."""
        self.killed(-60)

    def killed(self, step_s):
        clock = Clock(self.dir)
        redis = Redis(self.dir / "redis", env=clock.env)
        self.addCleanup(redis.kill)
        wire = CallRelay(redis.port)
        self.addCleanup(wire.close)
        a = self.start("a", store=f"redis://127.0.0.1:{wire.port}/0", store_call_ms=60000, max_attempts=1,
                       reservation_ttl_ms=5000)
        b = self.start("b", store=redis.url, max_attempts=1)
        node = Node(b, "n1", max_concurrent_jobs=4)
        eventually("both instances know the node", lambda: a.get("/v1/nodes/n1").status == 200)
        body = {"src_lang": "en", "tgt_lang": "zh", "audio_ref": "once"}
        wire.arm("lose", "after", "once")
        threading.Thread(target=lambda: self.ask_in_vain(a, body), daemon=True).start()
        self.assertTrue(wire.met.wait(30 * SLOW))
        a.kill()
        clock.set(step_s)
        again = self.ok(b.post("/v1/dispatch/f2f", body, {"Idempotency-Key": "k"}))
        self.assertTrue(again["duplicate"])
        came = []
        eventually("the node gets the job after the reservation has run out",
                   lambda: node.heartbeat() and came.extend(node.poll(wait="1s")) or came, 30)
        self.assertEqual([(one["job_id"], one["attempt_id"]) for one in came], [(again["job_id"], 1)])
        self.ok(node.ack(came[0], send_id=came[0]["send_id"]))
        self.ok(node.done(came[0]))
        self.assertEqual(b.job(again["job_id"])["state"], "DONE")

    @staticmethod
    def ask_in_vain(server, body):
        try:
            server.post("/v1/dispatch/f2f", body, {"Idempotency-Key": "k"})
        except OSError:
            pass
