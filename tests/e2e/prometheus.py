"""A real Prometheus for one test, on a free port, with the shipped configuration and rules."""
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

from harness import ROOT, SLOW, eventually, live
from redis import free_port

RULES = ROOT / "ops" / "prometheus"
ALERTS = (RULES / "berth-alerts.yml").read_text()
NAMES = set(re.findall(r"alert: (\w+)", ALERTS))
HERE = bool(shutil.which("promtool") and shutil.which("prometheus"))


def hurried(rules):
    """The rules with their waiting times shortened; their expressions and thresholds stay."""
    return re.sub(r"offset \w+", "offset 1s", re.sub(r"for: \w+", "for: 0s", rules))


class Prometheus:
    def __init__(self, case, *servers):
        where = case.dir / "prometheus"
        where.mkdir()
        for name in ("berth-rates.yml", "berth-alerts.yml"):
            (where / name).write_text(hurried((RULES / name).read_text()))
        targets = ", ".join(f"'127.0.0.1:{server.port}'" for server in servers)
        config = (RULES / "prometheus.yml").read_text().replace("15s", "500ms").replace("'127.0.0.1:7420'", targets)
        (where / "prometheus.yml").write_text(config)
        self.port = free_port()
        self.log = (where / "log").open("w+")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "prometheus", f"--config.file={where}/prometheus.yml",
             f"--storage.tsdb.path={where}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=self.log)
        live.add(self.process)
        case.addCleanup(self.close)
        eventually("Prometheus is ready", self.up, 60)
        eventually("all servers are scraped", lambda: self.health() == ["up"] * len(servers), 60)
        eventually("the rules have been evaluated", lambda: self.value("multi_instance_consistency") == 0, 60)

    def close(self):
        self.process.kill()
        self.process.wait()
        live.discard(self.process)
        self.log.close()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30 * SLOW) as reply:
            return json.load(reply)["data"]

    def up(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def value(self, query):
        found = self.get("/api/v1/query?query=" + urllib.parse.quote(query))["result"]
        return float(found[0]["value"][1]) if found else None

    def targets(self):
        return self.get("/api/v1/targets")["activeTargets"]

    def health(self):
        return [target["health"] for target in self.targets()]

    def errors(self):
        return [target["lastError"] for target in self.targets() if target["lastError"]]

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.get("/api/v1/alerts")["alerts"]
                if alert["state"] == "firing"}
