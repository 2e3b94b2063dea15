"""How the page is served; tests/page drives it in a browser."""
import gzip
import os
import re
import unittest

from harness import Case, Node, eventually


class PageCase(Case):
    def test_page_files(self):
        """The page names its files; each has its type, a policy that allows no other sources, and a gzipped form."""
        server = self.start()
        page = server.get("/")
        self.assertEqual(page.status, 200)
        self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")
        names = re.findall(rb'(?:href|src)="(/page/[^"]+)"', page.body)
        self.assertEqual(len(names), 3, page.body)
        types = {"/page/app.js": "text/javascript; charset=utf-8", "/page/app.css": "text/css; charset=utf-8",
                 "/page/icon.svg": "image/svg+xml"}
        for name in ["/"] + [name.decode() for name in names]:
            plain = server.get(name)
            packed = server.get(name, **{"Accept-Encoding": "br, gzip;q=0.8"})
            self.assertEqual((plain.status, packed.status), (200, 200), name)
            self.assertEqual(plain.headers["Content-Type"], types.get(name, "text/html; charset=utf-8"))
            self.assertIsNone(plain.headers["Content-Encoding"])
            self.assertEqual(packed.headers["Content-Encoding"], "gzip")
            self.assertEqual(gzip.decompress(packed.body), plain.body)
            self.assertNotEqual(packed.headers["ETag"], plain.headers["ETag"])
            policy = packed.headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(packed.headers["Vary"], "Accept-Encoding")
            self.assertEqual(packed.headers["X-Content-Type-Options"], "nosniff")

    def test_page_not_modified(self):
        server = self.start()
        first = server.get("/page/app.js", **{"Accept-Encoding": "gzip"})
        tag = first.headers["ETag"]
        rows = [(tag, 304), (f'"other", {tag}', 304), (f"W/{tag}", 304), ("*", 304), ('"other"', 200), (tag.strip('"'), 200)]
        for sent, status in rows:
            answer = server.get("/page/app.js", **{"Accept-Encoding": "gzip", "If-None-Match": sent})
            self.assertEqual(answer.status, status, sent)
            self.assertEqual(len(answer.body), 0 if status == 304 else len(first.body))
            self.assertEqual(answer.headers["ETag"], tag)
        refused = server.get("/page/app.js", **{"Accept-Encoding": "gzip;q=0"})
        self.assertIsNone(refused.headers["Content-Encoding"])
        head = server.call("HEAD", "/")
        self.assertEqual((head.status, head.body), (200, b""))

    def test_page_has_no_other_files(self):
        server = self.start()
        for name in ("/page/", "/page/nothing.js", "/page/../etc/passwd", "/page/%2e%2e%2fetc%2fpasswd", "/page/app.js/x"):
            self.assertEqual(server.get(name).status, 404, name)
        self.assertEqual(server.post("/").status, 405)

    def test_page_size(self):
        """All files that a browser loads have less than 170 kB unpacked."""
        server = self.start()
        sizes = {name: len(server.get(name).body) for name in ("/", "/page/app.js", "/page/app.css", "/page/icon.svg")}
        self.assertLess(sum(sizes.values()), 170_000, sizes)

    def test_brief_status(self):
        """What the page requests every two seconds leaves out what only the view of one node needs."""
        server = self.start()
        for name in ("n1", "n2"):
            Node(server, name, allowed_types=["dev"])
        self.placed(server)
        whole = self.ok(server.get("/v1/cluster/status"))
        brief = self.ok(server.get("/v1/cluster/status?brief=1"))
        self.assertEqual(set(brief["servers"]), {"n1", "n2"})
        for name, card in brief["servers"].items():
            self.assertEqual(set(whole["servers"][name]) - set(card), {"clamps", "tasks_running"})
        self.assertEqual(sum(len(card["tasks"]) for card in brief["servers"].values()), 1)
        one = self.ok(server.get("/v1/cluster/status?node_id=n2"))
        self.assertEqual(list(one["servers"]), ["n2"])
        self.assertEqual(one["total_slots"], whole["total_slots"], "the sums are those of the whole cluster")
        self.problem(server.get("/v1/cluster/status?brief=2"), 400, "BAD_FIELD")

    def test_stats(self):
        """The points of the charts: each dispatch and refusal is in one of them, and `since` leaves out points that were read before."""
        server = self.start()
        Node(server, "n1", max_concurrent_jobs=50)
        eventually("there is a first point", lambda: server.get("/v1/stats").json["points"])
        for _ in range(20):
            self.placed(server)
        self.problem(server.post("/v1/dispatch/f2f", {"src_lang": "xx", "tgt_lang": "yy"}), 422, "NO_CAPABLE_NODE")

        def sums():
            points = server.get("/v1/stats").json["points"]
            # 2 s, or more if a point was late
            spans = [(point, (point["at_ms"] - before["at_ms"]) / 1000) for before, point in zip(points, points[1:])]
            done = sum(point["dispatched_per_s"] * seconds for point, seconds in spans)
            refused = sum(point["refused_per_s"].get("NO_CAPABLE_NODE", 0) * seconds for point, seconds in spans)
            return points if (round(done), round(refused)) == (20, 1) else None

        points = eventually("all dispatches and the refusal are in the points", sums)
        busy = [point for point in points if point["dispatched_per_s"] > 0]
        self.assertTrue(all(0 < point["p50_ms"] <= point["p99_ms"] for point in busy))
        times = [point["at_ms"] for point in points]
        self.assertEqual(times, sorted(set(times)))
        later = self.ok(server.get(f"/v1/stats?since={times[-1]}"))["points"]
        self.assertTrue(all(point["at_ms"] > times[-1] for point in later))
        self.problem(server.get("/v1/stats?since=yesterday"), 400, "BAD_FIELD")

    def test_page_without_a_token(self):
        """The page itself needs no token; the data it requests does."""
        server = self.start(config=self.tokens())
        self.assertEqual(server.get("/").status, 200)
        self.assertEqual(server.get("/page/app.js").status, 200)
        self.assertEqual(server.get("/v1/cluster/status").status, 401)
        self.assertEqual(server.stop(), 0)  # tearDown would need a token to read the metrics

    def tokens(self):
        path = self.dir / "server.yaml"
        path.write_text(f"tokens:\n  - {{name: ops, sha256: {'a' * 64}, scopes: [operate]}}\n")
        return path


@unittest.skipUnless(os.environ.get("BERTH_E2E_PAGE") == "no", "for a program without its page, which the stage e2e-tsan builds")
class WithoutPage(Case):
    def test_it_says_so_and_works(self):
        server = self.start()
        front = server.get("/")
        self.assertEqual((front.status, front.headers["Content-Type"]), (200, "text/plain; charset=utf-8"))
        self.assertIn(b"built without its page", front.body)
        self.problem(server.get("/page/app.js"), 404, "NOT_FOUND")
        node = Node(server, "n1")
        job = self.placed(server)
        self.ok(node.done(job))
        self.assertEqual(server.job(job["job_id"])["state"], "DONE")
