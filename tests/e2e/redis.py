"""Real Redis servers for the end-to-end cases, on free loopback ports, in their own directories."""
import collections
import os
import pathlib
import signal
import socket
import subprocess

from harness import clean_env, eventually, freeze, live


taken = collections.deque(maxlen=128)  # sockets that keep ports for the cases of this process


def take(port):
    """Binds the port without listening. A server that asks for this very port gets it (SO_REUSEADDR); a program that asks for any free port
    does not. None if the port is in use."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return None
    return held


def free_port():
    """A port that nothing listens on, and whose cluster bus port (+ 10000) is free too. Both stay reserved, because cases run at the same
    time, and a server is started or restarted on the port later."""
    while True:
        first = take(0)
        port = first.getsockname()[1]
        second = take(port + 10000) if port < 50000 else None
        if second:
            taken.extend((first, second))
            return port
        first.close()


class Redis:
    """One redis-server process."""

    def __init__(self, directory, *options, env=None):
        self.env = env or {}
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.port = free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", str(self.port), "--bind", "127.0.0.1",
             "--save", "", "--dir", str(self.dir), *self.options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(clean_env(), **self.env))
        live.add(self.process)
        eventually("Redis answers PING", lambda: self.says("PING") == "PONG")

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def say(self, *words):
        """Runs one command; its answer as text, also if it is an error."""
        done = subprocess.run(["redis-cli", "-p", str(self.port), *map(str, words)],
                              capture_output=True, text=True, errors="backslashreplace", timeout=20)
        return done.stdout.strip()

    def says(self, *words):
        try:
            return self.say(*words)
        except subprocess.TimeoutExpired:
            return ""

    def pause(self):
        freeze(self.process)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        live.discard(self.process)


class Cluster:
    """Three masters with a replica each."""

    def __init__(self, directory, timeout_ms=2000):
        directory = pathlib.Path(directory)
        self.nodes = [Redis(directory / f"r{i}", "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                            "--cluster-node-timeout", str(timeout_ms), "--repl-diskless-sync-delay", "0") for i in range(6)]
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"],
                       check=True, capture_output=True, timeout=60, env=dict(os.environ))
        eventually("every Redis reports cluster_state:ok", lambda: all(
            "cluster_state:ok" in node.say("CLUSTER", "INFO") for node in self.nodes), 30)

    @property
    def url(self):
        return "redis-cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def kill(self):
        for node in self.nodes:
            node.kill()
