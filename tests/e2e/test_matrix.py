"""The auth matrix: every route of the server's own table x {no token, a malformed one, one without the scope, one for another node, a good
one} x {HTTP, WebSocket}; and every route x pages of another origin. New routes are tried automatically."""
import json
import re
import socket

from harness import SLOW, WsNode
from test_auth import ADMIN, GRANTS, TOKENS, AuthCase, bearer, digest

BOUND, UNBOUND = "worker-us-91e4", "worker-any-03bb"
# What a node may have to send in addition to its name; each route ignores what it does not know.
WORD = {"job_id": "j0ahxmb0zg0000", "attempt_id": 1, "status": "ok", "package_name": "p", "generation": 1, "address": "us",
        "deployments": []}
MALFORMED = {"empty": "", "no scheme": ADMIN, "another scheme": f"Basic {ADMIN}", "only the scheme": "Bearer",
             "nothing behind it": "Bearer ", "unknown": "Bearer nobody-0000", "the name": "Bearer admin",
             "the digest itself": f"Bearer {digest(ADMIN)}", "more than it": f"Bearer {ADMIN}x",
             "less than it": f"Bearer {ADMIN[:-1]}", "two of them": f"Bearer {ADMIN} {ADMIN}"}
UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
TRANSPORTS = {"HTTP": {}, "WebSocket": UPGRADE}


def routes(server):
    """[(method, path, scope)] of the server's own table, from its OpenAPI document."""
    document = server.call("GET", "/v1/openapi.json", headers=bearer(ADMIN)).json
    found = [(method.upper(), path, operation["x-scope"].upper())
             for path, operations in document["paths"].items() for method, operation in operations.items()]
    assert len(found) > 40, "the table of routes was not found"
    return found


def status_of(port, method, path, headers, body=None):
    """Reads only the status: streams do not end, and after 101 the connection no longer speaks HTTP."""
    target = path.replace("{service}", "NodeUnit").replace("{method}", "None")
    target = re.sub(r"\{\w+\}", "us", target)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {headers.get('Host', f'127.0.0.1:{port}')}",
             *(f"{name}: {value}" for name, value in headers.items() if name != "Host")]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with socket.create_connection(("127.0.0.1", port), 30 * SLOW) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + (body or "")).encode())
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


