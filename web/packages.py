"""Fetches npm packages: packages.py DIR

DIR/node_modules becomes what DIR/package-lock.json names. That needs a network; when it is so already, nothing is done."""
import fcntl
import pathlib
import shutil
import subprocess
import sys

OUTPUT_KEPT = 2000


class Unreachable(Exception):
    pass


def fetch(folder):
    folder = pathlib.Path(folder)
    stamp, lock = folder / "node_modules" / ".berth-lock", (folder / "package-lock.json").read_bytes()
    with open(folder / ".fetch.lock", "w") as turn:  # several build directories share it
        fcntl.flock(turn, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == lock:
            return
        if not shutil.which("npm"):
            raise Unreachable("there is no npm (Debian: apt-get install nodejs npm, or tools/install-packages).")
        done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Unreachable(f"`npm ci` in {folder.name}/ failed, is the npm registry in reach?\n{done.stdout[-OUTPUT_KEPT:]}")
        stamp.write_bytes(lock)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        fetch(sys.argv[1])
    except Unreachable as why:
        sys.exit(str(why))
