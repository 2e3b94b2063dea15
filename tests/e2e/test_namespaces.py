"""Namespaces: every route of the server's own table x {own, another namespace}, on both stores and both databases. What belongs to
another namespace is not listed, not counted and not announced, and is answered exactly like something that does not exist.

A new route needs a row in ROUTES."""
import json
import re
import unittest
import urllib.parse

from harness import SLOW, Events, Node, WsNode, berth, eventually
from postgres import Postgres, programs
from redis import Redis
from test_auth import ADMIN, AuthCase, bearer, digest
from test_matrix import routes
from wsclient import WebSocket

TEAMS = ("default", "maps", "ml")
OPS = "ops-77aa"  # an operator of `default`, the namespace of everybody who changes what all namespaces share
NOBODY = "j0ahxmb0zg0000"  # the id of a job that does not exist
# The nodes send nothing while all routes are tried, and on a busy machine each call takes time, so nothing may time out.
PATIENT = {"heartbeat_stale_ms": "off", "view_drop_ms": 600000, "deploy_lease_ms": 600000, "running_lease_ms": 600000,
           "reservation_ttl_ms": 600000}
# A busy Redis may take its time.
PATIENT_REDIS = {"store_call_ms": 30000, "store_timeout_ms": 30000}
PAIRS = {"default": ("en", "zh"), "maps": ("zh", "en"), "ml": ("en", "zh")}


def token_of(team):
    return f"team-{team}-51c3"


def lead_of(team):
    """The token of this team's operator."""
    return f"lead-{team}-0c99"


def full(team, name):
    return name if team == "default" else f"{team}/{name}"


def quoted(name):
    return urllib.parse.quote(name, safe="")


class NamespaceCase(AuthCase):
    settings = {}

    def real(self, server, name, **settings):
        """A real agent that connects with a token."""
        token = self.dir / "node.token"
        token.write_text(ADMIN)
        token.chmod(0o600)
        return self.agent(server, name, token_file=token, claim_interval_ms=500, **settings)

    def setUp(self):
        super().setUp()
        rows = json.loads(self.config.read_text())["tokens"]
        rows += [{"name": f"team-{team}", "sha256": digest(token_of(team)), "scopes": ["read", "submit", "deploy"], "format": 2,
                  "namespace": team} for team in TEAMS]
        rows += [{"name": f"lead-{team}", "sha256": digest(lead_of(team)), "scopes": ["submit", "operate"], "format": 2, "namespace": team}
                 for team in TEAMS[1:]]
        rows += [{"name": "ops", "sha256": digest(OPS), "scopes": ["operate"], "format": 2}]
        self.config.write_text(json.dumps({"tokens": rows, **self.settings}))

    def by(self, team):
        return bearer(token_of(team))

    def submit(self, server, team, type="work", headers=None, **fields):
        return self.task(server, type, {**self.by(team), **(headers or {})}, title=f"title-{team}", **fields)


class World:
    """A server with some of everything in each namespace: the same names in all of them, and one name that only this one has."""

    def __init__(self, case, server):
        self.case, self.server = case, server
        self.node = Node(server, "n1", allowed_types=["work", "broken", "talk"], max_concurrent_jobs=64)
        self.full = Node(server, "n2", allowed_types=["later"], max_concurrent_jobs=0, semantic_langs=[], nmt_pairs=[])
        self.jobs, self.marks = {}, {}
        for team in TEAMS:
            self.jobs[team] = self.work(team)
            self.deployments(team)
            self.marks[team] = [*self.jobs[team].values(), f"title-{team}", f"command-{team}", f"tail-{team}", f"only-{team}",
                                *([f"{team}/"] if team != "default" else [])]

    def run(self, placed, end):
        """The node acknowledges the job and reports its end; without `end` the job keeps running."""
        job, = eventually("the node gets the job", lambda: [job for job in self.node.poll() if job["job_id"] == placed["job_id"]])
        self.case.ok(self.node.ack(job))
        if end:
            self.case.ok(end(job))
        return job

    def work(self, team):
        case, node, jobs = self.case, self.node, {}
        placed = case.ok(case.submit(self.server, team))
        message = self.run(placed, lambda job: node.done(job, result={"tail": f"tail-{team}"}))
        case.assertEqual((message["type"], message.get("namespace")), ("work", None if team == "default" else team))
        jobs["done"] = placed["job_id"]
        placed = case.ok(case.submit(self.server, team))
        self.run(placed, None)
        jobs["running"] = placed["job_id"]
        placed = case.ok(case.submit(self.server, team, "broken", max_attempts=1))
        self.run(placed, lambda job: node.fail(job, "EXIT_1"))
        jobs["failed"] = placed["job_id"]
        for name in ("waiting", "spare"):
            jobs[name] = case.ok(case.submit(self.server, team, "later", queue_ms="10m"), 202)["job_id"]
        jobs["refused"] = case.problem(case.submit(self.server, team, "nowhere"), 422, "NO_CAPABLE_NODE")["job_id"]
        for session in ("room", f"only-{team}"):
            src, tgt = PAIRS[team]
            placed = case.ok(case.dispatch(self.server, src, tgt, session, case.by(team)))
            message = self.run(placed, node.done)
            case.assertEqual((message["type"], message["session_id"]), ("f2f", session))
            jobs["talk"] = placed["job_id"]
        return jobs

    def deployments(self, team):
        for name in ("web", f"only-{team}"):
            body = {"command": f"echo command-{team}"}
            self.case.ok(self.server.call("PUT", f"/v1/deployments/{name}", body, self.case.by(team)), 201)
        self.case.ok(self.server.post("/v1/deployments/renew", {"node_id": "n1"}))
        claim = {"node_id": "n1", "id": full(team, f"only-{team}"), "observed": "", "generation": 0}
        self.case.ok(self.server.post("/v1/deployments/claim", claim))

    def others(self, team):
        return [other for other in TEAMS if other != team]