class Matrix(AuthCase):
    def setUp(self):
        super().setUp()
        self.wrong, self.cells = [], 0

    def ask(self, server, method, path, scope, headers, node="us"):
        body = "{}" if method not in ("GET", "DELETE") else None
        if scope == "NODE" and method == "GET":
            path += f"?node_id={node}&wait=0ms"
        elif scope == "NODE":
            body = json.dumps({**WORD, "node_id": node})
        return status_of(server.port, method, path, headers, body)

    def cell(self, what, status, right):
        self.cells += 1
        if not right:
            self.wrong.append(f"{what}: {status}")

    def verdict(self, at_least):
        self.assertEqual(self.wrong, [], f"{len(self.wrong)} of {self.cells} cells are wrong")
        self.assertGreater(self.cells, at_least)

    def test_no_token_and_malformed_ones(self):
        server = self.guarded()
        for method, path, scope in routes(server):
            for how, upgrade in TRANSPORTS.items():
                for what, token in {"none": None, **MALFORMED}.items():
                    status = self.ask(server, method, path, scope, {**upgrade, **({} if token is None else {"Authorization": token})})
                    right = status not in (401, 403) if scope == "NONE" else status == 401
                    self.cell(f"{method} {path} by {how}, {what}", status, right)
        self.verdict(24 * len(routes(server)) - 1)

    def test_every_scope(self):
        server = self.guarded()
        for method, path, scope in routes(server):
            self.assertIn(scope, {*GRANTS, "ADMIN"}, f"{path}: a scope nobody has a token for")
            for how, upgrade in TRANSPORTS.items():
                for token in TOKENS:
                    status = self.ask(server, method, path, scope, {**upgrade, **bearer(token)})
                    allowed = token == ADMIN or token in GRANTS.get(scope, ())
                    right = status not in (401, 403) if allowed else status == 403
                    self.cell(f"{method} {path} by {how} with {token}", status, right)
                    if how == "WebSocket" and allowed:
                        self.cell(f"{method} {path} becomes a WebSocket", status, (status == 101) == (path in ("/v1/node/connect", "/v1/submit/connect")))
        self.verdict(12 * len(routes(server)))

    def test_another_node(self):
        server = self.guarded()
        for method, path, scope in routes(server):
            if scope != "NODE":
                continue
            if path == "/v1/node/connect":
                continue  # hello names the node, see below
            for how, upgrade in TRANSPORTS.items():
                for token, node, allowed in ((BOUND, "hk", False), (BOUND, "us", True), (UNBOUND, "hk", True), (ADMIN, "hk", True)):
                    status = self.ask(server, method, path, scope, {**upgrade, **bearer(token)}, node)
                    # something that belongs to another node may look as if it did not exist
                    refused = (403, 404) if "{" in path else (403,)
                    self.cell(f"{method} {path} by {how} for {node} with {token}", status,
                              status != 403 if allowed else status in refused)
        self.verdict(50)

    def test_messages_of_another_node(self):
        """The same in messages of the WebSocket: hello, and every message that may name a node."""
        server = self.guarded()
        stranger = WsNode(server, "hk", hello=False, headers=bearer(BOUND))
        stranger.hello()
        self.assertEqual(stranger.closed(), 1008)
        other = WsNode(server, "hk", headers=bearer(UNBOUND), semantic_langs=["fr"], nmt_pairs=[["fr", "de"]])
        node = WsNode(server, "us", headers=bearer(BOUND))
        job = self.placed(server)
        self.assertEqual(job["node_id"], "us")
        for message in ("heartbeat", "ack", "done", "fail"):
            fields = {} if message == "heartbeat" else {"job_id": job["job_id"], "attempt_id": job["attempt_id"], "reason": "x"}
            reply = other.ask(message, node_id="us", **fields)
            self.cell(f"{message} of hk for us", reply, reply.get("status") in (403, 409))
            reply = node.ask(message, node_id="hk", **fields)
            self.cell(f"{message} of us as hk", reply, reply.get("status") in (400, 403, 409) or message != "heartbeat")
        self.assertTrue(server.job(job["job_id"])["node_id"] in ("us", None))
        self.verdict(7)
        node.close()
        other.close()

    def test_pages_of_another_origin(self):
        """A browser on this machine sends whatever a page tells it to, with and without tokens."""
        guarded, free = self.guarded(), self.start("free")
        for server, more in ((guarded, bearer(ADMIN)), (free, {})):
            own = f"127.0.0.1:{server.port}"
            pages = {"another site": {"Origin": "https://evil.example"}, "a file": {"Origin": "null"},
                     "another port": {"Origin": "http://127.0.0.1:1"}, "a name that leads here": {"Host": "evil.example"},
                     "cross-site": {"Sec-Fetch-Site": "cross-site"}, "same-site": {"Sec-Fetch-Site": "same-site"},
                     "its own page, of another": {"Origin": f"http://{own}", "Sec-Fetch-Site": "cross-site"}}
            for method, path, scope in routes(server):
                for how, upgrade in TRANSPORTS.items():
                    for what, headers in pages.items():
                        status = self.ask(server, method, path, scope, {**upgrade, **more, **headers})
                        self.cell(f"{method} {path} by {how} for {what}", status, status == 403)
                    status = self.ask(server, method, path, scope, {**upgrade, **more, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"})
                    self.cell(f"{method} {path} by {how} for our own page", status, status not in (401, 403))
        self.verdict(28 * len(routes(server)))
