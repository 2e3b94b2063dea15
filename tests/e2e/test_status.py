"""What an operator sees and does: status, top, job logs, breakers, tokens, `berth run`, and the example configurations, with real servers,
agents and terminals."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

from harness import BINARY, ROOT, SLOW, Node, WsNode, berth, clean_env, eventually
from test_agent import GATE, AgentCase, Machine
from test_cluster import Host

EXAMPLES = ROOT / "examples"


def machine(case, name, cores, total_gb, free_gb, load):
    return Host(case.dir / f"machine-{name}", cores, total_gb, free_gb, load)


class Terminal:
    """A command in its own terminal."""

    def __init__(self, port, *args, columns=160, rows=45, env=None):
        variables = dict(clean_env(), TERM="xterm", LC_ALL="C.UTF-8", BERTH_ADDR=f"http://127.0.0.1:{port}")
        variables.pop("NO_COLOR", None)
        variables.update(env or {})
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.execve(BINARY, [BINARY, *args], variables)
            finally:
                os._exit(99)
        self.text = ""

    def until(self, pattern, seconds=15):
        """Reads until the pattern is in the output; returns all output."""
        deadline = time.monotonic() + seconds * SLOW
        while not re.search(pattern, self.text):
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.text!r}"
            try:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the command ended without {pattern!r}: {self.text!r}")
        return self.text

    def type(self, keys):
        os.write(self.fd, keys)

    def modes(self):
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)

    def exit(self):
        """Reads to the end; returns the exit code."""
        try:
            while True:
                piece = os.read(self.fd, 65536)
                if not piece:
                    break
                self.text += piece.decode(errors="replace")
        except OSError:
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OperatorCase(AgentCase):
    def cli(self, *args, code=0, env=None, server=None):
        server = server or self.servers[0]
        done = berth(*args, env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}", **(env or {})})
        self.assertEqual(done.returncode, code, f"berth {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
        return done

    def out(self, *args, **how):
        return self.cli(*args, **how).stdout


class Status(OperatorCase):
    def seeds_cluster(self):
        """The example configurations as they are, on machines of the sizes they assume."""
        server = self.start(config=EXAMPLES / "us-hk.yaml")
        us = machine(self, "us", 8, 15, 11, "6.20")
        hk = machine(self, "hk", 4, 7.6, 6.2, "0.50")
        for name, host in (("us", us), ("hk", hk)):
            self.agent(server, name, machine=host, slots_fixed="off",
                       config=(EXAMPLES / f"agent-{name}.yaml").read_text())
        eventually("both agents have reported measurements", lambda: all(
            found["cpu_load"] is not None for found in server.get("/v1/cluster/status").json["servers"].values()))
        eventually("us is at level warning", lambda: server.node("us")["level"] == "warning")
        return server

    def test_the_seeds_panel(self):
        self.seeds_cluster()
        text = self.out("status")
        for line in ("Cluster status: partial, 1 of 7 slots free",
                     "US VPS full; talk, research, automation can go to HK VPS",
                     "US VPS (main)  us", "CPU   [################....] 6.20/8 cores",
                     "MEM   [#####...............] 27% of 15 GB used", "HK VPS (auxiliary)  hk",
                     "CPU   [###.................] 0.50/4 cores", "MEM   [####................] 18% of 7.6 GB used",
                     "Slots 0/2 room for 1", "Level warning by cpu (only high priority starts)", "Level normal",
                     "Available for: talk, research, automation", "Available for: nothing now"):
            self.assertIn(line + "\n", text)
        self.assertIn("Slots 0/5 no room: less 1 (safety_buffer)\n", text)
        self.assertTrue(text.isascii(), "without a terminal the output must be plain ASCII")
        wide = self.out("status", "--wide")
        self.assertIn("     1  cpu: (8.00 cores - load 6.20) / 1.20\n", wide)
        self.assertIn("     6  memory: (11.00 GB free - 2.00) / 1.50\n", wide)
        self.assertIn("     0  safety_buffer: less 1 (safety_buffer)\n", wide)
        body = json.loads(self.out("status", "-o", "json"))
        self.assertEqual((body["cluster_status"], body["total_slots"], body["available_slots"]), ("partial", 7, 1))
        top = self.out("top", "--once").splitlines()
        self.assertLess([line[:2] for line in top].index("us"), [line[:2] for line in top].index("hk"), top)

    def test_tasks_in_a_terminal(self):
        server = self.start()
        self.agent(server, "us")
        self.agent(server, "hk")
        gate = self.dir / "gate"
        job = self.run_task(server, GATE.format(gate=gate), title="Bug Fix #123 修")
        self.running(server, job)
        for columns, same_line in ((80, False), (160, True)):
            terminal = Terminal(server.port, "status", columns=columns)
            self.assertEqual(terminal.exit(), 0, terminal.text)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text)
            self.assertIn("- dev: Bug Fix #123 修", plain)
            self.assertIn("░", plain)
            self.assertIn("\x1b[32mhealthy\x1b[0m", terminal.text)
            heads = [line for line in plain.splitlines() if re.search(r"│ hk .*us|│ hk ", line)]
            self.assertEqual("us" in heads[0], same_line, plain)
        self.cli("node", "drain", "hk")
        self.assertIn("\nhk  draining\n", self.out("status"))
        plain = Terminal(server.port, "status", env={"NO_COLOR": "1"})
        plain.exit()
        self.assertNotIn("\x1b", plain.text)
        self.assertIn("CPU   [", plain.text)
        gate.touch()
        self.ended(server, job)

    def test_what_nobody_sent_is_a_dash(self):
        server = self.start(heartbeat_ms=1000, heartbeat_stale_ms=3000)
        Node(server, "plain")
        text = self.out("status")
        self.assertIn("CPU   -  no agent on this server: nothing is measured there\n", text)
        self.assertIn("Level -  no agent: taken as normal\n", text)
        self.assertNotIn("%", text)
        eventually("the node is offline", lambda: "offline: no heartbeat" in self.out("status"))
        self.assertRegex(self.out("status"), r"offline: no heartbeat[a-z: ]*, last seen \d+s ago\n")


class Live(OperatorCase):
    def setUp(self):
        super().setUp()
        self.server = self.start()
        self.agent(self.server, "us")

    def begin(self, *args):
        terminal = Terminal(self.server.port, *args)
        before = terminal.modes()
        return terminal, before

    def test_watch_draws_in_place(self):
        terminal, before = self.begin("status", "--watch=100ms")
        terminal.until(r"(?s)\x1b\[H.*\x1b\[H.*\x1b\[H.*\x1b\[J")
        self.assertNotEqual(terminal.modes(), before, "keys must be read without waiting for a line")
        self.run_task(self.server, "sleep 30", title="seen live")
        terminal.until("seen live")
        terminal.type(b"q")
        self.assertEqual(terminal.exit(), 0)
        body = terminal.text.split("\x1b[?1049h", 1)[1].split("\x1b[J", 1)[1]
        self.assertNotIn("\x1b[2J", body, "the screen must not be cleared between pictures")
        self.assertTrue(terminal.text.rstrip().endswith("\x1b[?1049l"), "the screen must be restored")

    def test_top_ends_with_ctrl_c_and_gives_the_terminal_back(self):
        for keys in (b"\x03", b"q"):
            terminal, before = self.begin("top")
            terminal.until(r"us .*normal")
            self.run_task(self.server, "true")
            terminal.until(r"PLACED\x1b\[0m \d")
            terminal.type(b"n")
            terminal.until(r"\x1b\[1m n name")
            terminal.type(keys)
            modes = eventually("the terminal's modes are restored", lambda: terminal.modes() == before)
            self.assertTrue(modes)
            self.assertEqual(terminal.exit(), 0)

    def test_a_server_that_goes_away_is_told_and_waited_for(self):
        terminal, _ = self.begin("status", "--watch=100ms")
        terminal.until("Cluster status")
        self.server.kill()
        terminal.until("cannot reach the server")
        terminal.type(b"q")
        self.assertEqual(terminal.exit(), 0)

    def test_killed_it_still_gives_the_terminal_back(self):
        terminal, before = self.begin("top")
        terminal.until("normal")
        os.kill(terminal.pid, signal.SIGTERM)
        eventually("the terminal's modes are restored", lambda: terminal.modes() == before)
        self.assertEqual(terminal.exit(), -signal.SIGTERM)


class Logs(OperatorCase):
    def test_following_until_the_end(self):
        server = self.start()
        self.agent(server)
        gate = self.dir / "gate"
        job = self.run_task(server, f"echo first; {GATE.format(gate=gate)}; echo last; exit 3", max_attempts=1)
        process = subprocess.Popen([BINARY, "job", "logs", "-f", job["job_id"]], stdout=subprocess.PIPE, text=True,
                                   env=dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{server.port}"))
        self.assertEqual(process.stdout.readline(), "first\n")
        self.assertIsNone(process.poll())
        gate.touch()
        self.assertEqual(process.stdout.read(), "last\n")
        self.assertEqual(process.wait(20 * SLOW), 0, "the job failed, but reading its log succeeds")
        self.assertEqual(self.out("job", "logs", job["job_id"]), "first\nlast\n")
        self.assertEqual(self.out("job", "logs", job["job_id"], "--offset", 6), "last\n")
        self.cli("job", "logs", "j0000000000001", code=3)

    def test_following_a_job_that_waits_for_a_slot(self):
        server = self.start()
        self.agent(server, slots_fixed=1)
        gate = self.dir / "gate"
        before = self.run_task(server, GATE.format(gate=gate))
        self.running(server, before)
        job = self.ok(self.task(server, type="dev", command="echo hello", queue_ms=60000), 202)
        process = subprocess.Popen([BINARY, "job", "logs", "-f", job["job_id"]], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{server.port}"))
        self.assertIn("waiting for output", process.stderr.readline())
        gate.touch()
        out, _ = process.communicate(timeout=60 * SLOW)
        self.assertEqual((process.returncode, out), (0, "hello\n"))

    def test_bytes_that_are_no_text_and_many_of_them(self):
        server = self.start()
        self.agent(server)
        job = self.run_task(server, r"i=0; while [ $i -lt 3000 ]; do printf 'Zeile %05d \377\303\244 \346\227\245\346\234\254\n' $i; i=$((i+1)); done")
        self.ended(server, job)
        wanted = "".join(f"Zeile {i:05d} \ufffdä 日本\n" for i in range(3000))
        self.assertEqual(self.out("job", "logs", job["job_id"]), wanted)

    def test_a_gap_and_a_node_that_is_gone(self):
        server = self.start()
        agent = self.agent(server, log_bytes_max=4096)
        job = self.run_task(server, "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done")
        self.ended(server, job)
        done = self.cli("job", "logs", job["job_id"])
        self.assertRegex(done.stderr, r"^berth: \d+ bytes before byte \d+ are gone\n$")
        self.assertTrue(done.stdout.endswith("line 2998\nline 2999\n"))
        self.assertEqual(agent.stop(), 0)
        eventually("the server shows the last lines", lambda: "the last lines" in berth(
            "job", "logs", job["job_id"], env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}).stderr)
        self.assertTrue(self.out("job", "logs", job["job_id"]).rstrip().endswith("line 2999"), "the lines of the result are shown")


class Operating(OperatorCase):
    def test_breakers(self):
        server = self.start()
        self.agent(server, config="executors: {dev: {command: 'false'}}")
        self.assertEqual(self.out("breaker", "ls").count("\n"), 1, "only the header is printed")
        for _ in range(3):
            self.ended(server, self.ok(self.task(server, max_attempts=1)))
        self.assertRegex(self.out("breaker", "ls"), r"\na1 +dev +OPEN +3 ")
        body = json.loads(self.out("breaker", "ls", "-o", "json"))
        self.assertEqual([(row["node_id"], row["type"], row["state"]) for row in body["breakers"]], [("a1", "dev", "OPEN")])
        self.assertEqual(self.out("breaker", "reset", "a1", "dev"), "a1 takes dev again\n")
        self.assertEqual(self.out("breaker", "ls").count("\n"), 1)
        self.assertEqual(self.ended(server, self.run_task(server, "exit 0"))["state"], "DONE")
        self.cli("breaker", "reset", "a1", "dev", code=3)

    def test_tokens(self):
        made = dict(line.split(": ") for line in berth("token", "hash", "--new").stdout.splitlines())
        other = berth("token", "hash", "--new").stdout
        self.assertRegex(made["token"], r"^[0-9a-f]{64}$")
        self.assertNotIn(made["token"], other)
        done = subprocess.run([BINARY, "token", "hash"], input=made["token"] + "\n", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.strip(), done.stderr), (0, made["sha256"], ""))
        config = self.dir / "server.yaml"
        more = dict(line.split(": ") for line in other.splitlines())
        config.write_text(f"tokens:\n  - {{name: eye, sha256: {made['sha256']}, scopes: [read]}}\n"
                          f"  - {{name: ops, sha256: {more['sha256']}, scopes: [operate, submit, read]}}\n")
        server = self.start(config=config)
        server.secrets += [made["token"], more["token"]]
        self.cli("status", code=1)
        self.cli("status", code=1, env={"BERTH_TOKEN": "wrong"})
        self.assertIn("Cluster status", self.out("status", env={"BERTH_TOKEN": made["token"]}))
        path = self.dir / "token"
        path.write_text(made["token"] + "\n")
        self.assertIn("Cluster status", self.out("status", "--token-file", path))
        self.cli("breaker", "reset", "a", "b", "--token-file", path, code=1)
        self.cli("breaker", "reset", "a", "b", env={"BERTH_TOKEN": more["token"]}, code=3)
        self.assertEqual(server.stop(), 0)
        server.check_log()

    def test_what_is_no_token(self):
        for text in ("", "\n", "two words\n", "ümlaut\n", "x" * 5000):
            done = subprocess.run([BINARY, "token", "hash"], input=text, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""), text[:20])
        done = subprocess.run([BINARY, "token", "hash"], input="short", capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertIn("can be guessed", done.stderr)

    def test_a_call_to_a_node(self):
        server = self.start()
        self.agent(server, host_root="/")
        usage = eventually("the agent has measured its usage", lambda: json.loads(berth(
            "node", "rpc", "a1", "NodeUnit/InspectResourceUsage",
            env={"BERTH_ADDR": f"http://127.0.0.1:{server.port}"}).stdout or "null"))
        self.assertGreater(usage["memory_mb"], 1)
        self.cli("node", "rpc", "ghost", "A/B", code=3)
        self.cli("node", "rpc", "a1", "No/Such", code=2)

    def test_examples_are_good(self):
        shown = berth("config", "show", "--config", EXAMPLES / "us-hk.yaml")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn('"talk":["hk","us"]', shown.stdout)
        for name in ("us", "hk"):
            text = (EXAMPLES / f"agent-{name}.yaml").read_text()
            self.assertIn(f"node_id: {name}\n", text)


class Written(OperatorCase):
    """Text that nodes and submitters chose."""

    OBEYED = "\x1b]0;owned\x07\x9b31m\x7f\u202e"

    def harmless(self, server, *args, says, code=0):
        shown = Terminal(server.port, *args, env={"NO_COLOR": "1"})
        self.assertEqual(shown.exit(), code, shown.text)
        self.assertIn(says, shown.text)
        self.assertEqual([c for c in self.OBEYED if c in shown.text and not c.isalnum() and c not in "];"], [], shown.text)

    def test_a_terminal_obeys_nobody(self):
        server = self.start()
        self.ok(server.call("PUT", "/v1/deployments/web", {"command": "x"}), 201)
        node = WsNode(server, "n1", claim={"last": "last" + self.OBEYED}, tags={"node_unit": "true", "node_unit_address": "n1"})
        self.harmless(server, "deploy", "show", "web", says="last")

        def answer():
            node.send("rpc_reply", re=node.expect("rpc", 60)["id"], error="NOT_FOUND", detail="none" + self.OBEYED)

        answering = threading.Thread(target=answer)
        answering.start()
        self.harmless(server, "node", "rpc", "n1", "A/B", says="none", code=2)
        answering.join()
        node.close()

    def test_logs(self):
        """On a terminal control characters of logs are replaced; in a file they are kept."""
        server = self.start()
        self.agent(server)
        job = self.run_task(server, r"printf 'one\ttwo\n\033]0;owned\007three\r\n'")
        self.ended(server, job)
        self.harmless(server, "job", "logs", job["job_id"], says="?]0;owned?three")
        self.assertIn("\033]0;owned\007three", self.out("job", "logs", job["job_id"]))

    def test_a_line_is_a_job(self):
        """-o jsonl prints one line per job although the payload has line breaks; and a payload of the greatest depth is shown again."""
        server = self.start()
        Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=9)
        forged = '{"type": "dev", "payload": {"a":\n1,\r\n"b": "\x7f\x9b"}}'
        ids = [self.ok(server.post("/v1/dispatch/task", forged.encode()))["job_id"]]
        deep = "[" * 31 + "]" * 31
        ids.append(self.ok(server.post("/v1/dispatch/task", '{"type": "dev", "payload": %s}' % deep))["job_id"])
        self.problem(server.post("/v1/dispatch/task", '{"type": "dev", "payload": [%s]}' % deep), 400, "BAD_JSON")
        rows = self.out("job", "ls", "-o", "jsonl")
        self.assertEqual([json.loads(line)["job_id"] for line in rows.split("\n") if line], ids[::-1])
        self.assertEqual(json.loads(rows.split("\n")[1])["payload"], {"a": 1, "b": "\x7f\x9b"})
        self.assertTrue(rows.isascii(), rows)
        self.assertIn(ids[1], self.out("job", "ls"))
        self.assertEqual(str(json.loads(self.out("job", "show", ids[1], "-o", "json"))["payload"]), deep)


class Run(OperatorCase):
    def setUp(self):
        super().setUp()
        self.machine = Machine(self.dir / "machine")
        self.config = self.dir / "agent.yaml"
        self.settings("")

    def settings(self, more):
        self.config.write_text(f"host_root: {self.dir / 'machine'}\nmonitor_interval_ms: 100\n{more}")

    def command(self, *args):
        return [BINARY, "run", "--type", "dev", "--config", str(self.config), *args]

    def run_here(self, *args, **how):
        return subprocess.run(self.command(*args), capture_output=True, text=True, timeout=30 * SLOW,
                              env=dict(clean_env(), XDG_RUNTIME_DIR=str(self.dir)), **how)

    def test_it_is_the_command(self):
        done = self.run_here("--", "sh", "-c", 'cat; echo "$0 $1" >&2; exit 7', "a b", "*", input="given")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "given", "a b *\n"))

    def test_no_room(self):
        self.machine.memory(5)
        done = self.run_here("--no-wait", "--", "true")
        self.assertEqual(done.returncode, 5)
        self.assertEqual(done.stderr, "berth: this machine is at level critical by memory (5% free)\n")
        begun = time.monotonic()
        done = self.run_here("--wait", "500ms", "--", "true")
        self.assertEqual(done.returncode, 6)
        self.assertGreaterEqual(time.monotonic() - begun, 0.5)

    def test_it_waits_for_another(self):
        self.settings("slots_fixed: 1\n")
        gate = self.dir / "gate"
        environment = dict(clean_env(), XDG_RUNTIME_DIR=str(self.dir))
        first = subprocess.Popen(self.command("--", "sh", "-c", f"echo up; {GATE.format(gate=gate)}"),
                                 stdout=subprocess.PIPE, text=True, env=environment)
        self.assertEqual(first.stdout.readline(), "up\n")
        second = subprocess.Popen(self.command("--", "echo", "mine"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=environment)
        self.assertIn("waiting: no slot is free: in_use is 0, 1 of 1 in use", second.stderr.readline())
        gate.touch()
        self.assertEqual(first.wait(20 * SLOW), 0)
        out, _ = second.communicate(timeout=60 * SLOW)
        self.assertEqual((second.returncode, out), (0, "mine\n"))