class Cells:
    """Checks of one route for one caller."""

    def __init__(self, world, route, team, who=None):
        self.world, self.server, self.route, self.team = world, world.server, route, team
        self.headers = bearer(who or token_of(team))
        self.found, self.wrong = 0, []

    def cell(self, what, right, answer):
        self.found += 1
        if not right:
            self.wrong.append(f"{self.route} as {self.team}, {what}: {str(answer)[:300]}")

    def clean(self, what, text):
        """Checks that the text has nothing of other namespaces."""
        for other in self.world.others(self.team):
            marks = [mark for mark in self.world.marks[other] if mark in text]
            self.cell(f"{what}: of {other}", not marks, marks)

    def call(self, method, path, body=None, headers=None):
        return self.server.call(method, path, body, {**self.headers, **(headers or {})})

    def fine(self, what, answer, *statuses):
        self.cell(what, answer.status in (statuses or (200,)), answer)
        self.clean(what, answer.body.decode())
        return answer

    def missing(self, method, path, name, none, body=None):
        """The answers for a name of another namespace and for one that does not exist must be the same, word for word."""
        answers = [self.call(method, path.format(quoted(one)), body) for one in (name, none)]
        texts = [(answer.status, answer.body.decode().replace(one, "NAME")) for answer, one in zip(answers, (name, none))]
        self.cell(f"{name} is none", texts[0] == texts[1] and answers[0].status >= 400, texts)


def of_jobs(method, suffix, own, body=None, statuses=(200,), kinds=("done", "running", "failed", "waiting", "spare", "refused", "talk")):
    """A route of one job."""

    def check(cells):
        jobs = cells.world.jobs
        path = "/v1/jobs/{}" + suffix
        for name in own:
            cells.fine(name, cells.call(method, path.format(jobs[cells.team][name]), body), *statuses)
        for other in cells.world.others(cells.team):
            for name in kinds:
                cells.missing(method, path, jobs[other][name], NOBODY, body)
    return check


def of_deployments(method, suffix="", body=None, statuses=(200,)):
    def check(cells):
        path = "/v1/deployments/{}" + suffix
        cells.fine("its own", cells.call(method, path.format("web"), body), *statuses)
        for other in cells.world.others(cells.team):
            for name in (f"only-{other}", f"{other}/web"):
                if "/" in name or method != "PUT":
                    cells.missing(method, path, name, name.replace("web", "nowhere").replace("only-", "none-"), body)
    return check


def of_services(cells):
    path = "/v1/services/{}"
    cells.fine("its own", cells.call("GET", path.format("web")))
    for other in cells.world.others(cells.team):
        for name in (f"only-{other}", f"{other}/web"):
            cells.missing("GET", path, name, name.replace("web", "nowhere").replace("only-", "none-"))


def listed(path, *own):
    """A list has the namespace's own entries, and none of others."""

    def check(cells):
        answer = cells.fine("the list", cells.call("GET", path))
        for mark in own:
            want = mark(cells) if callable(mark) else mark
            cells.cell(f"its own {want}", want in answer.body.decode(), answer)
    return check


def shared(path):
    return listed(path)


def forbidden(cells):
    """A route for those who change what all namespaces share. test_matrix.py checks the scopes of routes."""
    method, path = cells.route.split(" ", 1)
    body = None if method in ("GET", "DELETE") else {"node_id": "n1"}
    answer = cells.call(method, re.sub(r"\{\w+\}", "n1", path), body)
    cells.cell("it is refused", answer.status == 403, answer)


def job_mark(name):
    return lambda cells: cells.world.jobs[cells.team][name]


def title(cells):
    return f"title-{cells.team}"


def command(cells):
    return f"command-{cells.team}"


def job_list(cells):
    listed("/v1/jobs?limit=1000", job_mark("done"), job_mark("waiting"), title)(cells)
    answer = cells.fine("by type", cells.call("GET", "/v1/jobs?type=broken"))
    cells.cell("one of the type", [job["type"] for job in answer.json["jobs"]] == ["broken"], answer)
    for other in cells.world.others(cells.team):
        answer = cells.call("GET", f"/v1/jobs?type={quoted(other + '/broken')}")
        cells.cell(f"the type of {other}", answer.json == {"jobs": [], "next_cursor": None}, answer)
        answer = cells.call("GET", f"/v1/jobs?session_id=only-{other}")
        cells.cell(f"the session of {other}", answer.json["jobs"] == [], answer)
    answer = cells.call("GET", "/v1/jobs?session_id=room")
    cells.cell("the session of all three", len(answer.json["jobs"]) == 1, answer)
    pages, cursor = [], ""
    while cursor is not None:
        page = cells.fine("a page", cells.call("GET", f"/v1/jobs?limit=2{'&cursor=' + cursor if cursor else ''}")).json
        pages += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
    whole = [job["job_id"] for job in cells.call("GET", "/v1/jobs?limit=1000").json["jobs"]]
    cells.cell("page by page the same", pages == whole and len(set(pages)) == len(pages), (pages, whole))


def deployment_list(cells):
    listed("/v1/deployments", command, "only-" + cells.team)(cells)
    answer = cells.call("GET", "/v1/deployments?limit=1")
    cells.cell("the first of two", len(answer.json["deployments"]) == 1 and answer.json["next_cursor"], answer)
    rest = cells.fine("the second page", cells.call("GET", f"/v1/deployments?limit=5&cursor={quoted(answer.json['next_cursor'])}"))
    names = [row["id"] for row in answer.json["deployments"] + rest.json["deployments"]]
    cells.cell("two in all", names == sorted(["web", f"only-{cells.team}"]) and rest.json["next_cursor"] is None, names)


