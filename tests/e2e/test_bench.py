"""bench/run can measure every row and every peer, and names a peer that is not installed. The figures themselves are not checked."""
import json
import os
import shutil
import subprocess
import sys
import unittest

from harness import BINARY, ROOT, SLOW, Case, clean_env, tags

PEERS = {"berth", "berth-http", "berth-redis", "beanstalkd", "beanstalkd-binlog", "beanstalkd-fsync", "nats", "jetstream", "gearmand", "bullmq"}
# Kept between runs, so that BullMQ is downloaded once.
CACHE = ROOT / "build" / "cache"


@unittest.skipUnless(os.environ.get("BERTH_BENCH_CASES"), "make bench-check")
class Bench(Case):
    def bench(self, *args, env=None):
        """(exit code, the JSON in the last line, all output). Runs with a low priority, because other cases may be about time."""
        command = ["nice", "-n", "10", sys.executable, ROOT / "bench/run", "--quick", "--berth", ROOT / BINARY, "--data-root", self.dir, *args]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                              env={**clean_env(), "XDG_CACHE_HOME": str(CACHE), **(env or {})}, timeout=900 * SLOW)
        lines = done.stdout.splitlines()
        self.assertTrue(lines and lines[-1].startswith("{"), done.stdout)
        return done.returncode, json.loads(lines[-1]), done.stdout

    def measured(self, *rows):
        code, found, said = self.bench("--only", ",".join(str(row) for row in rows))
        self.assertEqual((code, found["failed"]), (0, 0), said)
        self.assertEqual({row["row"] for row in found["rows"] if "figure" in row}, set(rows))

    @tags("load", "long")
    def test_rows_beside_nginx(self):
        self.measured(1, 2, 3, 4, 5)

    @tags("load", "long")
    def test_rows_of_threads_and_processes(self):
        self.measured(6, 7)

    @tags("load", "long")
    def test_rows_on_redis(self):
        self.measured(8, 9, 10)

    @tags("load", "long")
    def test_every_peer_is_measured(self):
        code, found, said = self.bench("--peers")
        self.assertEqual((code, found["failed"]), (0, 0), said)
        figures = found["figures"]
        self.assertGreater(figures["disk"][0]["per_s"], 0)
        self.assertEqual(set(figures["peers"]), PEERS)
        for name, peer in figures["peers"].items():
            run, = peer["runs"]
            self.assertRegex(peer["version"], r"^\d+\.\d+", name)
            for conc in ("64", "1024"):
                self.assertTrue(all(run[conc][figure] > 0 for figure in ("per_s", "server_us")), f"{name}: {run}")
            self.assertEqual("commit_p50_us" in run["low"], name in ("berth", "berth-http"), name)
            for what in ("start", "done"):
                self.assertLessEqual(0, run["low"][f"{what}_p50_us"], f"{name}: {run}")
                self.assertLessEqual(run["low"][f"{what}_p50_us"], run["low"][f"{what}_p99_us"], f"{name}: {run}")

    @tags("load")
    def test_a_peer_that_is_not_there_is_named(self):
        """Another peer is measured all the same."""
        path = self.dir / "bin"
        path.mkdir()
        for name in ("nice", "ninja", "stat", "redis-server", "sh"):
            (path / name).symlink_to(shutil.which(name))
        code, found, said = self.bench("--only", "berth,beanstalkd", env={"PATH": str(path)})
        self.assertEqual((code, found["failed"]), (1, 1), said)
        self.assertIn("beanstalkd  could not be measured: beanstalkd is not installed (Debian: beanstalkd)", said)
        self.assertEqual(len(found["figures"]["peers"]["berth"]["runs"]), 1)


class Pages(unittest.TestCase):
    """docs/benchmarks.* match the figures in the tree; and a run in which a peer failed makes pages, too."""

    def setUp(self):
        sys.path.insert(0, str(ROOT / "bench"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench"))
        import procs
        import report
        self.procs, self.report = procs, report

    def test_pages_show_the_figures_that_are_kept(self):
        for path, text in self.report.pages(str(ROOT), self.report.kept(str(ROOT))).items():
            with open(path) as file:
                self.assertEqual(file.read(), text, f"{path}: run bench/report.py to make it again")

    def test_a_peer_that_failed_is_named(self):
        figures = self.report.kept(str(ROOT))
        figures["peers"]["gearmand"] = {"runs": [], "error": "gearmand is not installed"}
        made = self.report.pages(str(ROOT), figures)
        page = made[str(ROOT / "docs/benchmarks.md")]
        self.assertIn("gearmand could not be measured: gearmand is not installed.", page)
        self.assertNotIn("| gearmand 1", page)
        self.assertNotIn("gearmand", made[str(ROOT / "docs/benchmarks.svg")])

    def test_where_a_share_of_a_histogram_lies(self):
        inf = float("inf")
        for before, after, share, want in (
                ([0, 0, 0], [10, 10, 10], .5, 50), ([0, 0, 0], [0, 10, 10], .5, 150), ([5, 5, 5], [5, 15, 15], .5, 150),
                ([0, 0, 0], [5, 10, 10], .99, 198), ([0, 0, 0], [0, 0, 10], .5, 200)):
            looks = [list(zip((100, 200, inf), counts)) for counts in (before, after)]
            self.assertAlmostEqual(self.procs.bucket_quantile(*looks, share), want)
