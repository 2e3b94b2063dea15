"""A small WebSocket client (RFC 6455) on a blocking socket, enough to play a node and to send frames that no honest client would send."""
import base64
import collections
import hashlib
import os
import socket
import struct
import time

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(Exception):
    """The handshake was answered with a status other than 101."""

    def __init__(self, status, head):
        super().__init__(f"handshake answered {status}")
        self.status = status
        self.head = head


class Closed(Exception):
    """The server closed the connection. `code` is that of its close frame, 1006 if there was none."""

    def __init__(self, code, reason=""):
        super().__init__(f"closed with {code} {reason}")
        self.code = code
        self.reason = reason


def frame(opcode, payload=b"", fin=True, masked=True, rsv=0):
    """The bytes of one frame."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    size = len(payload)
    bit = 0x80 if masked else 0
    if size < 126:
        head = struct.pack("!BB", first, bit | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    pattern = mask * (size // 4 + 1)
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(pattern[:size], "big")
    return head + mask + mixed.to_bytes(size, "big")


class WebSocket:
    def __init__(self, port, path, headers=None, seconds=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bytes = b""
        self.pieces = []
        self.pongs = collections.deque()
        key = base64.b64encode(os.urandom(16))
        fields = {"Host": f"127.0.0.1:{port}", "Upgrade": "websocket", "Connection": "Upgrade",
                  "Sec-WebSocket-Key": key.decode(), "Sec-WebSocket-Version": "13"}
        fields.update(headers or {})
        lines = [f"GET {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._handshake(key, time.monotonic() + seconds)

    def _handshake(self, key, deadline):
        while b"\r\n\r\n" not in self.bytes:
            self._more(deadline)
        head, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        status = int(head.split()[1])
        if status != 101:
            self.socket.close()
            raise Refused(status, head.decode(errors="replace"))
        proof = base64.b64encode(hashlib.sha1(key + GUID).digest())
        if b"sec-websocket-accept: " + proof.lower() not in head.lower():
            raise Refused(status, "wrong Sec-WebSocket-Accept")

    def _more(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("nothing came in time")
        self.socket.settimeout(left)
        try:
            piece = self.socket.recv(65536)
        except ConnectionError:
            piece = b""
        if not piece:
            raise Closed(1006)
        self.bytes += piece

    def _take(self, count, deadline):
        while len(self.bytes) < count:
            self._more(deadline)
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken

    def _frame(self, deadline):
        # A timeout must not lose half a frame: bytes are taken only once the whole frame has arrived.
        while True:
            size = self._whole()
            if size:
                break
            self._more(deadline)
        first, second = self._take(2, deadline)
        length = second & 0x7F
        if length == 126:
            length = struct.unpack("!H", self._take(2, deadline))[0]
        elif length == 127:
            length = struct.unpack("!Q", self._take(8, deadline))[0]
        return first & 0x80, first & 0x0F, self._take(length, deadline)

    def _whole(self):
        """The size of the first frame in bytes, 0 while it is not complete."""
        have = self.bytes
        if len(have) < 2:
            return 0
        assert not have[1] & 0x80, "a server must not mask"
        length, head = have[1] & 0x7F, 2
        if length == 126:
            length, head = (struct.unpack("!H", have[2:4])[0], 4) if len(have) >= 4 else (1 << 60, 0)
        elif length == 127:
            length, head = (struct.unpack("!Q", have[2:10])[0], 10) if len(have) >= 10 else (1 << 60, 0)
        return head + length if len(have) >= head + length else 0

    def recv(self, seconds=10):
        """The next text message, or None for a pong. Answers pings; a close frame raises Closed."""
        deadline = time.monotonic() + seconds
        while True:
            fin, opcode, payload = self._frame(deadline)
            if opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
                self._quietly(frame(CLOSE, payload[:2]))
                self.socket.close()
                raise Closed(code, payload[2:].decode(errors="replace"))
            if opcode == PING:
                self._quietly(frame(PONG, payload))
            elif opcode == PONG:
                self.pongs.append(payload)
                return None
            else:
                self.pieces.append(payload)
                if fin:
                    whole, self.pieces = b"".join(self.pieces), []
                    return whole.decode()

    def _quietly(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def send(self, text):
        self.socket.sendall(frame(TEXT, text.encode()))

    def send_bytes(self, data):
        """Sends raw bytes, for frames that are wrong on purpose."""
        self.socket.sendall(data)

    def close(self, code=1000):
        self._quietly(frame(CLOSE, struct.pack("!H", code)))
        self.socket.close()

    def drop(self):
        """Closes without a close frame, like a machine that lost power."""
        self.socket.close()