def submission(path, body):
    """The same name and the same key in two namespaces are two jobs; names of other namespaces cannot be used."""

    def check(cells):
        name = f"key-{path.rsplit('/', 1)[1]}"
        first = cells.fine("it", cells.call("POST", path, body, {"Idempotency-Key": name}), 200, 202)
        again = cells.fine("again", cells.call("POST", path, body, {"Idempotency-Key": name}), 200, 202)
        cells.cell("the same job", again.json["job_id"] == first.json["job_id"] and again.json.get("duplicate"), again)
        key = (path, first.json["job_id"])
        keys = cells.world.__dict__.setdefault("keys", {})
        cells.cell("nobody else's", key not in keys or keys[key] == cells.team, first)
        keys[key] = cells.team
        cells.fine("dry", cells.call("POST", f"{path}?dry_run=1", body))
        cells.fine("it is there", cells.call("GET", f"/v1/jobs/{first.json['job_id']}"))
    return check


def tasks(cells):
    submission("/v1/dispatch/task", {"type": "later", "queue_ms": "10m", "title": title(cells)})(cells)
    for name in ("maps/work", "ml/work", "default/work", "/work", "work/", "x" * 33, *(["x" * 32] if cells.team != "default" else [])):
        answer = cells.call("POST", "/v1/dispatch/task", {"type": name})
        cells.cell(f"type {name}", answer.status == 400 and answer.json["field"] == "type", answer)


def batch(cells):
    answer = cells.fine("it", cells.call("POST", "/v1/dispatch/batch", {"jobs": [{"type": "later", "queue_ms": "10m"}, {"type": "ml/later"}]}))
    cells.cell("one and none", [row["status"] for row in answer.json["results"]] == [202, 400], answer)


def submit_socket(cells):
    """The same over a WebSocket: keys, types, and which jobs a client can follow."""
    socket = WebSocket(cells.server.port, "/v1/submit/connect", cells.headers, 10 * SLOW)

    def ask(msg, **fields):
        socket.send(json.dumps({"msg": msg, "id": 1, **fields}))
        while True:
            message = json.loads(socket.recv(10 * SLOW))
            if message["msg"] != "refused":  # a refusal repeats what was asked for
                cells.clean(message["msg"], json.dumps(message))
            if message["msg"] not in ("welcome", "ended", "credit"):
                return message
    job = {"type": "later", "queue_ms": "10m"}
    first, again = (ask("submit", job=job, idempotency_key="key-socket") for _ in range(2))
    cells.cell("the same job", first["msg"] == again["msg"] == "waiting" and again["job_id"] == first["job_id"] and again["duplicate"], again)
    cells.fine("it is there", cells.call("GET", f"/v1/jobs/{first['job_id']}"))
    reply = ask("submit", job={"type": "ml/later"})
    cells.cell("another's type", reply["status"] == 400 and reply["field"] == "type", reply)
    for name in ("done", "running", "failed", "waiting"):
        reply = ask("attach", job_id=cells.world.jobs[cells.team][name])
        cells.cell(f"its own, {name}", reply["msg"] == "attached", reply)
    none = ask("attach", job_id=NOBODY)
    for other in cells.world.others(cells.team):
        for name, job in cells.world.jobs[other].items():
            reply = ask("attach", job_id=job)
            cells.cell(f"{name} of {other}", {**reply, "detail": reply["detail"].replace(job, NOBODY)} == none, reply)
    socket.close()


def sessions(cells):
    answer = cells.fine("its own", cells.call("GET", "/v1/sessions/room"))
    cells.cell("its pair", answer.json.get("lang_pair") == "->".join(PAIRS[cells.team]), answer)
    for other in cells.world.others(cells.team):
        for name in (f"only-{other}", f"{other}/room"):
            cells.missing("GET", "/v1/sessions/{}", name, name.replace("room", "none").replace("only-", "none-"))


def released(cells):
    for body in ({"address": "n1"}, {"ids": ["web", *(f"only-{team}" for team in TEAMS), *(f"{team}/web" for team in TEAMS)]}):
        answer = cells.fine("its own", cells.call("POST", "/v1/deployments/release", body))
        names = answer.json["released"] + [row["id"] for row in answer.json["held"]]
        cells.cell("what the node has of it", set(names) <= {f"only-{cells.team}"} and (names or "ids" in body), answer)


def approved(cells):
    answer = cells.call("POST", "/v1/deployments/approve", {})
    cells.cell("what all share", answer.status == (200 if cells.team == "default" else 403), answer)


def metrics(cells):
    answer = cells.fine("the text", cells.call("GET", "/metrics"))
    text = answer.body.decode()
    own = re.findall(r'berth_namespace_jobs_total\{namespace="(\w+)",state="DONE"\} (\d+)', text)
    cells.cell("its own jobs", own == [(cells.team, "3")], own)
    cells.cell("its own breaker", 'type="broken"' in text and text.count("berth_breaker_state{") == 1, answer)
    cells.cell("sums are only for the default namespace", ("\nberth_jobs_total{" in text) == (cells.team == "default"), answer)


def stats(cells):
    answer = cells.fine("the points", cells.call("GET", "/v1/stats"))
    cells.cell("of the process", cells.team == "default" or answer.json["points"] == [], answer)


def report(cells):
    answer = cells.fine("it", cells.call("GET", "/v1/report?since=1h"))
    rows = {row["type"]: row for server in answer.json["servers"] for row in server["types"]}
    cells.cell("its types", {"work", "broken", "f2f"} <= set(rows), sorted(rows))
    cells.cell("its own jobs alone", answer.json["total"]["succeeded"] == 3 and answer.json["total"]["failed"] == 1, answer.json["total"])
    cells.cell("its refusals", [row["type"] for row in answer.json["refused"]] == ["nowhere"], answer.json["refused"])
    answer = cells.fine("one type", cells.call("GET", "/v1/report?since=1h&type=broken"))
    cells.cell("one failed", answer.json["total"]["jobs"] == 1, answer.json["total"])


