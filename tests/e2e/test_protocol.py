"""Compares PROTOCOL.md with a real server. Its tables of routes, errors, states and reasons have exactly the names of the server's own
tables; its lists of fields are those of the answers (/v1/openapi.json, which test_openapi.py checks against every answer). test_messages.py
sends its messages."""
import re

from fences import fences, outside, spans, tables
from harness import ROOT, Case, Node

PAGE = ROOT / "PROTOCOL.md"
NAMES = re.compile(r"\{?[a-z_0-9]+\??(?:: ?\[[^\]]*\])?(?:, [a-z_0-9]+\??(?:: ?\[[^\]]*\])?)+\}?")

# Lists of fields in the running text: the words before a list, which schema it lists, and fields of the schema that the text names
# elsewhere.
LISTS = {
    "explain` answers `{": ("Explain", ()),
    "A decision (and `now`) is `{": ("Decision", ()),
    "`nodes` lists `{": ("NodeReason", ("load", "max", "health", "admin", "level", "heartbeat_age_ms", "health_score", "rank", "warm",
                                        "missing", "breaker", "lack")),
    "of the job `{": ("KeyReason", ()),
    "of something `lack` `{": ("ResourceLack", ()),
    "in answers has by name `{": ("Resource", ()),
    "and `gpus`, a list of `{": ("NodeGpu", ()),
    "a node that was looked at `": ("NodeReason", ("node_id", "reason", "detail", "missing", "breaker", "lack")),
    "and answers 200 `{": ("DryRun", ()),
    "GET /v1/breakers` lists `{": ("Breaker", ()),
    "limits and keys: `{": ("Limit", ()),
    "the copies of a deployment listen: `{": ("Service", ()),
    "24h` (at most 7 days) adds up whole hours: `{": ("Report", ()),
    "(or `type`, or `node`, the default) answers `{": ("ReportUsage", ()),
    "`refused` lists `{": ("Report.refused", ()),
    "application/problem+json` with `": ("Problem", ("field", "column", "reasons", "attempt_id", "state", "node_id", "job_id", "explain",
                                                    "reason", "address", "generation", "key", "why", "limit", "used")),
    "`takes_work`, and `why_not` `{": ("Node.why_not", ()),
    "`running_jobs`, a list of `{": ("Run", ()),
    "`usage`, an object with `": ("Server", ("name", "role", "online", "offline_reason", "last_seen_ms", "health", "admin", "level", "resources",
                                            "figures_reason", "clamps", "tasks_running", "tasks", "available_for")),
    "status of the cluster is `{": ("ClusterStatus", ()),
    "`servers` has for each node id `{": ("Server", ()),
    "GET /v1/jobs/{id}` answers `{": ("Job", ()),
    "`attempts` lists `{": ("Attempt", ()),
    "GET /v1/nodes/{id}` answers `{": ("Node", ()),
    "and `clamps`, a list of `{": ("Clamp", ("bites",)),
    "what operators did: `{": ("AuditEntry", ()),
    "the one before it. `chain` `{": ("Audit.chain", ()),
    "&max=` | read | what it printed: `{": ("Logs", ("tail_only",)),
    "&address=` | read | what it printed: `{": ("Logs", ("tail_only", "attempt_id")),
    "a point every 2 s: `{": ("Stats", ()),
    "## The job message `": ("JobMessage", ()),
}


# An error in a program's own settings: it prints the error and exits.
NEVER_ANSWERED = {"BAD_CONFIG"}

# Lists of words in the running text: where they are, and to which schema they belong.
WORDS = {
    r"`state` is (`installing`.*?)\.": "CopyState",
    r"`state` is (CLOSED.*?);": "Breaker.state",
    r"`change` is (JOIN.*?)\. Whoever": "TerminalChange.change",
    r"`admin` is (`none`.*?)\.": "DeployLease.admin",
    r"`level` \((normal.*?)\)": "Node.level",
    r"`health` \((ready.*?);": "NodeReport.health",
}


def names_in(text):
    """The names in `{a, b?, c: [...]}`."""
    return set(re.findall(r"([a-z_0-9]+)", re.sub(r"\[[^\]]*\]|[?{}]", "", text)))


