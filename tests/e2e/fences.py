"""Reads the code blocks of the documentation's pages, and types them into a shell. The text after the opening fence says what a block is:

    ```sh             commands, typed into one shell for the whole page, from top to bottom. Every command must succeed,
    ```text           unless the block is followed by its expected output: then the output is compared
    ```text log       lines that the server's log must have by then
    ```text messages  messages of the protocol: every {...} in it is JSON
    ```text figure    a drawing
    ```yaml FILE      a file. It is saved as FILE, and berth reads it
    ```sh FILE        a script, saved as FILE as well

In expected output <name> matches any text without spaces or quotes. The same <name> matches the same text everywhere on the page,
and later blocks may use it. `...` at the end of a line matches the rest of the line."""
import json
import os
import pathlib
import re
import signal
import subprocess
import textwrap

from harness import BINARY, SLOW, clean_env

FENCE = re.compile(r"^( *)```(\S*)[ ]*([^\n]*)\n(.*?)^ *```$", re.S | re.M)
KINDS = ("sh", "text", "text log", "text messages", "text figure", "yaml FILE", "sh FILE")


class Fence:
    def __init__(self, page, found):
        self.page, self.line = page, found.string.count("\n", 0, found.start()) + 1
        self.language, self.about = found.group(2), found.group(3).strip()
        self.text = textwrap.dedent(found.group(4))
        # The section it is in, and whether it directly follows another block.
        self.section = (re.findall(r"^## (.*)$", found.string[:found.start()], re.M) or [""])[-1]
        self.follows = re.search(r"```\s*\Z", found.string[:found.start()]) is not None

    @property
    def kind(self):
        known = f"{self.language} {self.about}".strip()
        return known if known in KINDS else f"{self.language} FILE" if self.about else self.language

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def fences(page):
    return [Fence(page, found) for found in FENCE.finditer(page.read_text())]


def outside(text):
    """The page's lines outside of code blocks; lines of blocks are empty."""
    return FENCE.sub(lambda found: "\n" * found.group(0).count("\n"), text).splitlines()


def spans(text):
    """The texts between backticks outside of code blocks, each with its position. A line break inside one becomes a space."""
    text = "\n".join(outside(text))
    return [(found.start(), " ".join(found.group(1).split())) for found in re.finditer(r"`([^`]+)`", text)]


def tables(page):
    """(header line, rows of cells) of each table of the page."""
    found, rows = [], None
    for line in outside(page.read_text()):
        if not line.startswith("|"):
            rows = None
        elif rows is None:
            rows = []
            found.append((line, rows))
        elif not re.fullmatch(r"[|\s-]+", line):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return found


def messages(text):
    """Every {...} of the text, parsed as JSON; raises ValueError if one is not JSON. `...` may replace any value, elements of a list, or
    further fields of an object."""
    text = re.sub(r"([{,])\s*\.\.\.(?=\s*\})", r'\1"...":"..."', re.sub(r"([:\[])\s*\.\.\.(?=\s*[],}])", r'\1"..."', text))
    found, at = [], text.find("{")
    while at >= 0:
        value, end = json.JSONDecoder().raw_decode(text, at)
        found.append(value)
        at = text.find("{", end)
    return found


def pattern_of(expected, known):
    """A regular expression for the expected text. Its groups are the names that are not known yet."""
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


# Commands that run until they are ended. Servers and agents run until the end of the page; those that only watch are ended soon.
SERVES = re.compile(r"^(?:sudo )?(?:berth (?:dev|server|agent)\b|make run\b)")
WATCHES = re.compile(r"^(?:berth (?:events|top|deploy logs .*-f)|.*--watch|python3 .* events$)")