def usage(cells):
    for by, names in (("type", {"work", "broken", "f2f"}), ("node", {"n1"}), ("key", {None})):
        answer = cells.fine(by, cells.call("GET", f"/v1/report/usage?since=1h&by={by}"))
        found = {row["name"] for row in answer.json["rows"]}
        cells.cell(f"its own by {by}", found <= names and answer.json["total"]["runs"] <= 4, answer.json)
    answer = cells.fine("of nobody", cells.call("GET", "/v1/report/usage?since=1h&type=nowhere"))
    cells.cell("nothing", answer.json["rows"] == [], answer.json)


def usage_csv(cells):
    answer = cells.fine("the table", cells.call("GET", "/v1/report/usage.csv?since=1h&by=type"))
    lines = answer.body.decode().split("\r\n")
    cells.cell("its own types", {line.split(",")[2] for line in lines[1:] if line} <= {'"work"', '"broken"', '"f2f"'}, lines)


def status(path):
    def check(cells):
        answer = cells.fine("it", cells.call("GET", path))
        jobs = [task["job_id"] for task in answer.json["servers"]["n1"]["tasks"]]
        cells.cell("what it runs", cells.world.jobs[cells.team]["running"] in jobs, jobs)
        cells.cell("slots are shared", answer.json["servers"]["n1"]["slots_in_use"] >= 3, answer)
    return check


def breakers(cells):
    answer = cells.fine("it", cells.call("GET", "/v1/breakers?limit=1"))
    cells.cell("one", [row["type"] for row in answer.json["breakers"]] == ["broken"] and answer.json["next_cursor"] is None, answer)


def node_shown(cells):
    answer = cells.fine("it", cells.call("GET", "/v1/nodes/n1"))
    cells.cell("its own breaker", [row["type"] for row in answer.json["breakers"]] == ["broken"], answer)


def events(cells):
    """Events of other namespaces are not sent, and a client that resumes gets only its own."""
    streams = [Events(cells.server, path, headers=cells.headers) for path in ("/v1/events", "/v1/events?thin=1")]
    for stream in streams:
        eventually("the stream has begun", lambda stream=stream: stream.seen)
    ids, case = {}, cells.world.case
    for team in (*cells.world.others(cells.team), cells.team):
        ids[team] = case.ok(case.submit(cells.server, team, "later", queue_ms="10m"), 202)["job_id"]
    first = streams[0].last_id
    for stream in streams:
        eventually("the event of its own job arrives",
                   lambda stream=stream: any(data.get("job_id") == ids[cells.team] for _, data in stream.seen))
        jobs = {data["job_id"] for name, data in stream.seen if name == "job"}
        cells.cell("its own alone", ids[cells.team] in jobs and not jobs & {ids[team] for team in cells.world.others(cells.team)}, jobs)
        cells.clean("the stream", json.dumps(stream.seen))
        stream.close()
    # A stream that resumes before these events gets them, or a gap.
    number = int(first.split("-")[1])
    back = Events(cells.server, last_id=f"{first.split('-')[0]}-{number - 20}", headers=cells.headers)
    eventually("the event of its own job, or a gap, arrives",
               lambda: any(data.get("job_id") == ids[cells.team] or name == "gap" for name, data in back.seen))
    cells.clean("what was missed", json.dumps(back.seen))
    back.close()


def members(cells):
    stream = Events(cells.server, "/v1/terminals/events", headers=cells.headers)
    eventually("the list of terminals arrives", lambda: stream.seen)
    cells.clean("the members", json.dumps(stream.seen))
    stream.close()


def put(cells):
    of_deployments("PUT", body={"command": f"echo command-{cells.team}", "env": {"A": "1"}})(cells)
    # a name that only another namespace has is new here
    other = cells.world.others(cells.team)[0]
    answer = cells.call("PUT", f"/v1/deployments/shared-{other}", {"command": "true"})
    cells.cell("its own new one", answer.status == 201 and answer.json["id"] == f"shared-{other}", answer)


ROUTES = {
    "POST /v1/dispatch/f2f": submission("/v1/dispatch/f2f", {"src_lang": "en", "tgt_lang": "zh"}),
    "POST /v1/dispatch/task": tasks,
    "POST /v1/dispatch/batch": batch,
    "GET /v1/submit/connect": submit_socket,
    "GET /v1/jobs": job_list,
    "GET /v1/jobs/{id}": of_jobs("GET", "", ("done", "running", "failed", "waiting", "talk")),
    "GET /v1/jobs/{id}/explain": of_jobs("GET", "/explain", ("done", "running", "failed", "waiting", "refused", "talk")),
    "GET /v1/jobs/{id}/logs": of_jobs("GET", "/logs", ("done",)),
    "GET /api/brain/cluster/status": status("/api/brain/cluster/status"),
    "GET /v1/cluster/status": status("/v1/cluster/status"),
    "GET /v1/nodes": shared("/v1/nodes"),
    "GET /v1/nodes/{id}": node_shown,
    "GET /v1/pools": shared("/v1/pools"),
    "GET /v1/sessions/{id}": sessions,
    "GET /v1/breakers": breakers,
    "GET /v1/events": events,
    "GET /v1/terminals": shared("/v1/terminals"),
    "GET /v1/terminals/events": members,
    "GET /v1/openapi.json": shared("/v1/openapi.json"),
    "GET /v1/stats": stats,
    "GET /v1/report": report,
    "GET /v1/report/usage": usage,
    "GET /v1/report/usage.csv": usage_csv,
    "GET /metrics": metrics,
    "GET /v1/deployments": deployment_list,
    "GET /v1/deployments/{id}": of_deployments("GET"),
    "GET /v1/deployments/{id}/history": of_deployments("GET", "/history"),
    "GET /v1/deployments/{id}/explain": of_deployments("GET", "/explain"),
    "GET /v1/deployments/{id}/logs": of_deployments("GET", "/logs", statuses=(404,)),  # no node runs it
    "PATCH /v1/deployments/{id}": of_deployments("PATCH", body={"enabled": False}),
    "POST /v1/deployments/{id}/restart": of_deployments("POST", "/restart", {}),
    "POST /v1/deployments/{id}/rollback": of_deployments("POST", "/rollback", {"to_version": 1}),
    "GET /v1/services/{name}": of_services,
    "POST /v1/deployments/{id}/scale": of_deployments("POST", "/scale", {"count": 2}),
    "POST /v1/deployments/release": released,
    "POST /v1/deployments/approve": approved,
    "PUT /v1/deployments/{id}": put,
    "DELETE /v1/deployments/{id}": of_deployments("DELETE"),
    **{f"GET {path}": shared(path.replace("{name}", "app.js")) for path in ("/healthz", "/readyz", "/")},
}
# Files of the page belong to no namespace.
ROUTES["GET /page/{name}"] = lambda cells: cells.clean("a file", cells.call("GET", "/page/app.js").body.decode(errors="replace"))


