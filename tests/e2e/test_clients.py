"""The worker and the clients of docs/clients.md and examples/ work as described, also when the server is killed."""
import hashlib
import os
import shutil
import signal
import subprocess
import unittest

from fences import fences
from harness import ROOT, SLOW, Case, clean_env, eventually

CLIENTS = {"python": ["python3", str(ROOT / "examples" / "client.py")],
           "node": ["node", str(ROOT / "examples" / "client.mjs")]}


def worker_text():
    return next(fence.text for fence in fences(ROOT / "docs" / "clients.md") if fence.about == "worker.sh")


class Clients(Case):
    def setUp(self):
        super().setUp()
        for tool in ("curl", "jq", "node"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"there is no {tool}")
        self.port = None

    def server(self, **settings):
        listen = f"127.0.0.1:{self.port or 0}"
        server = self.start(listen=listen, heartbeat_ms=1000, **settings)
        self.port = server.port
        self.env = dict(clean_env(), BERTH_ADDR=f"http://127.0.0.1:{server.port}")
        return server

    def spawn(self, command):
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], env=self.env, text=True, cwd=self.dir,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)

        def end():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def worker(self, server):
        path = self.dir / "worker.sh"
        path.write_text(worker_text())
        process = self.spawn(["sh", str(path), "shell-1"])
        eventually("the worker has registered", lambda: server.get("/v1/nodes/shell-1").status == 200)
        return process

    def run_client(self, kind, *args, seconds=60):
        return subprocess.run([*CLIENTS[kind], *args], env=self.env, capture_output=True, text=True,
                              timeout=seconds * SLOW)

    def test_the_worker_is_as_short_as_promised(self):
        self.assertLessEqual(len(worker_text().splitlines()), 50)

    def test_jobs_of_both_clients_run_on_the_worker(self):
        server = self.server()
        worker = self.worker(server)
        for kind in CLIENTS:
            done = self.run_client(kind, "run", "sh", f"echo 'hello from {kind}'; echo \"$((6 * 7))\" >&2")
            self.assertEqual((done.returncode, done.stdout), (0, f"hello from {kind}\n42\n"), done.stderr)
            failed = self.run_client(kind, "run", "sh", "echo bad; exit 3")
            self.assertEqual((failed.returncode, failed.stdout), (1, "bad\n"), failed.stderr)
            self.assertIn("EXIT_3", failed.stderr)
            server.post("/v1/breakers/reset", {"node_id": "shell-1", "type": "sh"})
        job = server.post("/v1/dispatch/task", {"type": "sh", "command": ["printf", "%s", "two words"]}).json
        self.assertEqual(server.job(job["job_id"], wait="20s")["result"]["tail"], "two words")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(20 * SLOW), 0, "SIGTERM ends it")
        self.assertEqual(server.get("/v1/nodes/shell-1").status, 404)

    def test_with_tokens(self):
        config = self.dir / "tokens.yaml"
        config.write_text("tokens:\n" + "".join(
            f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, {more}}}\n" for name, more in (
                ("worker", "scopes: [node], node_id: shell-1"), ("client", "scopes: [submit, read]"))))
        server = self.server(config=str(config))
        self.env["BERTH_TOKEN"] = "worker"
        path = self.dir / "worker.sh"
        path.write_text(worker_text())
        self.spawn(["sh", str(path), "shell-1"])
        stranger = self.spawn(["sh", str(path), "shell-2"])
        self.assertEqual(stranger.wait(20 * SLOW), 1)
        self.assertIn("The token is for the node shell-1.", stranger.stdout.read())
        self.env["BERTH_TOKEN"] = "client"
        for kind in CLIENTS:
            done = self.run_client(kind, "run", "sh", "echo in")
            self.assertEqual((done.returncode, done.stdout), (0, "in\n"), done.stderr)
        self.assertEqual(server.stop(), 0)

    def test_a_refusal_explains_itself(self):
        server = self.server()
        self.ok(server.post("/v1/node/register", {"node_id": "other", "allowed_types": ["dev"]}))
        for kind in CLIENTS:
            refused = self.run_client(kind, "run", "sh", "true")
            self.assertEqual(refused.returncode, 5, refused.stderr)
            self.assertIn("NO_CAPABLE_NODE", refused.stderr)
            self.assertIn("other: NOT_CAPABLE: It does not offer type(sh).", refused.stdout)

    def test_the_server_dies_and_nothing_is_lost(self):
        """The server is killed while jobs run: the worker reports their end to the next server, and the clients get it."""
        server = self.server()
        self.worker(server)
        gate = self.dir / "gate"
        clients = [self.spawn([*CLIENTS[kind], "run", "sh",
                               f"while [ ! -e '{gate}' ]; do sleep 0.05; done; echo through"]) for kind in CLIENTS]
        eventually("one job runs", lambda: any(job["state"] == "ACKED" for job in server.all_jobs()))
        eventually("both jobs were submitted", lambda: len(server.all_jobs()) == 2)
        server.kill()
        gate.touch()
        server = self.server()
        for client in clients:
            out, _ = client.communicate(timeout=90 * SLOW)
            self.assertEqual((client.returncode, out), (0, "through\n"))
        self.assertEqual(sorted(job["state"] for job in server.all_jobs()), ["DONE", "DONE"])

    def test_events_are_followed_over_a_restart(self):
        server = self.server()
        followers = {kind: self.spawn([*CLIENTS[kind], "events", "100"]) for kind in CLIENTS}
        for follower in followers.values():
            self.assertEqual(follower.stdout.readline(), "hello {}\n")
        self.ok(server.post("/v1/node/register", {"node_id": "n1"}))
        for follower in followers.values():  # the change comes as two events, in either order
            self.assertTrue(any('"node_id":"n1"' in line for line in follower.stdout))
        server.kill()
        server = self.server()
        for follower in followers.values():
            # Events of n1 from the first server may be read before the gap.
            line = next(line for line in follower.stdout if '"n1"' not in line)
            self.assertIn("gap", line)
        self.ok(server.post("/v1/node/register", {"node_id": "n2"}))
        for follower in followers.values():
            # Events about n1 registering again, and about n2 becoming a member, may come before.
            self.assertTrue(any('"node_id":"n2"' in line for line in follower.stdout))
            follower.terminate()