class Described(Case):
    """Reads the server's own tables."""

    def setUp(self):
        super().setUp()
        self.server = self.start()
        self.doc = self.ok(self.server.get("/v1/openapi.json"))
        self.schemas = self.doc["components"]["schemas"]

    def resolved(self, schema):
        return self.schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema

    def fields(self, name):
        """The names of a schema's fields, or with a dot (Report.refused) of an object, or of a list's objects, inside it."""
        first, *more = name.split(".")
        schema = self.schemas[first]
        for step in more:
            schema = schema["properties"][step]
            for one in (schema.get("items"), *schema.get("anyOf", ())):
                schema = self.resolved(one) if one and one.get("type") != "null" else schema
        return set(schema["properties"])

    def words(self, schema):
        """The texts that a schema allows."""
        schema = self.resolved(schema)
        return {word for one in schema.get("anyOf", [schema]) for word in self.resolved(one).get("enum", ()) if word}

    def written_routes(self):
        """(method, path), scope, names in the query, names in the body (None: not mentioned), the row's text."""
        for head, rows in tables(PAGE):
            if not head.startswith("| route |"):
                continue
            for first, scope, about in rows:
                found = []
                for span in re.findall(r"`([^`]+)`", first):
                    if span.startswith("{"):
                        found[-1][2] = (found[-1][2] or set()) | names_in(span)
                        continue
                    method, path = span.split(" ") if " " in span else (found[-1][0][0], span)
                    path, _, query = path.partition("?")
                    if path not in self.doc["paths"]:  # `POST /v1/job/ack`, `/done`
                        path = found[-1][0][1].rsplit("/", 1)[0] + path
                    found.append([(method, path), set(re.findall(r"(\w+)=", query)), None])
                for key, query, body in found:
                    yield key, scope.split()[0], query, body, first + about

    def test_routes(self):
        written, bodies = {}, {}
        for key, scope, query, body, row in self.written_routes():
            operation = self.doc["paths"].get(key[1], {}).get(key[0].lower())
            self.assertTrue(operation, f"{key} is no route")
            self.assertEqual(operation["x-scope"], scope, key)
            asked = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
            self.assertLessEqual(query, asked, f"{key} has no such parameter")
            written.setdefault(key, set()).update(query | set(re.findall(r"`\??(\w+)=?\d?`", row)))
            if body is not None:
                name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                self.assertLessEqual(body, self.fields(name), f"the body of {key}")
                bodies.setdefault(name, set()).update(body)
        for name, body in bodies.items():
            self.assertEqual(self.fields(name) - body - {"node_id"}, set(), f"fields of {name} that are not written down")
        routes = {(method.upper(), path) for path, operations in self.doc["paths"].items() for method in operations}
        self.assertEqual(routes - set(written), set(), "routes that no table of PROTOCOL.md has")
        for path, operations in self.doc["paths"].items():
            for method, operation in operations.items():
                key = (method.upper(), path)
                asked = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
                self.assertEqual(asked - written[key], set(), f"{key}: parameters that are not written down")

    def test_errors(self):
        rows = re.findall(r'ROW\(ERR_\w+, "(\w+)", (\d+),', (ROOT / "src/base/err.h").read_text())
        known = {name: int(status) for name, status in rows if name not in NEVER_ANSWERED}
        written = {}
        for head, rows in tables(PAGE):
            if head.startswith("| status | error |"):
                for statuses, names in rows:
                    statuses = [int(one) for one in statuses.split(", ")]
                    names = re.findall(r"\b[A-Z_]{4,}\b", re.sub(r"\([^)]*\)", "", names))
                    statuses = statuses * len(names) if len(statuses) == 1 else statuses
                    self.assertEqual(len(statuses), len(names), names)
                    written.update(zip(names, statuses))
        self.assertEqual(written, known)
        self.assertEqual(set(known), set(self.schemas["ErrorName"]["enum"]) - NEVER_ANSWERED)

    def test_states(self):
        text = PAGE.read_text().split("## States")[1].split("## ")[0]
        shorts = {}
        for states, short in re.findall(r"([A-Z, ]+): ([A-Z][a-z]+)[;.]", " ".join(text.split("```")[0].split())):
            shorts.update((state, short) for state in states.replace(" ", "").split(","))
        job = self.schemas["Job"]["properties"]
        self.assertEqual(set(shorts), self.words(job["state"]))
        self.assertEqual(set(shorts.values()), self.words(job["status"]))
        figure = next(fence for fence in fences(PAGE) if fence.section == "States")
        self.assertEqual(set(re.findall(r"\b[A-Z]{3,}\b", figure.text)), set(shorts))
        node = Node(self.server, "n1", max_concurrent_jobs=1, allowed_types=["dev"])
        work = self.ok(self.task(self.server, max_attempts=1))
        waits = self.ok(self.task(self.server, queue_ms=60000), 202)
        self.agrees(shorts, waits, "NEW")
        self.agrees(shorts, work, "DISPATCHED")
        self.ok(node.ack(work))
        self.agrees(shorts, work, "ACKED")
        self.ok(node.fail(work))
        self.agrees(shorts, work, "FAILED")
        self.ok(node.done(self.state_of(self.server, waits, "DISPATCHED")))
        self.agrees(shorts, waits, "DONE")

    def agrees(self, shorts, job, state):
        found = self.server.job(job["job_id"])
        self.assertEqual((found["state"], found["status"]), (state, shorts[state]))

    def test_reasons_and_other_words(self):
        head, rows = next(table for table in tables(PAGE) if table[0].startswith("| reason | the node |"))
        self.assertEqual(set(", ".join(row[0] for row in rows).split(", ")), set(self.schemas["ReasonName"]["enum"]))
        text = " ".join(PAGE.read_text().split())
        for where, name in WORDS.items():
            name, _, field = name.partition(".")
            known = self.words(self.schemas[name]["properties"][field] if field else self.schemas[name])
            listed = re.sub(r"\([^)]*\)|`", "", re.search(where, text).group(1))
            self.assertEqual(set(re.split(r" *, | or | and ", listed.replace("  ", " ").strip())), known, where)

    def test_lists_of_fields(self):
        """Every list of fields must be checked by a row of LISTS."""
        text = "\n".join(outside(PAGE.read_text()))
        used = set()
        for at, span in spans(PAGE.read_text()):
            line = text[text.rfind("\n", 0, at) + 1:at]
            if not NAMES.fullmatch(span) or (line.startswith("|") and line.count("|") < 3):
                continue
            before = " ".join((text[max(0, at - 80):at + 1] + span).split())
            keys = [key for key in LISTS if key in before and before.index(key) + len(key) >= len(before) - len(span)]
            if not keys and "RPC methods" in text[max(0, at - 500):at]:
                continue  # of an agent: test_messages.py
            self.assertEqual(len(keys), 1, f"which schema has these fields? {before}")
            name, nearby = LISTS[keys[0]]
            self.assertEqual(names_in(span) | set(nearby), self.fields(name), before)
            for field, inner in re.findall(r"(\w+): ?\[\{([^}]*)\}\]", span):
                self.assertEqual(names_in(inner), self.fields(f"{name}.{field}"), before)
            used |= set(keys)
        self.assertEqual(set(LISTS) - used, set())