def operator_jobs(suffix, own, statuses):
    return of_jobs("POST", suffix, (own,), {}, statuses)


def rpc(cells):
    for service, word in (("Job", {"job_id": NOBODY, "attempt_id": 1}), ("Deployment", {"id": "ml/web"})):
        path = f"/v1/nodes/n1/rpc/{service}/Logs"
        answer = cells.call("POST", path, word)
        cells.cell(f"{service} there is not", answer.status == 404, answer)
    for other in cells.world.others(cells.team):
        answers = [cells.call("POST", "/v1/nodes/n1/rpc/Job/Logs", {"job_id": job, "attempt_id": 1})
                   for job in (cells.world.jobs[other]["done"], NOBODY)]
        cells.cell(f"of {other}", answers[0].status == 404 and answers[0].json["detail"] == answers[1].json["detail"], answers)


def reset(cells):
    for name in ("maps/broken", "ml/broken", "default/broken", "/broken"):
        answer = cells.call("POST", "/v1/breakers/reset", {"node_id": "n1", "type": name})
        cells.cell(name, answer.status == 400 and answer.json["field"] == "type", answer)
    cells.fine("its own", cells.call("POST", "/v1/breakers/reset", {"node_id": "n1", "type": "broken"}))


def limits(path):
    """Limits belong to all namespaces together, and only `default` may see them."""
    return lambda cells: cells.fine("it", cells.call("GET", path)) if cells.team == "default" else forbidden(cells)


ROUTES["GET /v1/limits"] = limits("/v1/limits")
ROUTES["GET /v1/limits/{key}"] = limits("/v1/limits/tenant:x")


def shared_change(path, body=None):
    return lambda cells: cells.fine("it", cells.call("POST", path, body or {}))


# What an operator of `default` may do.
OPERATES = {
    "POST /v1/jobs/{id}/cancel": operator_jobs("/cancel", "spare", (200,)),
    "POST /v1/jobs/{id}/retry": operator_jobs("/retry", "failed", (200, 202, 503)),
    "POST /v1/nodes/{id}/rpc/{service}/{method}": rpc,
    "POST /v1/breakers/reset": reset,
    **{f"POST /v1/nodes/{{id}}/{what}": shared_change(f"/v1/nodes/n2/{what}") for what in ("cordon", "drain", "undrain")},
    "PUT /v1/limits/{key}": lambda cells: cells.fine("it", cells.call("PUT", "/v1/limits/tenant:x", {"concurrency": 1})),
    "POST /v1/limits/{key}/hold": shared_change("/v1/limits/tenant:x/hold", {"for_ms": 1000}),
    "POST /v1/limits/{key}/release": shared_change("/v1/limits/tenant:x/release"),
    "DELETE /v1/limits/{key}": lambda cells: cells.cell("it", cells.call("DELETE", "/v1/limits/nobody:x").status == 404, ""),
    "DELETE /v1/nodes/{id}": lambda cells: cells.cell("it", cells.call("DELETE", "/v1/nodes/nobody").status == 404, ""),
    # The whole process with its log: for those who run the server.
    "GET /v1/debug": lambda cells: cells.cell("it", cells.call("GET", "/v1/debug").status == 200, ""),
}
# What a team's own operator may do: only with its jobs and breakers. Everything else is shared.
LEADS = {route: OPERATES[route] for route in ("POST /v1/jobs/{id}/cancel", "POST /v1/jobs/{id}/retry", "POST /v1/breakers/reset")}
LAST = ("DELETE /v1/deployments/{id}", "POST /v1/breakers/reset")  # these remove what other rows look at


