"""What an operator installs: files in their places, units, a Debian package, an agent on another machine; and a back-up that is
restored."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import unittest

from harness import BINARY, ROOT, SLOW, Case, Node, calm_machine, clean_env, eventually, live, tags

UNITS = ("berth-server", "berth-agent", "berth-spawner", "berth-runs")


def run(*command, **more):
    more.setdefault("env", clean_env())
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120 * SLOW, **more)
    return done


@tags("load")
class Installed(Case):
    def install(self):
        root = self.dir / "root"
        done = run(ROOT / "tools/install", BINARY, env=dict(clean_env(), DESTDIR=str(root), prefix="/usr"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return root

    def test_files_are_in_their_places(self):
        root = self.install()
        for path in ("usr/bin/berth", "usr/bin/berth-agent-script", "etc/berth/server.yaml", "etc/berth/agent.yaml",
                     "usr/share/berth/prometheus/berth-alerts.yml", "usr/share/berth/grafana/berth.json",
                     "usr/share/doc/berth/operators.md"):
            self.assertTrue((root / path).is_file(), path)
        self.assertEqual(run(root / "usr/bin/berth", "version").returncode, 0)
        (root / "etc/berth/server.yaml").write_text("listen: 127.0.0.1:9\n")
        self.install()
        self.assertEqual((root / "etc/berth/server.yaml").read_text(), "listen: 127.0.0.1:9\n", "settings stay")
        self.assertNotEqual(run(ROOT / "tools/install", "/nowhere/berth").returncode, 0)

    def test_what_it_is_made_of_is_told(self):
        sbom = json.loads((self.install() / "usr/share/doc/berth/sbom.cdx.json").read_text())
        self.assertEqual((sbom["bomFormat"], sbom["metadata"]["component"]["name"]), ("CycloneDX", "berth"))
        parts = {part["name"]: part for part in sbom["components"]}
        linked = {entry["value"] for part in parts.values() for entry in part.get("properties", [])}
        wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", BINARY).stdout))
        self.assertEqual(linked, wanted, "the libraries that the binary names")
        self.assertTrue(all(part.get("version") for part in parts.values()), "a part without a version")
        for name, version in json.loads((ROOT / "web/package.json").read_text())["dependencies"].items():
            self.assertEqual((parts[name]["version"], parts[name]["scope"]), (version, "required"))

    def test_the_settings_that_are_shipped_are_good(self):
        root = self.install()
        done = run(root / "usr/bin/berth", "config", "show", "--config", root / "etc/berth/server.yaml")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('data_dir: "/var/lib/berth"', done.stdout)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_units(self):
        root = self.install()
        for unit in UNITS:
            text = (root / f"usr/lib/systemd/system/{unit}.service").read_text()
            self.assertNotIn("@", text.replace("@system-service", "").replace("@privileged", ""))
            (self.dir / f"{unit}.service").write_text(text.replace("/usr/bin/berth", str(BINARY)))
        shutil.copy(root / "usr/lib/systemd/system/berth.slice", self.dir)
        for unit in UNITS:
            done = run("systemd-analyze", "verify", "--man=no", self.dir / f"{unit}.service")
            complaints = [line for line in done.stderr.splitlines() if "berth" in line]
            self.assertEqual((done.returncode, complaints), (0, []))
        server, agent, spawner, runs = ((root / f"usr/lib/systemd/system/{unit}.service").read_text() for unit in UNITS)
        for line in ("Type=notify", "WatchdogSec=", "ExecReload=/bin/kill -HUP", "ProtectSystem=strict", "NoNewPrivileges=yes"):
            self.assertIn(line, server)
        for line in ("Type=notify", "KillMode=process", "Restart=always"):
            self.assertIn(line, agent)
            self.assertIn(line, spawner)
        # A unit that delegates controllers cannot be restarted while something runs below it, so neither of these may delegate.
        self.assertNotIn("Delegate", agent + spawner)
        self.assertIn("Delegate=yes", runs)
        self.assertNotIn("berth-runs", (ROOT / "ops/debian/postinst").read_text().split("try-restart")[1])
        # The exit status that the units take for a wrong setting is the one of berth.
        for text, verb in ((server, "server"), (agent, "agent")):
            config = self.dir / f"{verb}.yaml"
            config.write_text("nonsense: 1\n")
            self.assertIn(f"RestartPreventExitStatus={run(BINARY, verb, '--config', config).returncode}\n", text)


@unittest.skipUnless(shutil.which("dpkg-deb") and os.getuid() == 0, "needs dpkg and root")
@tags("load")
class Package(Case):
    def dpkg(self, *args):
        return run("dpkg", f"--root={self.dir / 'root'}", "--force-script-chrootless", "--force-depends",
                   "--force-confold", *args)

    def test_build_install_remove_purge(self):
        done = run(ROOT / "tools/deb", BINARY, self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        package = pathlib.Path(done.stdout.strip())
        fields = run("dpkg-deb", "--field", package).stdout
        self.assertIn("Package: berth", fields)
        needs = set(re.findall(r"([a-z0-9.+-]+)(?: \([^)]*\))?(?:, |$)", re.search(r"^Depends: (.*)$", fields, re.M).group(1)))
        self.assertIn("libuv1", needs)
        # The script for another machine sends only the program, and lets apt-get install the same libraries there.
        script = re.search(r"--no-install-recommends \\\n +(.*)$", (ROOT / "ops/berth-agent-script").read_text(), re.M).group(1).split()
        self.assertEqual(needs - {"libc6"}, set(script))
        known = run("apt-get", "install", "--simulate", "--no-install-recommends", *script)
        self.assertEqual(known.returncode, 0, f"apt-get does not know the packages, or has no index:\n{known.stderr}")
        root = self.dir / "root"
        (root / "var/lib/dpkg/updates").mkdir(parents=True)
        (root / "var/lib/dpkg/info").mkdir()
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).touch()
        done = self.dpkg("--install", package)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(run(root / "usr/bin/berth", "version").returncode, 0)
        self.assertIn("Type=notify", (root / "lib/systemd/system/berth-server.service").read_text())
        settings = root / "etc/berth/server.yaml"
        settings.write_text(settings.read_text() + "loops: 2\n")
        done = self.dpkg("--install", package)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("loops: 2", settings.read_text(), "an upgrade keeps settings")
        self.assertEqual(self.dpkg("--remove", "berth").returncode, 0)
        self.assertFalse((root / "usr/bin/berth").exists())
        self.assertTrue(settings.exists())
        self.assertEqual(self.dpkg("--purge", "berth").returncode, 0)
        self.assertFalse(settings.exists())


@tags("load")
class AnotherMachine(Case):
    def script(self, *args):
        return run(ROOT / "ops/berth-agent-script", "--binary", BINARY, *args)

    def put(self, text, root):
        done = subprocess.run(["sh"], input=text, capture_output=True, text=True, env=dict(clean_env(), ROOT=str(root)))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_agent_that_was_sent_connects(self):
        server = self.start()
        token = self.dir / "token"
        token.write_text("not-asked-for\n")
        more = self.dir / "more.yaml"
        more.write_text("slots_fixed: 3\nallow_commands: true\n")
        made = self.script("--server", f"http://127.0.0.1:{server.port}", "--node-id", "far", "--token-file", token,
                           "--config", more)
        self.assertEqual(made.returncode, 0, made.stderr)
        root = self.dir / "far"
        for _ in range(2):  # the second time is an upgrade
            self.put(made.stdout, root)
        self.assertEqual((root / "etc/berth/agent.token").stat().st_mode & 0o777, 0o600)
        self.assertEqual((root / "usr/local/bin/berth").read_bytes(), pathlib.Path(BINARY).read_bytes())
        self.assertIn("/usr/local/bin/berth agent --config", (root / "etc/systemd/system/berth-agent.service").read_text())
        self.assertEqual(sorted(path.name for path in (root / "etc/systemd/system").iterdir()),
                         ["berth-agent.service", "berth-runs.service", "berth-spawner.service", "berth.slice"])
        agent = subprocess.Popen([root / "usr/local/bin/berth", "agent", "--config", root / "etc/berth/agent.yaml",
                                  "--data-dir", self.dir / "agent", "--token-file", root / "etc/berth/agent.token",
                                  "--host-root", calm_machine(self.dir)],
                                 env=clean_env(), stderr=subprocess.DEVNULL)
        live.add(agent)
        self.addCleanup(lambda: (agent.kill(), agent.wait(), live.discard(agent)))
        eventually("the agent has registered", lambda: server.get("/v1/nodes/far").status == 200, 20)
        self.assertEqual(server.node("far")["max"], 3)
        agent.send_signal(signal.SIGTERM)
        self.assertEqual(agent.wait(10 * SLOW), 0)

    def test_secrets_are_nobodys_from_the_start(self):
        """Secret files are created with mode 600, not closed later: otherwise they could be read for a moment."""
        seen, tools = self.dir / "seen", self.dir / "tools"
        tools.mkdir()
        (tools / "chmod").write_text(f'#!/bin/sh\nstat -c "%a %n" "$2" >>{seen}\nexec /bin/chmod "$@"\n')
        (tools / "chmod").chmod(0o755)
        token = self.dir / "token"
        token.write_text("secret\n")
        made = self.script("--server", "https://berth.example.net:7420", "--token-file", token)
        done = subprocess.run(["sh"], input=made.stdout, capture_output=True, text=True,
                              env=dict(clean_env(), ROOT=str(self.dir / "far"), PATH=f"{tools}:{os.environ['PATH']}"))
        self.assertEqual(done.returncode, 0, done.stderr)
        modes = {line.split()[1].rsplit("/", 1)[1]: line.split()[0] for line in seen.read_text().splitlines()}
        self.assertEqual(modes["agent.token.new"], "600")
        self.assertEqual(set(modes.values()), {"600"})

    def test_mistakes(self):
        rows = [((), 2), (("--server",), 2), (("--server", "ftp://x"), 1), (("--server", "http://x y"), 1),
                (("--server", "http://x", "--node-id", "a'b"), 1), (("--server", "http://x", "--token-file", "/no"), 1),
                (("--what", "x"), 2)]
        for args, code in rows:
            done = self.script(*args)
            self.assertEqual((done.returncode, done.stdout), (code, ""), args)
            self.assertNotEqual(done.stderr, "")


@tags("load")
class BackUp(Case):
    def test_what_is_backed_up_comes_back(self):
        """A back-up of a running server with SQLite's own means, as described in docs/operators.md."""
        server = self.start()
        node = Node(server, "n1", allowed_types=["dev"])
        job = self.ok(self.task(server))
        self.ok(node.done(job, result={"answer": 42}))

        def saved():
            """For a moment the last changes are only in the journal."""
            with contextlib.closing(sqlite3.connect(f"file:{server.data_dir}/store.db?mode=ro", uri=True)) as source, \
                    contextlib.closing(sqlite3.connect(self.dir / "store.db.saved")) as target:
                source.backup(target)
                return target.execute("SELECT count(*) FROM job WHERE result IS NOT NULL").fetchone()[0]

        eventually("the back-up has the result of the job", saved)
        later = self.ok(self.task(server))
        server.kill()
        self.servers.remove(server)
        (self.dir / "restored").mkdir()
        shutil.copy(self.dir / "store.db.saved", self.dir / "restored" / "store.db")
        server = self.start(data_dir="restored")
        self.assertEqual(server.job(job["job_id"])["result"], {"answer": 42})
        self.assertEqual(server.node("n1")["node_id"], "n1")
        self.assertEqual(server.get(f"/v1/jobs/{later['job_id']}").status, 404, "it came after the back-up")
        self.assertSlots(server, "n1", 0, 0)
