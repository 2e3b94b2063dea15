"""callback_url: the result is POSTed at least once, and survives a restart of the server."""
from harness import Case, Listener, Node, eventually


class Callback(Case):
    def work(self, server, node, url, **fields):
        job = self.ok(self.task(server, callback_url=url, **fields))
        self.ok(node.ack(job))
        return job

    def setup_node(self, server):
        return Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=9)

    def test_gets_the_result(self):
        server = self.start()
        node = self.setup_node(server)
        listener = Listener()
        job = self.work(server, node, listener.url + "/hook?k=v")
        self.ok(node.done(job, result={"answer": 42}))
        path, headers, body = listener.wait()[0]
        self.assertEqual(path, "/hook?k=v")
        self.assertIn("application/json", headers["Content-Type"])
        self.assertEqual((body["job_id"], body["state"], body["result"]), (job["job_id"], "DONE", {"answer": 42}))
        # An answer of 200 ends it: the next request is that of the second job, not a repetition.
        second = self.work(server, node, listener.url + "/second")
        self.ok(node.done(second))
        self.assertEqual(listener.wait(2)[1][0], "/second")
        listener.close()

    def test_of_a_failed_job(self):
        server = self.start()
        node = self.setup_node(server)
        listener = Listener()
        job = self.work(server, node, listener.url, max_attempts=1)
        self.ok(node.fail(job, reason="BROKEN"))
        body = listener.wait()[0][2]
        self.assertEqual((body["state"], body["reason"]), ("FAILED", "BROKEN"))
        listener.close()

    def test_of_a_job_that_waited_too_long(self):
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=1)
        self.ok(self.task(server))
        listener = Listener()
        self.ok(self.task(server, queue_ms=200, callback_url=listener.url), 202)
        body = listener.wait()[0][2]
        self.assertEqual((body["state"], body["reason"]), ("FAILED", "QUEUE_TIMEOUT"))
        listener.close()

    def test_is_retried_until_it_is_taken(self):
        server = self.start(callback_retry_ms=100)
        node = self.setup_node(server)
        listener = Listener((500, 503, 302, 200))
        job = self.work(server, node, listener.url)
        self.ok(node.done(job, result={"n": 1}))
        requests = listener.wait(4)
        self.assertEqual({body["job_id"] for _, _, body in requests}, {job["job_id"]})
        listener.close()

    def test_is_retried_when_nobody_listens(self):
        server = self.start(callback_retry_ms=100)
        node = self.setup_node(server)
        closed = Listener()
        closed.close()
        job = self.work(server, node, closed.url)
        self.ok(node.done(job))
        eventually("the callback was tried twice", lambda: sum(
            value for name, value in server.metrics().items() if name.startswith("berth_callback_total")) >= 2)
        listener = Listener(port=closed.port)
        self.assertEqual(listener.wait()[0][2]["job_id"], job["job_id"])
        listener.close()

    def test_survives_kill_9(self):
        server = self.start(callback_retry_ms=100)
        node = self.setup_node(server)
        closed = Listener()
        closed.close()
        job = self.work(server, node, closed.url)
        self.ok(node.done(job, result={"kept": True}))
        server.kill()
        listener = Listener(port=closed.port)
        self.start(callback_retry_ms=100)
        body = listener.wait()[0][2]
        self.assertEqual((body["job_id"], body["state"], body["result"]), (job["job_id"], "DONE", {"kept": True}))
        listener.close()

    def test_the_url_must_be_allowed(self):
        server = self.start()
        self.setup_node(server)
        for url in ("http://example.com/x", "https://10.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1/",
                    "http://127.0.0.1:80@example.com/", "http://localhost.example.com/", "x"):
            body = self.problem(self.task(server, callback_url=url), 400, "BAD_FIELD")
            self.assertIn("callback_url", body["detail"], url)
        self.assertSlots(server, "n1", 0, 0)

    def test_allow_urls_is_a_setting(self):
        server = self.start(allow_urls="http://127.0.0.1:9/only/")
        self.setup_node(server)
        self.problem(self.task(server, callback_url="http://127.0.0.1:8/only/x"), 400, "BAD_FIELD")
        self.problem(self.task(server, callback_url="http://127.0.0.1:9/other"), 400, "BAD_FIELD")
        self.ok(self.task(server, callback_url="http://127.0.0.1:9/only/x"))

    def test_the_url_is_shown_to_nobody(self):
        """The URL may contain a secret of the caller."""
        server = self.start()
        node = self.setup_node(server)
        listener = Listener()
        server.secrets.append("hush-hush")
        job = self.work(server, node, listener.url + "/?key=hush-hush")
        self.ok(node.done(job))
        listener.wait()
        self.assertNotIn(b"hush-hush", server.get(f"/v1/jobs/{job['job_id']}").body)
        self.assertNotIn(b"hush-hush", server.get("/metrics").body)
        listener.close()
