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


class Shell:
    """One bash for the whole tour, so that a variable set in one block is there in the next."""

    MARK = "--end-of-block--"

    def __init__(self, port, cwd):
        self.port = port
        path = f"{os.path.dirname(BINARY)}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
            env=dict(clean_env(), PATH=path, BERTH_ADDR=f"http://127.0.0.1:{port}"))

    def run(self, block, known):
        """What the block prints."""
        for name, value in known.items():
            block = block.replace(f"<{name}>", value)
        block = block.replace(":7420", f":{self.port}").replace("build/berth", "berth")
        self.process.stdin.write(f"{block}\nprintf '\\n%s\\n' {self.MARK}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.strip() == self.MARK:
                break
            lines.append(line)
        return "".join(lines)

    def close(self):
        self.process.stdin.close()
        self.process.wait(20 * SLOW)
        self.process.stdout.close()


def readme():
    path = ROOT / "README.md"
    return path.read_text() if path.exists() else ""
