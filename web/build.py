"""Builds the page into one C file: build.py OUT.c

Fetches the npm packages that package-lock.json names when they are not there yet (the only step that
needs a network), bundles src/ with esbuild and writes each file plain and gzipped as a C array."""
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import packages

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


def bundle(out):
    command = [str(MODULES / ".bin" / "esbuild"), "src/app.js", "src/app.css", "--bundle", "--minify",
               "--format=esm", "--target=es2020", "--charset=utf8", "--legal-comments=none", "--log-level=warning",
               f"--outdir={out}"]
    done = subprocess.run(command, cwd=WEB, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        fail(f"esbuild says\n{done.stdout}")
    # The only line ends left in it stand in templates, where indentation means nothing.
    script = pathlib.Path(out) / "app.js"
    script.write_bytes(re.sub(rb"\n +", b"\n", script.read_bytes()))
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
    try:
        packages.fetch(WEB)
    except packages.Unreachable as why:
        fail(why)
    with tempfile.TemporaryDirectory() as folder:
        bundle(folder)
        write(sys.argv[1], folder)
        sizes = {name: os.path.getsize(pathlib.Path(folder) / name) for _, name, _ in FILES}
    print("page: " + ", ".join(f"{name} {size} bytes" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
