"""A wire between an agent and a server that can be cut: nothing passes and nobody is told, as when a
cable is pulled. Relay is a process' own: healed, the connections of before are gone and new ones
pass. Cable is a network namespace with a link of its own (root): healed, packets flow again."""
import itertools
import os
import shutil
import socket
import subprocess
import threading


class Relay:
    prefix = ()  # what an agent at its end is started with

    def __init__(self, port, host="127.0.0.1"):
        self.to = port
        self.host = host
        self.open = threading.Event()
        self.open.set()
        self.pairs = []
        self.lock = threading.Lock()
        self.listener = socket.create_server((host, 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.pairs.append([near])
            if self.open.is_set():
                self._join(self.pairs[-1])

    def _join(self, pair):
        try:
            far = socket.create_connection(("127.0.0.1", self.to), timeout=5)
        except OSError:
            pair[0].close()
            return
        far.settimeout(None)
        pair.append(far)
        for a, b in ((pair[0], far), (far, pair[0])):
            threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, a, b):
        try:
            while True:
                data = a.recv(65536)
                if not self.open.is_set():
                    return  # what came through the cut is lost, and so is this connection
                if not data:
                    break
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        self.open.clear()

    def heal(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for end in (end for pair in pairs for end in pair):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self.open.set()

    def close(self):
        self.cut()
        self.listener.close()
        self.heal()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True).returncode == 0


class Cable:
    numbers = itertools.count(1)

    @staticmethod
    def possible():
        name = f"bw{os.getpid()}"
        if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter") or not ip("netns", "add", name, check=False):
            return False
        return ip("netns", "del", name, check=False)

    @staticmethod
    def hosts():
        """Names a server must answer to."""
        return ",".join(f"10.213.{number}.1" for number in range(1, 9))

    def __init__(self, port):
        number = next(Cable.numbers)
        self.name = f"bw{os.getpid()}-{number}"
        self.near = self.name + "n"
        net = f"10.213.{number}"
        ip("netns", "add", self.name)
        ip("link", "add", self.near, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{net}.1/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        for words in (("addr", "add", f"{net}.2/30", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
            ip("-n", self.name, *words)
        self.prefix = ("nsenter", f"--net=/run/netns/{self.name}")
        self.relay = Relay(port, f"{net}.1")
        self.url = self.relay.url

    def cut(self):
        ip("link", "set", self.near, "down")

    def heal(self):
        ip("link", "set", self.near, "up")

    def close(self):
        self.relay.close()
        ip("link", "del", self.near, check=False)
        ip("netns", "del", self.name, check=False)
