"""The life of the processes: notifications to the service manager, reloading, log files, stopping."""
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
import time

from harness import Case, Node, berth, calm_machine, eventually, freeze, tags
from test_agent import AgentCase, Agent


class Manager:
    """A service manager's notification socket; `lines` has what it received."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.lines = []

    def heard(self):
        while True:
            try:
                self.lines += self.socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.lines

    def wait(self, line, count=1):
        eventually(f"{line} is received {count} times", lambda: self.heard().count(line) >= count)

    def close(self):
        self.socket.close()


class Notify(AgentCase):
    def manager(self, name="notify"):
        manager = Manager(self.dir / name)
        self.addCleanup(manager.close)
        return manager

    def test_a_port_is_never_shared(self):
        first = self.start()
        for addr in (f"127.0.0.1:{first.port}", f"localhost:{first.port}"):
            second = berth("server", "--listen", addr, "--data-dir", self.dir / "other", seconds=20)
            self.assertNotEqual(second.returncode, 0)
            self.assertIn(f"Cannot listen on {addr}: address already in use.", second.stderr)
        self.assertEqual(first.get("/readyz").status, 200)

    def test_a_server_tells_its_life(self):
        manager = self.manager()
        server = self.start(env={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"})
        manager.wait("READY=1")
        manager.wait("WATCHDOG=1", 3)
        server.process.send_signal(signal.SIGHUP)
        manager.wait("RELOADING=1")
        manager.wait("READY=1", 2)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(manager.heard()[-1], "STOPPING=1")

    def test_a_stuck_server_is_silent(self):
        manager = self.manager()
        server = self.start(env={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"})
        manager.wait("WATCHDOG=1", 2)
        freeze(server.process)
        manager.heard()
        before = len(manager.lines)
        other = self.manager("other")  # meanwhile a server that is not stuck has notified several times
        self.start("second", env={"NOTIFY_SOCKET": str(other.path), "WATCHDOG_USEC": "200000"})
        other.wait("WATCHDOG=1", 5)
        self.assertLessEqual(len(manager.heard()) - before, 1)
        server.process.send_signal(signal.SIGCONT)
        manager.wait("WATCHDOG=1", before + 2)

    def test_nobody_else_speaks_for_it(self):
        """Neither a watchdog meant for another process nor a job uses the socket: jobs do not get it in their environment."""
        manager = self.manager()
        env = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1",
               "BERTH_HOST_ROOT": str(calm_machine(self.dir))}
        server = self.start(env=env, verb="dev")
        manager.wait("READY=1")
        eventually("the agent of berth dev has registered", lambda: server.get("/v1/nodes").json["nodes"], 20)
        done = server.post("/v1/dispatch/task", {"type": "dev", "command": ["env"], "queue_ms": 20000})
        self.assertIn(done.status, (200, 202))
        job = server.job(done["job_id"], wait="20s")
        self.assertEqual(job["state"], "DONE", job)
        self.assertNotIn("NOTIFY_SOCKET", json.dumps(job))
        self.assertEqual(manager.heard().count("READY=1"), 1, "the agent of `dev` is not the service")
        self.assertNotIn("WATCHDOG=1", manager.heard())

    def test_an_agent_tells_its_life(self):
        server = self.start()
        manager = self.manager()
        os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"] = str(manager.path), "300000"
        try:
            agent = Agent(self, server, "us").connected()
        finally:
            del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        manager.wait("READY=1")
        manager.wait("WATCHDOG=1", 2)
        self.assertEqual(agent.stop(), 0)
        self.assertEqual(manager.heard()[-1], "STOPPING=1")


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


class Reload(Case):
    def configured(self, text, **settings):
        self.file = self.dir / "berth.yaml"
        self.file.write_text(text)
        return self.start(args=["--config", str(self.file)], **settings)

    def hup(self, server, event, count=1):
        server.process.send_signal(signal.SIGHUP)
        eventually(f"event={event}", lambda: server.log.count(f"event={event} ") >= count)
        return [line for line in server.log.splitlines() if f"event={event} " in line][-1]

    def test_tokens_change_without_a_restart(self):
        tokens = "tokens:\n  - {{name: ops, sha256: {}, scopes: [admin]}}\n"
        server = self.configured(tokens.format(digest("first-token")))
        ask = lambda token: server.get("/v1/nodes", Authorization=f"Bearer {token}").status
        self.assertEqual((ask("first-token"), ask("second-token")), (200, 401))
        self.file.write_text(tokens.format(digest("second-token")))
        self.assertIn("changed=tokens", self.hup(server, "server.reloaded"))
        self.assertEqual((ask("first-token"), ask("second-token")), (401, 200))
        server.secrets += [digest("first-token"), digest("second-token")]
        self.servers.remove(server)  # its /metrics needs a token
        self.assertEqual(server.stop(), 0)
        server.check_log()

    def test_what_cannot_be_is_refused_and_the_old_stays(self):
        server = self.configured("log_level: info\nbatch_max: 7\n")
        batch = lambda: server.post("/v1/dispatch/batch", {"jobs": [{"type": "dev"}] * 8}).status
        self.assertEqual(batch(), 400)
        rows = [("batch_max: none\n", "batch_max"), ("batch_maxx: 9\n", "batch_max"), ("batch_max: [\n", "Line 2"),
                ("batch_max: 9\ntls_cert: /nowhere.pem\ntls_key: /nowhere.key\n", "tls_cert"),
                ("batch_max: 9\nheartbeat_ms: 10000\nheartbeat_stale_ms: 11000\n", "heartbeat_stale_ms")]
        for count, (text, expected) in enumerate(rows, 1):
            self.file.write_text(text)
            self.assertIn(expected, self.hup(server, "server.reload_refused", count), text)
            self.assertEqual(batch(), 400, text)
        self.file.unlink()
        self.hup(server, "server.reload_refused", len(rows) + 1)
        self.file.write_text("batch_max: 9\n")
        self.hup(server, "server.reloaded")
        self.assertNotEqual(batch(), 400)
        self.assertEqual(server.metrics()['berth_reloads_total{result="refused"}'], len(rows) + 1)

    def test_what_needs_a_start_is_named_and_waits(self):
        server = self.configured("reservation_ttl_ms: 5000\nlog_level: info\n")
        self.file.write_text("reservation_ttl_ms: 9000\nlog_level: debug\n")
        line = self.hup(server, "server.restart_needed")
        self.assertIn("settings=reservation_ttl_ms", line)
        self.assertNotIn("log_level", line)
        Node(server, "n1")
        eventually("the log has debug lines", lambda: "level=debug" in server.log)

    @tags("threads")
    def test_reloads_under_load_lose_nothing(self):
        server = self.configured("batch_max: 10\n")
        Node(server, "n1", max_concurrent_jobs=500)
        with server.client() as client:
            for i in range(100):
                if i % 10 == 0:
                    self.file.write_text(f"batch_max: {11 + i}\n")
                    server.process.send_signal(signal.SIGHUP)
                answer = client.post("/v1/dispatch/f2f", {"session_id": "s", "src_lang": "en", "tgt_lang": "zh",
                                                          "audio_ref": "x"})
                self.assertEqual(answer.status, 200, str(answer))
        eventually("server.reloaded is logged", lambda: "event=server.reloaded" in server.log)
        self.assertNotIn("reload_refused", server.log)

    def certificate(self, name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", "2", "-subj", f"/CN={name}", "-keyout", self.dir / "key.pem.new",
                        "-out", self.dir / "cert.pem.new"], check=True, capture_output=True)
        os.rename(self.dir / "key.pem.new", self.dir / "key.pem")
        os.rename(self.dir / "cert.pem.new", self.dir / "cert.pem")

    def test_certificates_change_for_new_connections(self):
        self.certificate("first")
        server = self.configured(f"tls_cert: {self.dir}/cert.pem\ntls_key: {self.dir}/key.pem\n", loops=2)

        def connect():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            plain = socket.create_connection(("127.0.0.1", server.port), 10)
            return context.wrap_socket(plain)

        def name(stream):
            return b"second" if b"second" in stream.getpeercert(True) else b"first"

        old = connect()
        self.assertEqual(name(old), b"first")
        (self.dir / "cert.pem").write_text("not a certificate")
        self.hup(server, "server.reload_refused")
        with connect() as stream:
            self.assertEqual(name(stream), b"first")
        self.certificate("second")
        self.hup(server, "server.reloaded")
        for _ in range(4):  # the listener of each loop
            with connect() as stream:
                self.assertEqual(name(stream), b"second")
        old.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self.assertIn(b"200", old.recv(4096), "an existing connection goes on")
        old.close()
        self.servers.remove(server)
        self.assertEqual(server.stop(), 0)


class LogFile(AgentCase):
    def test_a_rotated_log_is_let_go(self):
        path = self.dir / "berth.log"
        server = self.start(log_format="json", args=["--log-file", str(path)], log_path=path)
        lines = lambda: [json.loads(line) for line in path.read_text().splitlines()]
        self.assertIn("server.listening", [line["event"] for line in lines()])
        path.rename(self.dir / "berth.log.1")
        server.process.send_signal(signal.SIGHUP)
        eventually("the new log file exists", path.exists)
        eventually("the new log file has a line", lambda: path.read_text().endswith("\n"))
        self.assertEqual(lines()[0]["event"], "server.reloaded")
        path.rename(self.dir / "berth.log.2")
        path.mkdir()
        server.process.send_signal(signal.SIGHUP)
        eventually("the error is logged to the old file, which is still open",
                   lambda: "server.reload_refused" in (self.dir / "berth.log.2").read_text())

    def test_an_agents_log(self):
        path = self.dir / "agent.log"
        server = self.start()
        agent = Agent(self, server, "us", log_file=path)
        eventually("the agent is connected", lambda: path.exists() and "agent.connected" in path.read_text())
        path.rename(self.dir / "agent.log.1")
        agent.process.send_signal(signal.SIGHUP)
        eventually("the new log file exists", path.exists)
        self.assertEqual(agent.stop(), 0)
        self.assertIn("agent.stopped", path.read_text())


class Requests(Case):
    """Requests in the log: JSON lines that can be found by request id."""

    def lines(self, server, event="request"):
        lines = [json.loads(line) for line in server.log.splitlines()]
        return [line for line in lines if line["event"] == event]

    def test_a_request_that_names_itself(self):
        server = self.start(log_format="json")
        Node(server, "n1")
        answer = self.dispatch(server, headers={"X-Request-Id": "order-17"})
        self.assertEqual((answer.status, answer.headers["X-Request-Id"]), (200, "order-17"))
        (line,) = self.lines(server)
        self.assertEqual((line["request_id"], line["job_id"], line["node_id"], line["attempt_id"], line["status"]),
                         ("order-17", answer["job_id"], "n1", 1, 200))
        answer = self.dispatch(server, src="xx", headers={"X-Request-Id": "order-18"})
        self.assertEqual(self.lines(server)[-1]["reason"], "NO_CAPABLE_NODE")
        self.assertIsNone(self.dispatch(server).headers["X-Request-Id"], "the request had no X-Request-Id")
        self.assertEqual(len(self.lines(server)), 2)

    def test_an_id_that_is_none_is_replaced(self):
        server = self.start(log_format="json")
        for given in ("two words", "x" * 500, 'quote"d'):
            answer = server.get("/healthz", **{"X-Request-Id": given})
            self.assertRegex(answer.headers["X-Request-Id"], r"^r[0-9a-f]{16}$")
            self.assertEqual(self.lines(server)[-1]["request_id"], answer.headers["X-Request-Id"])

    def test_a_storm_of_refusals_is_not_one_of_lines(self):
        server = self.start(log_format="json", loops=1)
        Node(server, "n1", max_concurrent_jobs=0)
        begun = time.monotonic()
        with server.client() as client:
            for _ in range(400):
                answer = client.post("/v1/dispatch/f2f", {"session_id": "s", "src_lang": "en", "tgt_lang": "zh",
                                                          "audio_ref": "x"})
                self.assertEqual(answer.status, 503)
        seconds = int(time.monotonic() - begun) + 2
        lines = self.lines(server)
        self.assertLessEqual(len(lines), 50 * seconds)
        self.assertEqual(lines[0]["reason"], "ALL_CANDIDATES_FULL_OR_FAILED")

        def counted():
            self.dispatch(server)
            return sum(line["left_out"] for line in self.lines(server)) > 0

        eventually("the lines that were left out are counted", counted)
