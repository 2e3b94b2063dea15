"""Every name in the pages is a name of the program: settings with the printed defaults, metrics and threads (in both directions: none is
left out), events of the log, words of answers, files."""
import pathlib
import re

from fences import outside, spans, tables
from harness import ROOT, Case, Node, berth, tags
from redis import Redis
from test_docs import PAGES

PROTOCOL = ROOT / "PROTOCOL.md"
UNITS = {"ms": 1, "s": 1000, "m": 60000, "min": 60000, "h": 3600000, "days": 86400000, "KiB": 1024, "MiB": 1 << 20}
# `name` (a value), where the name is a request's parameter.
NO_SETTING = {"limit"}
# Words of Redis, of PostgreSQL and of the original design, and examples.
FOREIGN = {"PGPASSWORD", "PGPASSFILE", "FLUSHALL", "FLUSH", "TICK", "resv_id", "berth_v3_1a2b3c4d", "synchronous_standby_names"}


def source():
    """The text of the program and of everything that is shipped with it."""
    files = [path for place in ("src", "ops", "web", "tools", "examples") for path in (ROOT / place).rglob("*")
             if path.suffix in (".c", ".h", ".lua", ".json", ".yml", ".yaml", ".js", ".service", "") and path.is_file()
             and "node_modules" not in path.parts]
    return "\n".join(path.read_text(errors="replace") for path in [ROOT / "Makefile", *files])


def defaults():
    """Settings of server and agent: (number, unit) where the default is a number, else None."""
    found = {}
    for verb in ("server", "agent"):
        for name, about in re.findall(r"^  (?:--|  )([a-z_-]+) +(.*)$", berth(verb, "--help").stdout, re.M):
            default = re.search(r"\(default (\d+)(\w*)\)$", about)
            found.setdefault(name.replace("-", "_"), default.groups() if default else None)
    return found


def amount(number, unit):
    return int(number.replace(" ", "")) * UNITS.get(unit, 1)