class Matrix(NamespaceCase):
    maxDiff = None

    def everything(self, **settings):
        server = self.guarded(breaker_threshold=1, **PATIENT, **settings)
        world = World(self, server)
        table = {f"{method} {path}": scope for method, path, scope in routes(server)}
        missing = {route for route, scope in table.items() if scope not in ("NODE", "ADMIN", "OPERATE") and route not in ROUTES}
        self.assertEqual(missing | {route for route, scope in table.items() if scope == "OPERATE" and route not in OPERATES}, set(),
                         "a route without a row here")

        def counted():
            found = self.ok(server.get("/v1/report?since=1h"))
            return (found["total"]["succeeded"], found["total"]["failed"], len(found["refused"])) == (9, 3, 3)
        eventually("the report has counted all jobs and refusals", counted)
        found, wrong = 0, []
        for route in sorted(table, key=lambda route: (route in LAST, route)):
            for team in TEAMS:
                cells = Cells(world, route, team)
                (ROUTES.get(route) or forbidden)(cells)
                found, wrong = found + cells.found, wrong + cells.wrong
            if route in OPERATES:
                cells = Cells(world, route, "default", OPS)
                OPERATES[route](cells)
                found, wrong = found + cells.found, wrong + cells.wrong
                for team in TEAMS[1:]:
                    cells = Cells(world, route, team, lead_of(team))
                    LEADS.get(route, forbidden)(cells)
                    found, wrong = found + cells.found, wrong + cells.wrong
        self.assertEqual(wrong, [], f"{len(wrong)} of {found} cells are wrong")
        self.gate("every route x {own, other} namespace: cells wrong", len(wrong), f"0 of {found}", not wrong, of="namespaces")
        self.untouched(server, world)

    def untouched(self, server, world):
        """Nothing of another namespace was changed meanwhile. An admin sees everything, by full names."""
        for team in TEAMS:
            self.assertEqual(server.job(world.jobs[team]["waiting"])["state"], "NEW")
            self.assertEqual(server.job(world.jobs[team]["waiting"])["type"], full(team, "later"))
            self.assertEqual(server.job(world.jobs[team]["spare"])["state"], "FAILED")  # cancelled once, by its own operator
            name = full(team, f"only-{team}")
            row = self.ok(server.get(f"/v1/deployments/{quoted(name)}"))
            self.assertEqual((row["id"], row["version"], row["enabled"]), (name, 1, True))
            self.problem(server.get(f"/v1/deployments/{quoted(full(team, 'web'))}"), 404, "NOT_FOUND")
            self.assertEqual(self.ok(server.get(f"/v1/sessions/{quoted(full(team, 'room'))}"))["lang_pair"], "->".join(PAIRS[team]))
            jobs = self.ok(server.get(f"/v1/jobs?type={quoted(full(team, 'broken'))}"))["jobs"]
            self.assertIn(world.jobs[team]["failed"], [job["job_id"] for job in jobs])
        listed = {job["job_id"] for job in self.ok(server.get("/v1/jobs?limit=1000"))["jobs"]}
        self.assertLessEqual({job for team in TEAMS for name, job in world.jobs[team].items() if name != "refused"}, listed)
        rows = self.ok(server.get("/v1/breakers"))["breakers"]
        self.assertEqual(rows, [])  # each was reset by its own operator
        self.assertIn('namespace="ml"', server.get("/metrics").body.decode())

    def test_embedded_and_sqlite(self):
        self.everything()

    @unittest.skipUnless(programs(), "PostgreSQL is not installed")
    def test_redis_and_postgresql(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        postgres = Postgres(self.dir)
        self.addCleanup(postgres.close)
        self.everything(store=redis.url, database=postgres.url, **PATIENT_REDIS)


class Tokens(NamespaceCase):
    def test_made_and_listed(self):
        server = self.guarded()
        Node(server, "n1", allowed_types=["later"], max_concurrent_jobs=0)
        made = self.ok(server.post("/v1/tokens", {"name": "gis", "scopes": ["submit", "read"], "namespace": "gis"}), 201)
        self.assertEqual(made["namespace"], "gis")
        job = self.ok(self.task(server, "later", bearer(made["token"]), queue_ms="10m"), 202)
        self.assertEqual(server.job(job["job_id"])["type"], "gis/later")
        self.assertEqual(server.job(job["job_id"])["submitted_by"], "gis")
        rows = {row["name"]: row["namespace"] for row in self.ok(server.get("/v1/tokens"))["tokens"]}
        self.assertEqual((rows["gis"], rows["team-maps"], rows["admin"]), ("gis", "maps", "default"))
        for scope in ("node", "admin"):
            body = self.problem(server.post("/v1/tokens", {"name": "x", "scopes": ["read", scope], "namespace": "gis"}), 400, "BAD_FIELD")
            self.assertIn("what all namespaces share", body["detail"])
        for name in ("a/b", "", "x" * 17, 5):
            self.problem(server.post("/v1/tokens", {"name": "x", "scopes": ["read"], "namespace": name}), 400, "BAD_FIELD")

    def test_by_the_command(self):
        file = self.dir / "tokens.yaml"
        done = berth("token", "create", "gis", "--scope", "submit,read", "--namespace", "gis", "--file", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"namespace":"gis"', file.read_text())
        for flags, word in ((("--scope", "node", "--namespace", "gis"), "share"), (("--scope", "read", "--namespace", "a/b"), "a/b")):
            done = berth("token", "create", "x", *flags, "--file", file)
            self.assertEqual((done.returncode, word in done.stderr), (2, True), done.stderr)

    def test_one_that_is_moved_hears_no_more(self):
        """The same secret in another namespace is another caller: streams that were opened before the move end."""
        file = self.dir / "tokens.yaml"

        def rows(team):
            file.write_text("".join(f"- {{name: {name}, sha256: {digest(secret)}, scopes: [{scope}]{more}, format: 2}}\n" for name, secret, scope, more
                                    in (("root", ADMIN, "admin", ""), ("gis", "gis-0000", "read", f", namespace: {team}"))))
        rows("one")
        self.config.write_text(json.dumps({"tokens_file": str(file)}))
        server = self.guarded()
        stream = Events(server, headers=bearer("gis-0000"))
        eventually("the stream has begun", lambda: stream.seen)
        rows("two")
        self.assertTrue(stream.ended.wait(30 * SLOW), "the stream goes on")
        stream.close()


class Names(NamespaceCase):
    def test_sessions_of_any_name(self):
        """A session id is any text: one with a slash does not reach another namespace."""
        server = self.guarded()
        node = WsNode(server, "n1", headers=bearer(ADMIN), max_concurrent_jobs=50)
        for team, session in (("default", "maps/room"), ("maps", "room"), ("maps", "/x"), ("default", "/x"), ("default", "x")):
            src, tgt = PAIRS[team]
            self.ok(self.dispatch(server, src, tgt, session, self.by(team)))
        for team, session, pair in (("default", "maps/room", "en->zh"), ("maps", "room", "zh->en"), ("maps", "/x", "zh->en"), ("default", "/x", "en->zh")):
            found = self.ok(server.get(f"/v1/sessions/{quoted(session)}", **self.by(team)))
            self.assertEqual((found["lang_pair"], found["session_id"], found["version"]), (pair, session, 1))
        for name, pair in (("maps/room", "zh->en"), ("/maps/room", "en->zh"), ("maps//x", "zh->en"), ("//x", "en->zh"), ("default/x", "en->zh")):
            self.assertEqual(self.ok(server.get(f"/v1/sessions/{quoted(name)}"))["lang_pair"], pair, name)
        node.close()

    def test_who_sees_all_says_full_names(self):
        server = self.guarded()
        Node(server, "n1", allowed_types=["work"], max_concurrent_jobs=50)
        mine = self.ok(self.task(server, "maps/work"))["job_id"]
        self.assertEqual(self.ok(server.get(f"/v1/jobs/{mine}", **self.by("maps")))["type"], "work")
        self.problem(server.get(f"/v1/jobs/{mine}", **self.by("default")), 404, "NOT_FOUND")
        self.ok(self.task(server, "default/work"))
        self.problem(self.task(server, "maps/f2f"), 400, "BAD_FIELD")
        self.ok(server.call("PUT", "/v1/deployments/maps%2Fweb", {"id": "maps/web", "command": "true"}), 201)
        self.assertEqual(self.ok(server.get("/v1/deployments/web", **self.by("maps")))["id"], "web")
        done = berth("deploy", "ls", "-o", "name", "--addr", f"http://127.0.0.1:{server.port}", env={"BERTH_TOKEN": ADMIN})
        self.assertEqual((done.returncode, done.stdout), (0, "maps/web\n"), done.stderr)
        done = berth("deploy", "delete", "maps/web", "--addr", f"http://127.0.0.1:{server.port}", env={"BERTH_TOKEN": ADMIN})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.problem(server.get("/v1/deployments/web", **self.by("maps")), 404, "NOT_FOUND")

    def test_a_retry_stays(self):
        server = self.guarded()
        node = Node(server, "n1", allowed_types=["work"], max_concurrent_jobs=50)
        job = self.ok(self.submit(server, "maps", max_attempts=1))
        node.ack(node.poll()[0])
        self.ok(node.fail(job))
        again = self.ok(server.post(f"/v1/jobs/{job['job_id']}/retry"))
        self.assertEqual(self.ok(server.get(f"/v1/jobs/{again['job_id']}", **self.by("maps")))["retried_from"], job["job_id"])

    def test_queue_max_is_each_ones_own(self):
        server = self.guarded(queue_max=2)
        Node(server, "n1", allowed_types=["work"], max_concurrent_jobs=0)
        for team in TEAMS:
            for _ in range(2):
                self.ok(self.submit(server, team, queue_ms="10m"), 202)
            self.problem(self.submit(server, team, queue_ms="10m"), 429, "QUEUE_FULL")

    def test_an_agent_knows_the_short_type(self):
        server = self.guarded()
        self.real(server, "a1", allowed_types="work")
        for team in TEAMS:
            job = self.ok(self.submit(server, team, command="echo $BERTH_TYPE of " + team))["job_id"]
            found = self.ok(server.get(f"/v1/jobs/{job}?wait=60s", **self.by(team)))
            self.assertEqual((found["state"], found["type"]), ("DONE", "work"), found)
            self.assertEqual(self.ok(server.get(f"/v1/jobs/{job}/logs", **self.by(team)))["text"], f"work of {team}\n")

    def test_leases_of_face_to_face(self):
        """`maps/f2f` is face-to-face work too, so it has the shorter lease."""
        server = self.guarded(f2f_lease_ms=600000, running_lease_ms=800000)
        node = WsNode(server, "n1", headers=bearer(ADMIN), allowed_types=["work"])
        for call, lease_ms in ((lambda: self.dispatch(server, "zh", "en", "s", self.by("maps")), 600000), (lambda: self.submit(server, "maps"), 800000)):
            placed = self.ok(call())
            self.assertEqual(node.report("ack", placed)["lease_ms"], lease_ms)
            node.report("done", placed, status="ok")
        node.close()


class Fixed(NamespaceCase):
    """Nodes that the configuration reserves for some namespaces."""

    settings = {"nodes": {"gpu-*": {"namespaces": ["maps"]}, "old": {"namespaces": ["default", "ml"]}}}

    def test_jobs(self):
        server = self.guarded()
        for name in ("gpu-1", "gpu-2", "old"):
            Node(server, name, allowed_types=["work"], max_concurrent_jobs=100)
        for team, nodes in (("maps", {"gpu-1", "gpu-2"}), ("default", {"old"}), ("ml", {"old"})):
            src, tgt = PAIRS[team]
            placed = {self.ok(self.submit(server, team))["node_id"] for _ in range(8)}
            placed |= {self.ok(self.dispatch(server, src, tgt, None, self.by(team)))["node_id"] for _ in range(4)}
            self.assertEqual(placed, nodes, team)
        found = self.ok(server.post("/v1/dispatch/task?dry_run=1", {"type": "work"}, self.by("ml")))["now"]
        reasons = {node["node_id"]: (node["reason"], node["detail"]) for node in found["nodes"]}
        self.assertEqual((found["reasons"], reasons["old"][0]), ({"NAMESPACE": 2, "CHOSEN": 1}, "CHOSEN"))
        self.assertIn("other namespaces", reasons["gpu-1"][1])
        self.assertNotIn("maps", json.dumps(found))
        self.ok(server.call("DELETE", "/v1/nodes/old"))
        self.problem(self.submit(server, "ml", queue_ms="10m"), 422, "NO_CAPABLE_NODE")

    def test_one_that_waits_goes_where_it_may(self):
        server = self.guarded()
        old, gpu = (Node(server, name, allowed_types=["work"], max_concurrent_jobs=1) for name in ("old", "gpu-1"))
        jobs = {}
        for team in ("maps", "ml"):
            jobs[team] = [self.submit(server, team, queue_ms="10m").json["job_id"] for _ in range(2)]
        for node, team in ((gpu, "maps"), (old, "ml")):
            for job in jobs[team]:
                message, = eventually("the node gets a job", node.poll)
                self.assertEqual(message["job_id"], job)
                self.ok(node.ack(message))
                self.ok(node.done(message))

    def test_deployments(self):
        server = self.guarded()
        for team in TEAMS:
            self.ok(server.call("PUT", "/v1/deployments/web", {"command": "true"}, self.by(team)), 201)
            self.ok(server.call("PUT", "/v1/deployments/each", {"command": "true", "type": "daemon"}, self.by(team)), 201)
        for node, own, others in (("gpu-1", ["maps"], ["default", "ml"]), ("old", ["default", "ml"], ["maps"])):
            Node(server, node)
            must = self.ok(server.post("/v1/deployments/renew", {"node_id": node}))
            self.assertEqual((must["namespaces"], [row["id"] for row in must["deployments"]]), (own, [full(team, "each") for team in own]))
            for team in others:
                claim = {"node_id": node, "id": full(team, "web"), "observed": "", "generation": 0}
                self.assertEqual(self.problem(server.post("/v1/deployments/claim", claim), 409, "CONFLICT")["reason"], "namespace")
            for team in own:
                claim = {"node_id": node, "id": full(team, "web"), "observed": "", "generation": 0}
                self.ok(server.post("/v1/deployments/claim", claim))

    def test_agents_share_out_what_each_may_run(self):
        """No agent leaves a deployment to a node that may not run it."""
        server = self.guarded()
        for name in ("gpu-1", "old"):
            self.real(server, name)
        for team in TEAMS:
            for number in range(3):
                body = {"command": f"echo command-{team}; sleep 1000", "stop_grace_ms": 100}
                self.ok(server.call("PUT", f"/v1/deployments/web{number}", body, self.by(team)), 201)

        def settled():
            rows = self.ok(server.get("/v1/deployments"))["deployments"]
            return all(row["address"] and row["state"] == "running" for row in rows) and rows
        rows = eventually("all deployments run", settled, 120)
        self.assertEqual({row["id"]: row["address"] for row in rows},
                         {full(team, f"web{number}"): "gpu-1" if team == "maps" else "old" for team in TEAMS for number in range(3)})
        for team in TEAMS:
            def printed(team=team):
                answer = server.get("/v1/deployments/web0/logs", **self.by(team))
                return answer.status == 200 and answer.json["text"]
            self.assertEqual(eventually("the copy has printed something", printed), f"command-{team}\n")
        for team in TEAMS:
            for number in range(3):
                self.ok(server.call("DELETE", f"/v1/deployments/web{number}", headers=self.by(team)))


    def test_what_may_not_stay_moves(self):
        """The setting is added while the server is stopped: afterwards the node stops the deployment and gives it up."""
        kept = self.config.read_text()
        self.config.write_text(json.dumps({**json.loads(kept), "nodes": None}))
        server = self.guarded()
        self.real(server, "gpu-1")
        self.ok(server.call("PUT", "/v1/deployments/web", {"command": "sleep 1000", "stop_grace_ms": 100}, self.by("ml")), 201)

        def owner():
            row = self.ok(server.get("/v1/deployments/web", **self.by("ml")))
            return row["address"] if any(copy["state"] == "running" for copy in row["copies"]) else None
        eventually("the deployment runs on gpu-1", lambda: owner() == "gpu-1", 60)
        self.config.write_text(kept)
        self.assertEqual(server.stop(), 0)
        server = self.guarded(listen=f"127.0.0.1:{server.port}")
        self.real(server, "old")
        eventually("the deployment runs on old", lambda: owner() == "old", 120)
        self.ok(server.call("DELETE", "/v1/deployments/web", headers=self.by("ml")))


class Instances(NamespaceCase):
    """Two servers on one Redis: what one sends the other is filtered where it is shown."""

    def setUp(self):
        super().setUp()
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.one, self.two = (self.guarded(store=redis.url, data_dir=f"data{i}", **PATIENT_REDIS) for i in range(2))
        for server in (self.one, self.two):
            eventually("the server is ready", lambda server=server: server.get("/readyz").status == 200)
        self.node = Node(self.one, "n1", allowed_types=["work", "later"], max_concurrent_jobs=1)
        eventually("the other server knows the node", lambda: self.two.get("/v1/nodes/n1").status == 200)

    def test_events_and_explanations(self):
        streams = {team: Events(self.two, headers=self.by(team)) for team in TEAMS}
        for stream in streams.values():
            eventually("the stream has begun", lambda stream=stream: stream.seen)
        ids = {}

        def heard():
            """Once the first server knows that events are wanted at the second, all events are sent."""
            for team in TEAMS:
                answer = self.submit(self.one, team, "later", queue_ms="10m")
                ids.setdefault(team, set()).add(answer.json["job_id"])
            return all(any(name == "job" for name, _ in stream.seen) for stream in streams.values())
        eventually("every stream has an event of a job", heard)
        for team, stream in streams.items():
            jobs = {data["job_id"] for name, data in stream.seen if name == "job"}
            self.assertLessEqual(jobs, ids[team], team)
            stream.close()
        refused = {team: self.problem(self.submit(self.one, team, "nowhere"), 422, "NO_CAPABLE_NODE")["job_id"] for team in TEAMS}
        for team, job in refused.items():
            # The other server is asked, but is left out if it is busy for long.
            for who in (self.by(team), {}):
                found = eventually("the refused job is explained",
                                   lambda: (answer := self.two.get(f"/v1/jobs/{job}/explain", **who)).status == 200 and answer)
                self.assertEqual(len(found["decisions"]), 1)
            for other in set(TEAMS) - {team}:
                answer = self.two.get(f"/v1/jobs/{job}/explain", **self.by(other))
                self.assertEqual(answer.status, 404, f"{team}'s by {other}: {answer}")
