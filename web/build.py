"""Builds the page into one C file: build.py OUT.c

Fetches the npm packages that package-lock.json names when they are not there yet (the only step that
needs a network), bundles src/ with esbuild and writes each file plain and gzipped as a C array."""
import fcntl
import gzip
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

WEB = pathlib.Path(__file__).resolve().parent
MODULES = WEB / "node_modules"
WITHOUT = "To build berth without its page: meson configure build -Dpage=false"

# name in the URL, file of the bundle, content type
FILES = [
    ("", "index.html", "text/html; charset=utf-8"),
    ("app.js", "app.js", "text/javascript; charset=utf-8"),
    ("app.css", "app.css", "text/css; charset=utf-8"),
    ("icon.svg", "icon.svg", "image/svg+xml"),
]


def fail(text):
    sys.exit(f"berth's page cannot be built: {text}\n{WITHOUT}")


def fetch_packages():
    """node_modules as the lock file has it; nothing is done when it is already so."""
    stamp, lock = MODULES / ".berth-lock", (WEB / "package-lock.json").read_bytes()
    with open(WEB / ".fetch.lock", "w") as turn:  # several build directories share it
        fcntl.flock(turn, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == lock:
            return
        if not shutil.which("npm"):
            fail("there is no npm (Debian: apt-get install nodejs npm, or tools/install-packages).")
        done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=WEB,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            fail(f"`npm ci` in web/ failed, is the npm registry in reach?\n{done.stdout[-2000:]}")
        stamp.write_bytes(lock)


def bundle(out):
    command = [str(MODULES / ".bin" / "esbuild"), "src/app.js", "src/app.css", "--bundle", "--minify",
               "--format=esm", "--target=es2020", "--legal-comments=none", "--log-level=warning",
               f"--outdir={out}"]
    done = subprocess.run(command, cwd=WEB, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        fail(f"esbuild says\n{done.stdout}")
    for name in ("index.html", "icon.svg"):
        shutil.copy(WEB / "src" / name, out)


def array(name, data):
    rows = [", ".join(map(str, data[at:at + 24])) for at in range(0, len(data), 24)]
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(rows) + "};\n"


def write(out, folder):
    arrays, rows = [], []
    for number, (name, file, content_type) in enumerate(FILES):
        plain = (pathlib.Path(folder) / file).read_bytes()
        packed = gzip.compress(plain, 9, mtime=0)
        etag = hashlib.sha256(plain).hexdigest()[:16]
        arrays += [array(f"plain_{number}", plain), array(f"packed_{number}", packed)]
        rows.append(f'    {{"{name}", "{content_type}", "{etag}", plain_{number}, sizeof plain_{number}, '
                    f"packed_{number}, sizeof packed_{number}}},\n")
    text = ('/* Made by web/build.py. */\n#include "server/page.h"\n\n' + "".join(arrays) +
            "const struct page_file page_files[] = {\n" + "".join(rows) +
            f"}};\nconst size_t page_file_count = {len(FILES)};\n")
    pathlib.Path(out).write_text(text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    fetch_packages()
    with tempfile.TemporaryDirectory() as folder:
        bundle(folder)
        write(sys.argv[1], folder)
        sizes = {name: os.path.getsize(pathlib.Path(folder) / name) for _, name, _ in FILES}
    print("page: " + ", ".join(f"{name} {size} bytes" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