@tags("load")
class Names(Case):
    def test_words(self):
        """Words in backticks: a_word and A_WORD."""
        text = source()
        known = set(re.findall(r"\w+", text)) | FOREIGN
        checked = 0
        for page in PAGES:
            for _, span in spans(page.read_text()):
                for word in re.findall(r"(?<![\w/.-])(?:[a-z0-9]+(?:_[a-z0-9]+)+|[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*)(?![\w/.])", span):
                    self.assertTrue(word in known, f"{page.name}: {word} in `{span}`")
                    checked += 1
        self.assertGreater(checked, 500)

    def test_reasons_without_backticks(self):
        known = set(re.findall(r"\w+", source())) | {"NODE_DROP", "TRY_RESERVE", "COMMIT_RESERVE", "RELEASE_RESERVE", "DEC_RUNNING", "RESV_EXISTS"}
        for page in PAGES:
            for word in re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)+\b", "\n".join(outside(page.read_text()))):
                self.assertTrue(word in known, f"{page.name}: {word}")

    def test_settings_with_a_value(self):
        """`name: value` is a setting, and a value of a server's setting is accepted."""
        known, seen = defaults(), 0
        path = self.dir / "server.yaml"
        server = berth("config", "show").stdout
        for page in PAGES:
            for _, span in spans(page.read_text()):
                found = re.fullmatch(r"([a-z_]{4,}): (\S.*)", span)
                if not found or found.group(1) in ("stale", "duplicate", "protocol") or "…" in span:
                    continue
                self.assertIn(found.group(1), known, f"{page.name}: `{span}`")
                seen += 1
                if re.search(rf"^{found.group(1)}:", server, re.M):
                    path.write_text(span + "\n")
                    done = berth("config", "show", "--config", path)
                    self.assertEqual(done.returncode, 0, f"{page.name}: `{span}`: {done.stderr}")
        self.assertGreater(seen, 8)

    def test_defaults(self):
        """Recognises `reservation_ttl_ms` (5 s), (45 s, `running_lease_ms`), and `store_call_ms`, 80 ms."""
        known, seen = defaults(), 0
        number = r"([\d ]*\d)(?: (ms|s|min|h|days|KiB|MiB)\b)?"
        for page in PAGES:
            text = " ".join("\n".join(outside(page.read_text())).split())
            written = re.findall(rf"((?:`[a-z_]+` \+ )?`[a-z_]+`) \({number}\)", text)
            written += re.findall(r"(`[a-z_]+`), (\d+) (ms|s|min|h|KiB|MiB)\b", text)
            written += [(name, value, unit) for value, unit, name in re.findall(rf"\({number}, (`[a-z_]+`)\)", text)]
            for names, value, unit in written:
                names = re.findall(r"\w+", names)
                if names[0] in NO_SETTING:
                    continue
                self.assertEqual(amount(value, unit), sum(amount(*known[name]) for name in names), f"{page.name}: {names}")
                seen += 1
        self.assertGreater(seen, 10)

    def test_limits(self):
        known = defaults()
        head, rows = next(table for table in tables(ROOT / "docs/install.md") if table[0].startswith("| what | limit |"))
        for what, limit, settings in rows:
            names = re.findall(r"`(\w+)`", settings)
            values = re.findall(r"(\d+(?: \d{3})*)(?: (MiB|KiB|h)\b)?", re.split(r"; |, then", limit)[0])
            for name, (value, unit) in zip(names, values):
                self.assertEqual(amount(value, unit), amount(*known[name]), what)
            self.assertEqual(len(names), len(values) if names else 0, what)

    def test_metrics(self):
        """The table of metrics has exactly the names and labels that a server exports."""
        server = self.start(allow_urls="loopback")
        Node(server, "n1")
        written = {}
        for head, rows in tables(ROOT / "docs/monitoring.md"):
            for cell, *_ in rows if head.startswith("| metric |") else ():
                for name, labels in re.findall(r"`(berth_\w+)(?:\{([^}]*)\})?`", cell):
                    written[name] = set(labels.split(",")) - {""}
        text = server.get("/metrics").body.decode()
        self.assertEqual(set(written), set(re.findall(r"^# TYPE (\w+)", text, re.M)))
        for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
            name = name if name in written else re.sub(r"_(bucket|sum|count)$", "", name)
            self.assertEqual(set(re.findall(r'(\w+)="', labels)) - {"le"}, written[name], name)
        row = next(line for line in (ROOT / "docs/monitoring.md").read_text().splitlines() if "`berth_reserve_total" in line)
        self.assertEqual(set(re.findall(r"\b[A-Z_]{2,}\b", row)), set(re.findall(r'^berth_reserve_total\{result="(\w+)"', text, re.M)))
        why = PROTOCOL.read_text().split("Else 409 with `reason`:")[1].split("and the row's")[0]
        self.assertEqual(set(re.findall(r"`(\w+)`", why)) | {"claimed", "duplicate"},
                         set(re.findall(r'^berth_claims_total\{result="(\w+)"', text, re.M)))
        tables_of_the_database = re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", source())
        for page in PAGES:
            for name in re.findall(r"`(berth_\w+)[`{]", page.read_text()):
                self.assertTrue(name in written or name in tables_of_the_database or name.startswith("berth_v3_"), f"{page.name}: {name}")

    def test_events_of_the_log(self):
        text = source()
        for page in PAGES:
            for name in re.findall(r"event=([a-z_.]+[a-z])", page.read_text()):
                self.assertIn(f'"{name}"', text, f"{page.name}: event={name}")

    def test_files(self):
        """Paths with a slash, and names of source files."""
        seen = 0
        for page in PAGES:
            for _, span in spans(page.read_text()):
                if re.fullmatch(r"(?!/)[\w*./-]+\.(c|h|lua|py|js|json|yml|sh)|(?:src|tests|web|ops|examples)/[\w*./-]*", span):
                    places = [place for place in (".", "src", "src/*", "src/store", "src/store/lua", "web", "web/src", "tests/e2e", "ops/*")
                              if list(ROOT.glob(f"{place}/{span.rstrip('/')}".removeprefix("./")))]
                    self.assertTrue(places or span.startswith("share/"), f"{page.name}: {span}")
                    seen += 1
        self.assertGreater(seen, 40)

    def test_threads(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        written, waits = {}, {}
        for head, rows in tables(ROOT / "ARCHITECTURE.md"):
            for name, does, _ in rows if head.startswith("| thread |") else ():
                written[name.strip("`").replace("-N", "").replace("main", "berth")] = does
        for server in (self.start("one"), self.start("two", store=redis.url)):
            shared = server is self.servers[1]
            names = {re.sub(r"-\d+$", "", path.read_text().strip())
                     for path in pathlib.Path(f"/proc/{server.pid}/task").glob("*/comm")}
            expected = {name for name, does in written.items() if "with Redis only" not in does or shared}
            self.assertLessEqual(names, expected)
            waits[shared] = names
        self.assertEqual(waits[False] | waits[True], set(written))


@tags("load")
class Tables(Case):
    """Tables and lists of the pages are compared with those of the program, in both directions."""

    def rows(self, page, head):
        return next(rows for first, rows in tables(ROOT / page) if first.startswith(head))

    def listed(self, page, begin, end):
        return set(re.findall(r"`([a-z_0-9*]+)`", (ROOT / page).read_text().split(begin)[1].split(end)[0]))

    def test_settings_taken_over_while_it_runs(self):
        rows = re.findall(r'\n    (?:FIELD_)?(?:PLAIN|BOUND|WORDS)(?:_IN\([\w.]+, |\(\s*)"?(\w+)"?,(.*?)\)(?=,\n)', (ROOT / "src/server/settings.c").read_text(), re.S)
        live = {name for name, rest in rows if "FIELD_LIVE" in rest}
        written = self.listed("docs/operators.md", "Taken over at once:", "What else differs")
        self.assertEqual({name for name in live if not name.startswith("callback_")}, written - {"callback_*"})
        self.assertIn("callback_*", written)

    def test_reasons_of_breakers(self):
        source = (ROOT / "src/model/breaker.c").read_text()
        counts = {name: how == "true" for name, how in re.findall(r'\{"(\w+)", (true|false)\}', source)}
        known = {**counts, **{reason: counts[kind] for reason, kind in re.findall(r'\{"(\w+)", "(\w+)", (?:true|false)\}', source)}}
        for begun in ("EXIT", "SIGNAL"):  # what old agents report in one word
            known.pop(begun + {"EXIT": "ED", "SIGNAL": "LED"}[begun])
        written = {}
        for how, reasons in self.rows("PROTOCOL.md", "| counts | reasons |"):
            written.update((re.sub("<.*", "", reason), how == "yes") for reason in re.findall(r"`([^`]+)`", reasons))
        self.assertEqual(written, known)

    def test_scopes_policies_and_exit_codes(self):
        doc = self.start().get("/v1/openapi.json").json
        scopes = {operation["x-scope"] for path in doc["paths"].values() for operation in path.values()} - {"none"}
        self.assertEqual({row[0].strip("`") for row in self.rows("docs/operators.md", "| scope |")}, scopes)
        policies = re.search(r"--claim-policy +who claims: (.*) \(", berth("agent", "--help").stdout).group(1).split(", ")
        self.assertEqual([row[0].split("`")[1] for row in self.rows("docs/deployments.md", "| policy |")], policies)
        codes = re.search(r"Exit codes: (.*?)\.", (ROOT / "docs/operators.md").read_text()).group(1)
        self.assertEqual(codes, " ".join(berth("help").stdout.split("Exit codes:")[1].split()))

    def test_levels(self):
        presets = dict(re.findall(r'RESOURCE_ROW\((\w+_pct), "\w+", "(\d+)"', (ROOT / "src/agent/config.c").read_text()))
        rows = {row[0]: [re.findall(r"\d+", cell) for cell in row[1:4]] for row in self.rows("docs/operators.md", "| level |")}
        for column, kind in enumerate(("load", "mem", "swap")):
            for calmer, level in (("normal", "warning"), ("warning", "danger"), ("danger", "critical")):
                bound = presets[f"{kind}_{level}_pct"]
                self.assertEqual(rows[calmer][column][0 if kind == "mem" else -1], bound, (kind, level))
                self.assertEqual(rows[level][column][-1 if kind == "mem" else 0], bound, (kind, level))

    def test_recording_rules(self):
        self.assertEqual(self.listed("docs/monitoring.md", "the ratios of the design their names:", "\n\n"), set(
            re.findall(r"record: (\w+)", (ROOT / "ops/prometheus/berth-rates.yml").read_text())))

    def test_keys_in_redis(self):
        """The keys that the functions name, and those that exist after some work."""
        written = {re.sub(r"[A-Z]+$", "", name) for row in self.rows("docs/redis.md", "| key | type |")
                   for name in re.findall(r"`([^`]+)`", row[0])}
        lua = "".join(path.read_text() for path in (ROOT / "src/store/lua").glob("*.lua"))
        named = set(re.findall(r"KEY \.\. '([a-z]+:?)'", lua))
        self.assertLessEqual(named, written)
        self.assertEqual(written - named, {"facts", "admin", "none"})  # these are composed, or only declared
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        server = self.start(store=redis.url, allow_urls="loopback")
        node = Node(server, "n1", allowed_types=["dev"], max_concurrent_jobs=3)
        for how in ({}, {"callback_url": "http://127.0.0.1:9/"}):
            self.ok(node.fail(self.ok(self.task(server, headers={"Idempotency-Key": f"k{len(how)}"}, max_attempts=1, **how))))
        self.placed(server)
        there = {re.sub(r":.*", ":", key.removeprefix("sched:{f}:")) for key in redis.say("KEYS", "*").split()}
        self.assertLessEqual(there, written)
        self.assertGreater(len(there), 10)