PREAMBLE = r"""
set -E -o pipefail
trap 'echo "exit $?: $BASH_COMMAND" >> "$FAILED"' ERR
sudo() { [ "$1" != -u ] || shift 2; "$@"; }
apt-get() { # only simulates, and must be about to install berth
    local said
    said=$(command apt-get --simulate "$@" 2>&1) && grep -q '^Inst berth ' <<< "$said" && return
    echo "apt-get does not know the package, or not all that it needs:"; echo "$said"; return 1
}
up() { # NAME PID: waits until it is up
    local tries
    for tries in {1..1800}; do
        grep -qE 'event=(server\.ready|server\.listening|agent\.connected)|Ready to accept' "$LOGS/$1.log" && return
        kill -0 "$2" || break
        sleep 0.05
    done
    tail -5 "$LOGS/$1.log"; return 1
}
serve() { # NAME COMMAND...: runs it until the page ends
    : > "$LOGS/$1.log" # without the log of an earlier one
    "${@:2}" >> "$LOGS/$1.log" 2>&1 &
    echo $! > "$LOGS/$1.pid"
    up "$1" $!
}
end() { # NAME
    local pid
    pid=$(cat "$LOGS/$1.pid"); kill "$pid"; while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
}
systemctl() { # stands in for systemd: starts, ends and signals the units' commands
    local verb=$1 unit
    for unit in "${@:2}"; do
        case $verb:$unit in
        *:--*) continue ;;
        stop:* | restart:*) end "$unit" ;;
        reload:*) kill -HUP "$(cat "$LOGS/$unit.pid")" ;;
        esac
        case $verb in start | restart | enable) serve "$unit" bash -c "exec $(cat "$UNITS/$unit")" ;; esac
    done
}
watch_it() { # COMMAND...: runs it, and ends it after WATCH_SECONDS
    local code=0
    timeout -s INT "$WATCH_SECONDS" "$@" || code=$?
    [ $code = 124 ] || [ "$*" = "berth top" ] # without a terminal `berth top` draws once and exits
}
"""


class Shell:
    """One bash for a whole page, so that variables set in one block are there in the next."""

    MARK = "--end-of-block--"

    def __init__(self, place, env, swaps):
        self.place, self.swaps = place, swaps
        self.logs, self.failed = place / "logs", place / "failed"
        self.logs.mkdir()
        self.served = 0
        self.process = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place / "here",
            start_new_session=True, env={**clean_env(), "LOGS": str(self.logs), "FAILED": str(self.failed), "WATCH_SECONDS": str(SLOW),
                 "PATH": f"{os.path.dirname(BINARY)}:{os.environ['PATH']}", "NO_COLOR": "1", "TERM": "dumb", **env})
        self.type(PREAMBLE)

    def swapped(self, text, known=()):
        """The text with the names of this test's places and ports."""
        for name in known:
            text = text.replace(f"<{name}>", known[name])
        for old, new in self.swaps.items():
            text = text.replace(old, str(new))
        return text

    def type(self, text):
        """Types the text and returns what the shell prints."""
        self.process.stdin.write(f"{text}\nprintf '\\n%s\\n' {self.MARK}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.strip() == self.MARK:
                return "".join(lines).strip()
            lines.append(line)
        raise AssertionError("the shell ended:\n" + "".join(lines))

    def run(self, block, known):
        """Types a block; (what it printed, which of its commands failed)."""
        self.failed.write_text("")
        lines = []
        for line in self.swapped(block, known).splitlines():
            command = re.sub(r"\s+#.*", "", line)
            if SERVES.search(line):
                self.served += 1
                line = f"serve {self.served} {command.removesuffix('&')}"
            elif WATCHES.search(line):
                line = f"watch_it {command}"
            lines.append(line)
        printed = self.type("\n".join(lines))
        return printed, self.failed.read_text()

    def log(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.logs.glob("*.log")))

    def kill(self):
        """Kills every process of the shell's session, and those that left the session but still work in its directory. After a failure that
        may be all of them."""
        self.process.kill()
        self.process.wait()
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                session = int((path / "stat").read_text().rsplit(")", 1)[1].split()[3])
                if session == self.process.pid or self.place in (path / "cwd").readlink().parents:
                    os.kill(int(path.name), signal.SIGKILL)
            except OSError:
                pass

    def close(self):
        """Ends everything the shell started with SIGTERM, and waits for it."""
        self.type("trap - ERR; kill $(jobs -p); wait")
        self.process.stdin.close()
        self.process.wait(30 * SLOW)
        self.process.stdout.close()
