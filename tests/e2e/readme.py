"""The README's tour, run as printed. A block of shell behind the comment `<!-- tour -->` is run against
a fresh `berth dev`; the block of text that follows it is what it must print.

    <!-- tour -->
    ```sh
    curl -s localhost:7420/v1/node/register -d '{"node_id":"node-123"}'
    ```
    ```text
    {"ok":true}
    ```

In the expected text <name> stands for anything without spaces or quotes; the same <name> is the same
text everywhere, and a later shell block may use it as well. `...` at the end of a line stands for
the rest of it. The port and `berth` are put in place of those the text names."""
import os
import re
import subprocess

from harness import BINARY, ROOT, SLOW, clean_env

BLOCK = re.compile(r"<!--\s*tour\s*-->\s*\n```sh\n(.*?)```(?:\s*\n```(?:text|json)\n(.*?)```)?", re.S)


def blocks(text):
    """(line, shell, expected or None) of each marked block."""
    return [(text.count("\n", 0, found.start()) + 1, found.group(1), found.group(2))
            for found in BLOCK.finditer(text)]


def pattern_of(expected, known):
    """A regular expression for the expected text; its groups are the names not known yet."""
    names, parts = [], []
    for piece in re.split(r"(<[a-z_0-9]+>|\.\.\.$)", expected.strip(), flags=re.M):
        if piece == "...":
            parts.append(r"[^\n]*")
        elif re.fullmatch(r"<[a-z_0-9]+>", piece):
            name = piece[1:-1]
            if name in known:
                parts.append(re.escape(known[name]))
            elif name in names:
                parts.append(f"(?P={name})")
            else:
                names.append(name)
                parts.append(rf"(?P<{name}>[^\s\"<>]+)")
        else:
            # Runs of spaces are layout: tables grow with their contents.
            parts.append(re.sub(r"(?:\\ )+", r" +", re.escape(piece)))
    return re.compile("".join(parts))


def run(shell, port, known, cwd):
    """What the block prints."""
    for name, value in known.items():
        shell = shell.replace(f"<{name}>", value)
    shell = shell.replace(":7420", f":{port}")
    path = f"{os.path.dirname(BINARY)}:{os.environ['PATH']}"
    shell = shell.replace("build/berth", "berth")
    done = subprocess.run(["bash", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          cwd=cwd, timeout=60 * SLOW,
                          env=dict(clean_env(), PATH=path, BERTH_ADDR=f"http://127.0.0.1:{port}"))
    return done.stdout


def readme():
    path = ROOT / "README.md"
    return path.read_text() if path.exists() else ""
