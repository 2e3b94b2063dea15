"""W3C trace context: the trace of a request goes with its job, over every way to a node, and into the logs."""
import test_agent
from harness import Case, Listener, Node, WsNode, eventually

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{ID}-00f067aa0ba902b7-01"
HEADERS = {"traceparent": PARENT}


class Trace(Case):
    def test_by_websocket_push_and_poll(self):
        server = self.start(log_level="debug")
        node = Node(server, "polls", max_concurrent_jobs=9)
        self.placed(server, headers=HEADERS)
        self.assertEqual(node.poll()[0]["traceparent"], PARENT)
        self.ok(server.post("/v1/nodes/polls/cordon"))
        socket = WsNode(server, "socket")
        job = self.placed(server, headers=HEADERS)
        self.assertEqual(socket.expect("job")["traceparent"], PARENT)
        self.ok(server.post("/v1/nodes/socket/cordon"))
        listener = Listener()
        self.addCleanup(listener.close)
        Node(server, "push", endpoint=listener.url)
        self.placed(server, headers=HEADERS)
        _, headers, body = listener.wait()[0]
        self.assertEqual((body["traceparent"], headers["traceparent"]), (PARENT, PARENT))
        self.assertEqual(server.job(job["job_id"])["traceparent"], PARENT)
        lines = [line for line in server.log.splitlines() if "event=job.dispatched" in line]
        self.assertEqual([f"trace_id={ID}" in line for line in lines], [True] * 3, lines)

    def test_it_survives_a_retry(self):
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server, headers=HEADERS))
        self.ok(node.ack(node.poll()[0]))
        self.ok(node.fail(job))
        self.assertEqual(node.poll()[0]["traceparent"], PARENT)
        self.assertRegex(server.log, f"event=job.retry .*trace_id={ID}")

    def test_what_is_none_is_left_out(self):
        server = self.start()
        node = Node(server, "n1", max_concurrent_jobs=9, allowed_types=["dev"])
        for header in ("", "nonsense", PARENT.upper(), "00-" + "0" * 32 + PARENT[35:], PARENT + "-x"):
            self.placed(server, headers={"traceparent": header})
            self.assertNotIn("traceparent", node.poll()[0], header)
        # In a body it is a field like any other.
        self.ok(self.task(server, traceparent=PARENT, headers={"traceparent": PARENT.replace("4bf", "5bf")}))
        self.assertEqual(node.poll()[0]["traceparent"], PARENT)
        self.assertEqual(self.problem(self.task(server, traceparent="x"), 400, "BAD_FIELD")["field"], "traceparent")

    def test_an_agents_job_finds_it_in_its_environment(self):
        server = self.start()
        agent = test_agent.Agent(self, server, "a1")
        self.addCleanup(agent.process.kill)
        eventually("the agent has registered", lambda: server.get("/v1/nodes/a1").status == 200)
        job = self.ok(self.task(server, headers=HEADERS, command='printf %s "$TRACEPARENT"'))
        done = self.state_of(server, job, "DONE")
        self.assertEqual(done["result"]["tail"], PARENT)
        eventually("the agent has logged the end of the job",
                   lambda: f"trace_id={ID}" in agent.log_path.read_text().split("event=job.done")[-1])
