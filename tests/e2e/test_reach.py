"""The three ways a job reaches a node: WebSocket, push to its endpoint, long poll."""
import json
import socket
import threading
import time

import wsclient
from harness import SLOW, Case, Listener, Node, WsNode, eventually, in_parallel, tags
from redis import Redis

# Of a face-to-face job; what a job does not have (payload, command...) may be left out.
FIELDS = "job_id attempt_id session_id src tgt audio_ref options type priority deadline_ms".split()


class Poll(Case):
    def test_a_job_that_waits_is_handed_out_once(self):
        server = self.start()
        node = Node(server, "n1")
        job = self.placed(server, session="room-1", require_tts=True)
        message = node.poll()[0]
        for name in FIELDS:
            self.assertIn(name, message)
        self.assertEqual((message["job_id"], message["attempt_id"]), (job["job_id"], 1))
        self.assertEqual((message["session_id"], message["src"], message["tgt"], message["audio_ref"]),
                         ("room-1", "en", "zh", "blob://a"))
        self.assertEqual(message["options"]["require_tts"], True)
        self.assertNotIn("msg", message)
        self.assertEqual(node.poll(wait="1ms"), [])
        self.ok(node.ack(message))
        self.ok(node.done(message))

    def test_a_task_carries_everything_it_was_given(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"])
        given = {"title": "a title", "priority": 3, "payload": {"a": [1]}, "command": ["make", "-j2"],
                 "timeout_ms": 60000, "options": {"x": "y"}, "session_id": "room-1"}
        self.ok(self.task(server, **given, callback_url="http://127.0.0.1:1/secret"))
        message = node.poll()[0]
        for name, value in {**given, "type": "dev", "attempt_id": 1}.items():
            self.assertEqual(message[name], value, name)
        self.assertNotIn("secret", str(message), "the node must not get the callback's URL")

    def test_deadline_is_the_end_of_the_reservation(self):
        server = self.start(reservation_ttl_ms=30000)
        node = Node(server, "n1")
        self.placed(server)
        left = node.poll()[0]["deadline_ms"] - time.time() * 1000
        self.assertTrue(0 < left <= 30000 + 50, f"{left} ms are left")

    def test_a_long_poll_is_answered_when_a_job_comes(self):
        server = self.start(loops=2)
        node = Node(server, "n1")
        got = []
        poller = threading.Thread(target=lambda: got.extend(node.poll(wait="30s")))
        poller.start()
        job = self.placed(server)
        poller.join(20 * SLOW)
        self.assertFalse(poller.is_alive())
        self.assertEqual([message["job_id"] for message in got], [job["job_id"]])

    def test_no_job_answers_empty_after_wait(self):
        server = self.start()
        Node(server, "n1")
        answer = server.get("/v1/node/jobs?node_id=n1&wait=300ms")
        self.assertEqual(self.ok(answer)["jobs"], [])
        self.assertGreaterEqual(answer.seconds, 0.29)

    def test_max_bounds_an_answer(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=5)
        placed = [self.placed(server)["job_id"] for _ in range(5)]
        first, second = node.poll(most=3), node.poll(most=3)
        self.assertEqual([job["job_id"] for job in first + second], placed, "oldest first")
        self.assertEqual((len(first), len(second)), (3, 2))

    @tags("threads")
    def test_two_pollers_of_one_node_share_its_jobs(self):
        server = self.start(loops=2)
        node = Node(server, "n1", max_concurrent_jobs=200)
        got = []

        def work(number):
            if number == 0:
                for _ in range(100):
                    self.placed(server)
                return
            deadline = time.monotonic() + 100 * SLOW
            while len(got) < 100 and time.monotonic() < deadline:
                got.extend(job["job_id"] for job in node.poll(wait="100ms", most=3))

        in_parallel(4, work)
        self.assertEqual((len(got), len(set(got))), (100, 100), "each job is handed out once")

    def test_a_poll_is_a_sign_of_life(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000)
        node = Node(server, "n1", max_concurrent_jobs=5)
        begun = server.node("n1")["last_heartbeat_ms"]

        def fresher():
            node.poll(wait="50ms")
            return server.node("n1")["last_heartbeat_ms"] > begun

        eventually("last_heartbeat_ms moves", fresher)

    def test_what_ran_out_in_the_inbox_is_not_handed_out(self):
        """Its reservation has run out, so its ACK would be refused with 409."""
        server = self.start(reservation_ttl_ms=300, max_retry=1)
        node = Node(server, "n1")
        job = self.placed(server)
        self.state_of(server, job, "FAILED")
        self.assertEqual(node.poll(wait="1ms"), [])

    def test_unknown_node_and_wrong_parameters(self):
        server = self.start()
        Node(server, "n1")
        self.problem(server.get("/v1/node/jobs?node_id=ghost&wait=1ms"), 404, "NOT_FOUND")
        for query in ("", "?wait=1s", "?node_id=n1&wait=never", "?node_id=n1&max=0&wait=1ms",
                      "?node_id=n1&max=many&wait=1ms"):
            self.assertEqual(server.get("/v1/node/jobs" + query).status, 400, query)

    def test_a_poller_that_left_loses_no_job(self):
        """Its answer could not be delivered, so the job stays in the box or is placed again."""
        server = self.start(reservation_ttl_ms=3000)
        node = Node(server, "n1", max_concurrent_jobs=1)
        client = server.client()
        client.connection.request("GET", "/v1/node/jobs?node_id=n1&wait=30s")
        client.close()
        job = self.placed(server)

        def finished():
            for message in node.poll(wait="100ms"):
                if node.ack(message).status == 200:  # otherwise the reservation had run out, and the job is placed again
                    self.ok(node.done(message))
            return server.job(job["job_id"])["state"] == "DONE"

        eventually("the job is done", finished)


class Push(Case):
    def test_the_endpoint_gets_the_job(self):
        server = self.start()
        listener = Listener()
        node = Node(server, "n1", endpoint=listener.url + "/work?x=1")
        job = self.placed(server)
        path, headers, message = listener.wait()[0]
        self.assertEqual(path, "/work?x=1")
        self.assertIn("application/json", headers["Content-Type"])
        for name in FIELDS:
            self.assertIn(name, message)
        self.assertEqual((message["job_id"], message["attempt_id"]), (job["job_id"], 1))
        self.ok(node.ack(message))
        self.ok(node.done(message))
        listener.close()
        self.assertEqual(len(listener.requests), 1)

    def test_any_2xx_means_received(self):
        server = self.start()
        for status in (200, 201, 202, 204):
            listener = Listener((status,))
            Node(server, "n1", endpoint=listener.url, max_concurrent_jobs=9)
            self.placed(server)
            listener.wait()
            listener.close()

    def test_another_status_goes_to_the_next_candidate(self):
        server = self.start()
        listeners = {"bad": Listener((500,)), "good": Listener()}
        for name, listener in listeners.items():
            Node(server, name, endpoint=listener.url, max_concurrent_jobs=100)
        for _ in range(10):
            job = self.placed(server)
            self.assertEqual((job["node_id"], job["attempt_id"]), ("good", 1))
        self.assertSlots(server, "bad", 0, 0)
        self.assertSlots(server, "good", 10, 0)
        self.assertGreater(len(listeners["bad"].requests), 0, "the bad endpoint was not tried")
        for listener in listeners.values():
            listener.close()

    def test_nobody_reachable_is_503_and_costs_no_slot(self):
        server = self.start()
        listener = Listener((503,))
        dead = Listener()
        dead.close()
        Node(server, "refuses", endpoint=listener.url)
        Node(server, "dead", endpoint=dead.url)
        body = self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertEqual(body["reasons"], {"SEND_FAILED": 2})
        for name in ("refuses", "dead"):
            self.assertSlots(server, name, 0, 0)
        listener.close()

    def test_an_ack_names_the_send_it_is_about(self):
        """A push that timed out may have arrived, and the next one arrives in the same attempt: only one of them may be acknowledged."""
        gate = threading.Event()
        listener = Listener(gate=gate)
        self.addCleanup(listener.close)
        server = self.start(push_timeout_ms=500, heartbeat_ms=1000, heartbeat_stale_ms=60000)
        node = Node(server, "n1", endpoint=listener.url, allowed_types=["dev"])
        self.addCleanup(gate.set)
        job = self.ok(self.task(server, queue_ms=60000), 202)
        first, second = [body for _, _, body in listener.wait(2)[:2]]
        gate.set()  # a third push would be answered
        self.assertEqual([(one["job_id"], one["attempt_id"]) for one in (first, second)], [(job["job_id"], 1)] * 2)
        self.assertNotEqual(first["send_id"], second["send_id"])
        last = eventually("the ACK of one push is accepted", lambda: next(
            (one for _, _, one in reversed(listener.requests) if node.ack(one, send_id=one["send_id"]).status == 200), None))
        for _, _, one in list(listener.requests):
            if one["send_id"] != last["send_id"]:
                self.problem(node.ack(one, send_id=one["send_id"]), 409, "STALE_ATTEMPT")
        self.assertTrue(self.ok(node.ack(last, send_id=last["send_id"]))["duplicate"])
        self.assertTrue(self.ok(node.ack(last))["duplicate"], "an ACK without send_id is accepted")
        self.ok(node.done(last))

    def test_a_silent_endpoint_is_given_up_after_push_timeout(self):
        server = self.start(push_timeout_ms=300)
        hole = socket.create_server(("127.0.0.1", 0))
        Node(server, "silent", endpoint=f"http://127.0.0.1:{hole.getsockname()[1]}/")
        answer = self.dispatch(server)
        self.problem(answer, 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        self.assertLess(answer.seconds, 20 * SLOW, "the push must be given up before the reservation runs out")
        self.assertSlots(server, "silent", 0, 0)
        hole.close()

    def test_the_endpoint_must_be_allowed(self):
        server = self.start()
        for url in ("http://example.com/", "http://169.254.169.254/latest", "ftp://127.0.0.1/",
                    "file:///etc/passwd", "http://127.0.0.1.example.com/", "http://127.0.0.1@example.com/",
                    "nonsense", "http://[::1"):
            answer = Node(server, "n1", register=False, endpoint=url).register()
            body = self.problem(answer, 400, "BAD_FIELD")
            self.assertIn("endpoint", body["detail"], url)
        self.problem(server.get("/v1/nodes/n1"), 404, "NOT_FOUND")

    def test_a_redirect_is_not_followed(self):
        """A redirect could lead to an address outside allow_urls, so it counts as a failed send."""
        server = self.start()
        listener = Listener((307,))
        Node(server, "n1", endpoint=listener.url)
        self.problem(self.dispatch(server), 503, "ALL_CANDIDATES_FULL_OR_FAILED")
        listener.close()


class WebSocketNode(Case):
    def test_its_whole_life(self):
        server = self.start()
        node = WsNode(server, "w1")
        self.assertEqual((node.welcome["protocol"], node.welcome["node_id"]), (1, "w1"))
        self.assertIsInstance(node.welcome["heartbeat_ms"], int)
        self.assertIn("incarnation", node.welcome)
        placed = self.placed(server, session="room-1")
        self.assertEqual((placed["node_id"], placed["attempt_id"]), ("w1", 1))
        job = node.expect("job")
        for name in FIELDS:
            self.assertIn(name, job)
        self.assertEqual((job["job_id"], job["session_id"]), (placed["job_id"], "room-1"))
        self.assertTrue(node.report("ack", job)["ok"])
        self.assertSlots(server, "w1", 0, 1)
        self.assertTrue(node.ask("heartbeat", health="ready", current_load={"cpu": 0.5})["ok"])
        self.assertEqual(server.node("w1")["current_load"]["cpu"], 0.5)
        reply = node.report("done", job, status="ok", result={"text": "ok"})
        self.assertEqual((reply["ok"], reply.get("duplicate")), (True, None))
        self.assertTrue(node.report("done", job, status="ok", result={"text": "ok"})["duplicate"])
        shown = server.job(job["job_id"])
        self.assertEqual((shown["state"], shown["result"]), ("DONE", {"text": "ok"}))
        self.assertSlots(server, "w1", 0, 0)
        node.close()

    def test_the_endpoint_must_be_allowed(self):
        """In any message: a frame is checked like a request."""
        server = self.start()
        node = WsNode(server, "w1")
        reply = node.ask("heartbeat", endpoint="http://example.com/")
        self.assertEqual((reply["status"], reply["error"], reply["field"]), (400, "BAD_FIELD", "endpoint"))
        self.assertIsNone(server.node("w1")["endpoint"])
        node.close()

    def test_without_id_only_errors_are_answered(self):
        server = self.start()
        node = WsNode(server, "w1")
        self.placed(server)
        job = node.expect("job")
        node.send("ack", job_id=job["job_id"], attempt_id=1)
        node.send("done", job_id=job["job_id"], attempt_id=7, status="ok")
        reply = node.expect("reply")
        self.assertEqual((reply["status"], reply["error"], reply["attempt_id"]), (409, "STALE_ATTEMPT", 1))
        self.assertEqual([message for message in node.waiting if message["msg"] == "reply"], [])
        self.assertSlots(server, "w1", 0, 1)
        node.close()

    def test_fail_and_refusal(self):
        server = self.start()
        a, b = WsNode(server, "w1"), WsNode(server, "w2")
        nodes = {"w1": a, "w2": b}
        placed = self.placed(server)
        first = nodes.pop(placed["node_id"])
        other = nodes.popitem()[1]
        job = first.expect("job")
        self.assertTrue(first.report("fail", job, reason="NODE_OVERLOADED")["ok"])
        again = other.expect("job")
        self.assertEqual((again["job_id"], again["attempt_id"]), (job["job_id"], 1))
        self.assertTrue(other.report("ack", again)["ok"])
        self.assertTrue(other.report("fail", again, reason="BROKEN")["ok"])
        last = first.expect("job")
        self.assertEqual((last["job_id"], last["attempt_id"]), (job["job_id"], 2))
        first.report("ack", last)
        self.assertTrue(first.report("done", last, status="ok")["ok"])
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")
        for node in (a, b):
            self.assertSlots(server, node.id, 0, 0)
            node.close()

    def test_cancel_message(self):
        server = self.start()
        node = WsNode(server, "w1")
        self.placed(server)
        job = node.expect("job")
        node.report("ack", job)
        self.ok(server.post(f"/v1/jobs/{job['job_id']}/cancel"))
        cancel = node.expect("cancel")
        self.assertEqual((cancel["job_id"], cancel["attempt_id"], cancel["reason"]),
                         (job["job_id"], 1, "CANCELLED"))
        self.assertSlots(server, "w1", 0, 1)
        self.assertTrue(node.report("fail", job, reason="CANCELLED")["ok"])
        self.assertSlots(server, "w1", 0, 0)
        node.close()

    def test_a_newer_connection_replaces_the_old_one(self):
        server = self.start(loops=2)
        old = WsNode(server, "w1")
        new = WsNode(server, "w1")
        self.assertGreater(new.welcome["incarnation"], old.welcome["incarnation"])
        self.assertEqual(old.closed(), 4001)
        job = self.placed(server)
        self.assertEqual(new.expect("job")["job_id"], job["job_id"])
        self.assertEqual(server.node("w1")["health"], "ready", "the close of the old connection must not evict the node")
        new.close()

    def follows(self, **settings):
        """A node can get jobs as soon as it has registered, before it is connected; they are sent once it is."""
        server = self.start(loops=2, **settings)
        Node(server, "w1")
        placed = [self.placed(server)["job_id"] for _ in range(2)]
        node = WsNode(server, "w1")
        self.assertFalse(node.waiting, "a message came before the welcome")
        for job_id in placed:
            job = node.expect("job")
            self.assertEqual(job["job_id"], job_id)
            self.assertTrue(node.report("ack", job)["ok"])
        self.assertSlots(server, "w1", 0, 2)

    def test_jobs_it_was_given_before_it_was_connected_follow_it(self):
        self.follows()

    def test_jobs_follow_it_also_where_others_must_hear_of_its_connection_first(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.follows(store=redis.url)

    def test_replaced_over_and_over(self):
        server = self.start(loops=2)
        nodes = [WsNode(server, "w1") for _ in range(10)]
        self.assertEqual({node.closed() for node in nodes[:-1]}, {4001})
        job = self.placed(server)
        self.assertEqual(nodes[-1].expect("job")["job_id"], job["job_id"])

    def test_a_job_sent_to_a_connection_that_died_goes_elsewhere(self):
        server = self.start(reservation_ttl_ms=8000)
        doomed = WsNode(server, "w1", max_concurrent_jobs=9)
        job = self.placed(server)
        spare = WsNode(server, "w2")
        doomed.socket.drop()
        again = spare.expect("job")
        self.assertEqual(again["job_id"], job["job_id"])
        self.assertTrue(spare.report("ack", again)["ok"])
        self.assertTrue(spare.report("done", again, status="ok")["ok"])
        spare.close()

    def test_a_closed_connection_is_not_chosen(self):
        """A node whose connection closed gets no jobs until it is back, but it is not lost yet."""
        server = self.start(reservation_ttl_ms=300)
        gone = WsNode(server, "w1", max_concurrent_jobs=9)
        gone.close()
        eventually("the node gets no job", lambda: self.dispatch(server).status == 503)
        self.assertSlots_soon(server, "w1")
        back = WsNode(server, "w1", max_concurrent_jobs=9)
        job = eventually("the node gets a job again", lambda: self.try_place(server))
        self.assertEqual(back.expect("job", job_id=job["job_id"])["job_id"], job["job_id"])
        back.close()

    def try_place(self, server):
        answer = self.dispatch(server)
        return answer.json if answer.status == 200 else None

    def assertSlots_soon(self, server, node_id):
        eventually(f"the slots of {node_id} are free", lambda: server.slots(node_id) == (0, 0), 20)

    def test_it_comes_back_with_its_runs(self):
        """An agent that reconnects lists its runs: known ones go on, others are dropped."""
        server = self.start()
        node = WsNode(server, "w1")
        self.placed(server)
        job = node.expect("job")
        node.report("ack", job)
        node.socket.drop()
        back = WsNode(server, "w1", hello=False)
        back.hello(running_jobs=[{"job_id": job["job_id"], "attempt_id": 1},
                                 {"job_id": "j0000000000001", "attempt_id": 1}])
        back.expect("welcome")
        drop = back.expect("drop")
        self.assertEqual((drop["job_id"], drop["attempt_id"]), ("j0000000000001", 1))
        self.assertTrue(back.report("done", job, status="ok")["ok"])
        self.assertSlots(server, "w1", 0, 0)
        back.close()

    def test_a_heartbeat_that_lists_a_foreign_run_gets_a_drop(self):
        server = self.start()
        node = WsNode(server, "w1")
        node.send("heartbeat", health="ready", running_jobs=[{"job_id": "j0000000000001", "attempt_id": 3}])
        drop = node.expect("drop")
        self.assertEqual((drop["job_id"], drop["attempt_id"]), ("j0000000000001", 3))
        node.close()

    def test_hello_that_cannot_be_taken_closes_with_1008(self):
        server = self.start()
        rows = [
            {"msg": "hello", "protocol": 99, "node_id": "w1"},
            {"msg": "hello", "protocol": 1},
            {"msg": "hello", "protocol": 1, "node_id": "../etc"},
            {"msg": "hello", "protocol": 1, "node_id": "w1", "max_concurrent_jobs": "lots"},
            {"msg": "ack", "job_id": "j0000000000001", "attempt_id": 1},
            {"no": "msg"},
        ]
        for row in rows:
            node = WsNode(server, "w1", hello=False)
            node.socket.send(json.dumps(row))
            self.assertEqual(node.closed(), 1008, row)
        self.problem(server.get("/v1/nodes/w1"), 404, "NOT_FOUND")

    def test_wrong_messages_are_answered_and_the_connection_lives(self):
        server = self.start()
        node = WsNode(server, "w1")
        rows = [
            ({"msg": "dance", "id": 1}, 400),
            ({"msg": "ack", "id": 2}, 400),
            ({"msg": "ack", "id": 3, "job_id": "j0000000000001", "attempt_id": 1}, 404),
            ({"msg": "done", "id": 4, "job_id": "nonsense", "attempt_id": 1, "status": "ok"}, 404),
        ]
        for message, status in rows:
            node.socket.send(json.dumps(message))
            reply = node.expect("reply", re=message["id"])
            self.assertEqual(reply["status"], status, message)
            self.assertIn("error", reply)
        self.assertTrue(node.ask("heartbeat", health="ready")["ok"])
        node.close()

    def test_text_that_is_no_json(self):
        """The server answers with an error or closes with 1007 or 1008; it never ignores the text."""
        server = self.start()
        node = WsNode(server, "w1")
        node.socket.send("{nope")
        try:
            self.assertEqual(node.expect("reply")["status"], 400)
        except wsclient.Closed as end:
            self.assertIn(end.code, (1007, 1008))

    def test_http_reports_work_for_a_websocket_node(self):
        server = self.start()
        node = WsNode(server, "w1")
        self.placed(server)
        job = node.expect("job")
        http = Node(server, "w1", register=False)
        self.ok(http.ack(job))
        self.ok(http.done(job))
        self.assertSlots(server, "w1", 0, 0)
        node.close()

    def test_frames_no_client_may_send(self):
        server = self.start()
        rows = [
            ("not masked", wsclient.frame(wsclient.TEXT, b"{}", masked=False), (1002,)),
            ("reserved bit", wsclient.frame(wsclient.TEXT, b"{}", rsv=4), (1002,)),
            ("unknown opcode", wsclient.frame(3, b"{}"), (1002,)),
            ("ping in pieces", wsclient.frame(wsclient.PING, b"x", fin=False), (1002,)),
            ("long ping", wsclient.frame(wsclient.PING, b"x" * 126), (1002,)),
            ("continues nothing", wsclient.frame(0, b"x"), (1002,)),
            ("invalid UTF-8", wsclient.frame(wsclient.TEXT, b"\xff\xfe"), (1007,)),
            ("binary", wsclient.frame(wsclient.BINARY, b"{}"), (1003,)),
            ("2^63 bytes", b"\x81\xff" + b"\xff" * 8 + b"mask", (1002, 1009)),
            ("too long", b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask" + b"x", (1009,)),
        ]
        for name, data, codes in rows:
            with self.subTest(name):
                node = WsNode(server, "w1")
                node.socket.send_bytes(data)
                self.assertIn(node.closed(), codes, name)
        self.ok(server.get("/healthz"))

    def test_ping_is_answered(self):
        node = WsNode(self.start(), "w1")
        node.socket.send_bytes(wsclient.frame(wsclient.PING, b"here?"))
        eventually("a pong arrives", lambda: node.socket.recv() is None)
        self.assertEqual(node.socket.pongs.popleft(), b"here?")
        node.close()

    def test_a_message_in_pieces(self):
        server = self.start()
        node = WsNode(server, "w1", hello=False)
        text = json.dumps({"msg": "hello", "protocol": 1, "node_id": "w1", **node.facts}).encode()
        third = len(text) // 3
        node.socket.send_bytes(
            wsclient.frame(wsclient.TEXT, text[:third], fin=False) + wsclient.frame(wsclient.PING, b"p")
            + wsclient.frame(0, text[third:2 * third], fin=False) + wsclient.frame(0, text[2 * third:]))
        node.expect("welcome")
        node.close()

    def test_the_route_without_an_upgrade_is_426(self):
        server = self.start()
        self.problem(server.get("/v1/node/connect"), 426, "UPGRADE_REQUIRED")

    def test_a_web_page_cannot_be_a_node(self):
        server = self.start()
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
            with self.assertRaises(wsclient.Refused) as refused:
                WsNode(server, "w1", headers=headers)
            self.assertEqual(refused.exception.status, 403, headers)

    def test_a_node_that_does_not_read_is_disconnected(self):
        """What waits for the node is bounded; its jobs go to other nodes or are returned, and other nodes are not affected."""
        server = self.start(message_queue_bytes_max=65536, reservation_ttl_ms=1000)
        deaf = WsNode(server, "deaf", allowed_types=["dev"], max_concurrent_jobs=10000)
        bulk = {"type": "dev", "payload": "x" * 60000, "max_attempts": 1}

        def disconnected():
            self.ok(server.post("/v1/dispatch/batch", {"jobs": [bulk] * 15}))
            return "event=node.disconnected node_id=deaf" in server.log

        eventually("the node is disconnected", disconnected, 30)
        self.assertIn(deaf.closed(), (1013, 1006))
        eventually("the node's slots are free", lambda: server.slots("deaf") == (0, 0), 30)

    @tags("threads")
    def test_all_come_back_at_once_after_a_restart(self):
        server = self.start(loops=2)
        for node in in_parallel(60, lambda i: WsNode(server, f"w{i}")):
            node.socket.drop()
        server.kill()
        server = self.start(loops=2)
        nodes = {node.id: node for node in in_parallel(60, lambda i: WsNode(server, f"w{i}"))}
        self.assertEqual(len(server.get("/v1/nodes?limit=100").json["nodes"]), 60)
        for _ in range(60):
            job = self.placed(server)
            nodes[job["node_id"]].expect("job", job_id=job["job_id"])
        for node in nodes.values():
            node.close()

    @tags("threads")
    def test_many_nodes_and_jobs_at_once(self):
        server = self.start(loops=2)
        nodes = [WsNode(server, f"w{i}", max_concurrent_jobs=4) for i in range(12)]
        stop = threading.Event()
        finished = []

        def serve(node):
            while not stop.is_set():
                try:
                    job = node.expect("job", 0.2 / SLOW)
                except TimeoutError:
                    continue
                if node.report("ack", job).get("ok"):
                    node.report("done", job, status="ok", result={"node": node.id})
                    finished.append(job["job_id"])

        workers = [threading.Thread(target=serve, args=(node,)) for node in nodes]
        for worker in workers:
            worker.start()
        placed = []
        with server.client() as client:
            while len(placed) < 300:
                answer = client.post("/v1/dispatch/f2f", {"session_id": "s", "src_lang": "en",
                                                          "tgt_lang": "zh"})
                if answer.status == 200:
                    placed.append(answer["job_id"])
                else:
                    self.assertEqual(answer["error"], "ALL_CANDIDATES_FULL_OR_FAILED")
        eventually("all jobs are finished", lambda: len(finished) == 300, 30)
        stop.set()
        for worker in workers:
            worker.join()
        self.assertEqual(sorted(finished), sorted(placed))
        for node in nodes:
            self.assertSlots(server, node.id, 0, 0)
            node.close()


class BackEmpty(Case):
    """A node that comes back without its runs (after a reboot) has lost them: their leases are not waited for."""

    def taken(self, server, node):
        job = self.placed(server)
        self.assertTrue(node.report("ack", node.expect("job"))["ok"])
        return job

    def test_what_it_ran_goes_elsewhere_at_once(self):
        server = self.start()
        node = WsNode(server, "n1")
        job = self.taken(server, node)
        node.close()
        epoch = server.node("n1")["epoch"]
        other = WsNode(server, "n2")
        back = WsNode(server, "n1", running_jobs=[])
        again = other.expect("job", seconds=30)  # a lease that is waited for lasts 45 s
        self.assertEqual((again["job_id"], again["attempt_id"]), (job["job_id"], 2))
        self.assertEqual(server.node("n1")["epoch"], epoch + 1)
        self.assertEqual(back.report("done", job, status="ok")["status"], 409)
        self.assertTrue(other.report("ack", again)["ok"])
        self.assertTrue(other.report("done", again, status="ok")["ok"])
        self.assertSlots(server, "n1", 0, 0)

    def test_what_it_still_has_stays(self):
        server = self.start()
        node = WsNode(server, "n1")
        job = self.taken(server, node)
        epoch = server.node("n1")["epoch"]
        for more in ({"running_jobs": [{"job_id": job["job_id"], "attempt_id": 1}]}, {}, {"running_jobs": [], "taking": 1}):
            node.close()
            node = WsNode(server, "n1", **more)
            self.assertEqual(server.node("n1")["epoch"], epoch, more)
            self.assertSlots(server, "n1", 0, 1)
        self.assertTrue(node.report("done", job, status="ok")["ok"])
