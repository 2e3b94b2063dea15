"""A PostgreSQL server for one test, in its own directory, on a free loopback port."""
import glob
import os
import pathlib
import pwd
import subprocess

from harness import SLOW, eventually, live
from redis import free_port


def programs():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    return pathlib.Path(found[-1]).parent if found else None


class Postgres:
    def __init__(self, directory):
        self.dir = pathlib.Path(directory) / "pg"
        self.dir.mkdir()
        self.dir.parent.chmod(0o711)
        self.own = {}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(self.dir, user.pw_uid, user.pw_gid)
            self.own = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.port = free_port()
        subprocess.run([programs() / "initdb", "-D", self.dir / "data", "-A", "trust", "-U", "berth", "--no-sync"],
                       check=True, capture_output=True, cwd="/", timeout=120 * SLOW, **self.own)
        with open(self.dir.parent / "pg.log", "wb") as log:
            self.process = subprocess.Popen(
                [programs() / "postgres", "-D", self.dir / "data", "-p", str(self.port), "-k", "", "-F",
                 "-c", "listen_addresses=127.0.0.1"], stdout=log, stderr=log, cwd="/", **self.own)
        live.add(self.process)
        self.url = f"postgresql://berth@127.0.0.1:{self.port}/postgres"
        eventually("PostgreSQL answers", lambda: subprocess.run(
            [programs() / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port)], capture_output=True).returncode == 0, 60)

    def close(self):
        self.process.send_signal(2)  # SIGINT, a fast shutdown: connections are closed
        self.process.wait(120 * SLOW)
        live.discard(self.process)
