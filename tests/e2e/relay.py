"""Connections between processes that can be cut as if a cable was pulled: nothing passes, and neither end is notified. Relay works inside
this process: after heal() the old connections are closed and new ones pass. Cable is a network namespace with its own link (needs root):
after heal() packets of the old connections pass again."""
import itertools
import os
import shutil
import socket
import struct
import subprocess
import threading
import time

from harness import live


class Relay:
    prefix = ()  # put before the command of an agent behind this link

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
                pair = Pair(self.listener.accept()[0])
            except OSError:
                return
            with self.lock:
                self.pairs.append(pair)
            threading.Thread(target=self._join, args=(pair,), daemon=True).start()

    def passes(self, pair, data):
        """Whether this data is passed on. After the first False the connection is dead, and neither end is notified."""
        return self.open.is_set()

    def _join(self, pair):
        if not self.passes(pair, b""):
            return
        try:
            pair.far = socket.create_connection(("127.0.0.1", self.to), timeout=5)
        except OSError:
            pair.close()
            return
        pair.far.settimeout(None)
        threading.Thread(target=self._pump, args=(pair, pair.far, pair.near), daemon=True).start()
        self._pump(pair, pair.near, pair.far)

    def _pump(self, pair, a, b):
        try:
            while True:
                data = a.recv(65536)
                if not self.passes(pair, data):
                    return  # data that arrived during the cut is lost, and so is this connection
                if not data:
                    break
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        self.open.clear()

    def heal(self):
        self.forget(lambda pair: True)
        self.open.set()

    def forget(self, which):
        """Closes the connections for which which(pair) is true."""
        with self.lock:
            gone = [pair for pair in self.pairs if which(pair)]
            self.pairs = [pair for pair in self.pairs if pair not in gone]
        for pair in gone:
            pair.close()

    def close(self):
        self.cut()
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # an accept() under way would keep the socket open
        except OSError:
            pass
        self.listener.close()
        self.heal()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"


class Pair:
    """The two ends of a connection through a relay."""

    def __init__(self, near):
        self.near, self.far = near, None
        self.lost = False
        self.subscribed = False
        self.fault = None
        self.dialler = None

    def close(self):
        self.close_ends(self.near, self.far)

    @staticmethod
    def close_ends(*ends):
        for end in ends:
            if not end:
                continue
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


class EarRelay(Relay):
    """Sits between an instance and Redis. cut() stops only the connections that have subscribed. heal() does not bring back what was lost:
    it closes Redis' ends, and the instance has to notice by itself."""

    def passes(self, pair, data):
        pair.subscribed |= b"SUBSCRIBE" in data
        pair.lost |= pair.subscribed and not self.open.is_set()
        return not pair.lost

    def heal(self):
        self.open.set()
        with self.lock:
            Pair.close_ends(*(pair.far for pair in self.pairs if pair.lost))


class CallRelay(Relay):
    """Sits between an instance and Redis. The next call of the function library that contains all given texts meets a fault, either before
    it reaches Redis or after it ran there."""

    LATE_S = 0.4  # longer than the server waits
    FAULTS = [(fault, when) for fault in ("cut", "lose", "delay") for when in ("before", "after")]

    def __init__(self, port):
        self.armed = None  # (fault, when, texts)
        self.met = threading.Event()
        super().__init__(port)

    def arm(self, fault, when, *texts):
        """The fault: cut closes the connection; lose passes nothing on it any more; delay passes the data too late."""
        self.met.clear()
        self.armed = (fault, when, [text.encode() for text in texts])

    def passes(self, pair, data):
        if not super().passes(pair, data):
            return False
        if pair.fault:  # this data is the answer
            fault, pair.fault = pair.fault, None
            return self._strike(pair, fault)
        if not self.armed or b"FCALL" not in data or not all(text in data for text in self.armed[2]):
            return True
        fault, when, _ = self.armed
        self.armed = None
        if when == "before":
            return self._strike(pair, fault)
        pair.fault = fault
        return True

    def _strike(self, pair, fault):
        self.met.set()
        if fault == "cut":
            pair.close()
        if fault == "delay":
            time.sleep(self.LATE_S)
        return fault == "delay"


class SlowRelay(Relay):
    """Delays everything by `pause_s` in each direction."""

    pause_s = 0

    def passes(self, pair, data):
        if self.pause_s:
            time.sleep(self.pause_s)
        return super().passes(pair, data)


class Split:
    """A network that can be split between the processes of a Redis Cluster and their clients, without any privilege. Every Redis has one
    relay before its port and one before its bus port, and announces the relays' ports. A relay asks the kernel which process opened a
    connection."""

    def __init__(self, cluster):
        self.apart = set()  # pids on the smaller side
        self.servers = cluster.nodes
        self.relays = []
        for server in self.servers:
            ports = []
            for port in (server.port, server.port + 10000):
                relay = SplitRelay(self, server.process.pid, port)
                self.relays.append(relay)
                ports.append(relay.port)
            server.announced = ports[0]
            server.say("CONFIG", "SET", "cluster-announce-port", ports[0])
            server.say("CONFIG", "SET", "cluster-announce-bus-port", ports[1])

    @property
    def url(self):
        return "redis-cluster://" + ",".join(f"127.0.0.1:{server.announced}" for server in self.servers)

    def known(self):
        """Whether every Redis knows the announced ports of all others."""
        return all(f":{other.announced}@" in server.say("CLUSTER", "NODES") for server in self.servers
                   for other in self.servers)

    def dialler(self, near):
        """The pid of the process at the other end of a connection; None if it is not one of ours."""
        try:
            inode = socket_inode(near.getpeername(), near.getsockname())
        except OSError:
            return None
        return next((process.pid for process in list(live) if has_socket(process.pid, inode)), None)

    def cut(self, *processes):
        self.apart = {process.pid for process in processes}

    def heal(self):
        self.apart = set()
        for relay in self.relays:
            relay.forget(lambda pair: pair.lost)

    def close(self):
        for relay in self.relays:
            relay.close()


def socket_inode(local, remote):
    """The inode of a TCP socket, by its two ends. It asks the kernel through sock_diag, because reading /proc/net/tcp takes
    milliseconds."""
    ends = struct.pack("!HH4s12x4s12x", local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0]))
    request = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xffffffff) + ends + \
        struct.pack("=IQ", 0, 2**64 - 1)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:  # NETLINK_SOCK_DIAG
        asked.send(struct.pack("=IHHII", 16 + len(request), 20, 1, 1, 0) + request)  # SOCK_DIAG_BY_FAMILY
        answer = asked.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] != 20:
        raise OSError("there is no such connection any more")
    return struct.unpack_from("=I", answer, 16 + 4 + 48 + 16)[0]


def has_socket(pid, inode):
    """Whether the process has this socket. Other descriptors may close meanwhile."""
    fds = f"/proc/{pid}/fd"
    try:
        names = os.listdir(fds)
    except OSError:
        return False
    for fd in names:
        try:
            if os.readlink(f"{fds}/{fd}") == f"socket:[{inode}]":
                return True
        except OSError:
            pass
    return False


class SplitRelay(Relay):
    def __init__(self, split, pid, port):
        self.split, self.pid = split, pid
        super().__init__(port)

    def passes(self, pair, data):
        if not pair.dialler:  # not found yet: the process' list of descriptors may have changed while it was read
            pair.dialler = self.split.dialler(pair.near)
        pair.lost |= (pair.dialler in self.split.apart) != (self.pid in self.split.apart)
        return not pair.lost


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
        """The addresses of the cables, which a server must accept as host names."""
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
