"""Every field of a job, by its row in the server's own table: a job with it is submitted, kept in each store, shown, sent to its node, and
named in PROTOCOL.md. Only fields that are shown under another name are named here."""
import re

from fences import spans
from harness import ROOT, Case, WsNode
from redis import Redis

SHOWN_AS = {"src_lang": "src", "tgt_lang": "tgt", "callback_url": "callback"}
ROUTES = {"Task": "/v1/dispatch/task", "F2f": "/v1/dispatch/f2f"}


class JobFields(Case):
    def rows(self, server, name):
        """{field: a value other than its default} of a request, and the fields that the request must have."""
        schema = self.ok(server.get("/v1/openapi.json"))["components"]["schemas"][name]
        for field, row in schema["properties"].items():
            self.assertTrue(row.get("examples"), f"{name}.{field} has no example")
        rows = {field: row["examples"][0] for field, row in schema["properties"].items()}
        return rows, {field: rows[field] for field in schema["required"]}

    def held(self, job, sent, where):
        """Each field that was sent is in the job, with the value that was sent."""
        for field, value in sent.items():
            name = SHOWN_AS.get(field, field)
            self.assertIn(name, job, f"{field} of a job is not {where}")
            if name == field or not field.endswith("url"):  # for a callback the job shows its state, not its URL
                self.assertEqual(job[name], value, f"{field} of a job, {where}")

    def each(self, settings):
        """One job for each field, one with all fields and one with none; the next server reads them back from the store."""
        server = self.start(allow_urls="loopback", **settings)
        sent_on = self.ok(server.get("/v1/openapi.json"))["components"]["schemas"]["JobMessage"]["properties"]
        node = WsNode(server, "n1", max_concurrent_jobs=100, allowed_types=["*"], labels={"zone": "eu"})
        kept = {}
        for name, path in ROUTES.items():
            rows, needed = self.rows(server, name)
            for sent in [{field: value, **needed} for field, value in rows.items()] + [rows, needed]:
                job = self.ok(server.post(path, sent))["job_id"]
                message = node.expect("job", job_id=job)
                self.held(message, {field: value for field, value in sent.items() if field in sent_on}, "in the message to the node")
                self.assertNotIn("callback_url", message)  # whatever its description says
                self.assertEqual(set(message) - set(sent_on) - {"msg"}, set(), "in the message, and not in its description")
                kept[job] = sent
        node.close()
        self.assertEqual(server.stop(), 0)
        server = self.start(allow_urls="loopback", **settings)
        for job, sent in kept.items():
            self.held(server.job(job), sent, "shown")

    def test_in_the_embedded_store(self):
        self.each({})

    def test_in_redis(self):
        redis = Redis(self.dir / "redis")
        self.addCleanup(redis.kill)
        self.each({"store": redis.url})

    def test_in_the_protocol(self):
        """Under "Submitting", a paragraph for each kind of request."""
        server = self.start()
        section = (ROOT / "PROTOCOL.md").read_text().split("\n## Submitting\n")[1].split("\n## ")[0]
        for name in ROUTES:
            written = next(part for part in section.strip().split("\n\n") if part.startswith(f"`{name.lower()}`:"))
            named = {word for _, span in spans(written) for word in re.findall(r"\w+", span)}
            rows, _ = self.rows(server, name)
            self.assertEqual(set(rows) - named, set(), f"fields of {name} that PROTOCOL.md does not name under Submitting")
