"""A wire between an agent and a server that can be cut: nothing passes and nobody is told, as when a
cable is pulled. Healed, the connections of before are gone and new ones pass."""
import socket
import threading


class Relay:
    def __init__(self, port):
        self.to = port
        self.open = threading.Event()
        self.open.set()
        self.pairs = []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
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
