"""The pages' blocks of code, and a shell that types them. What a fence's language says:

    ```sh             typed into the page's shell, from the top of the page to its end. Every command must succeed,
    ```text           unless the block is followed by what it prints: then that is compared
    ```text log       lines the server's log must have by then
    ```text messages  of the protocol: every {...} in it is JSON
    ```text figure    a drawing
    ```yaml FILE      a file. It is saved where it says, and berth reads it
    ```sh FILE        a file as well

In expected text <name> stands for anything without spaces or quotes; the same <name> is the same text everywhere on
the page, and a later block may use it. `...` at the end of a line stands for the rest of it."""
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
        # What it belongs to, and what it follows with nothing in between.
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
    """The page without its blocks, line by line."""
    return FENCE.sub(lambda found: "\n" * found.group(0).count("\n"), text).splitlines()


def spans(text):
    """What stands between backticks in running text, with where it begins; a line break in it is a space."""
    text = "\n".join(outside(text))
    return [(found.start(), " ".join(found.group(1).split())) for found in re.finditer(r"`([^`]+)`", text)]


def tables(page):
    """(first line of the head, rows of cells) of each table of the page."""
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
    """Every {...} of the text, read as JSON; raises ValueError for one that is none. `...` stands for what is left out: any
    value, the elements of a list, more fields of an object."""
    text = re.sub(r"([{,])\s*\.\.\.(?=\s*\})", r'\1"...":"..."', re.sub(r"([:\[])\s*\.\.\.(?=\s*[],}])", r'\1"..."', text))
    found, at = [], text.find("{")
    while at >= 0:
        value, end = json.JSONDecoder().raw_decode(text, at)
        found.append(value)
        at = text.find("{", end)
    return found


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


# What goes on until somebody ends it. Servers and agents stay until the page ends; who only watches is ended soon.
SERVES = re.compile(r"^(?:sudo )?(?:berth (?:dev|server|agent)\b|make run\b)")
WATCHES = re.compile(r"^(?:berth (?:events|top|deploy logs .*-f)|.*--watch|python3 .* events$)")

PREAMBLE = r"""
set -E -o pipefail
trap 'echo "exit $?: $BASH_COMMAND" >> "$FAILED"' ERR
sudo() { [ "$1" != -u ] || shift 2; "$@"; }
apt-get() { # it says what it would do, and that must be to install berth
    local said
    said=$(command apt-get --simulate "$@" 2>&1) && grep -q '^Inst berth ' <<< "$said" && return
    echo "apt-get does not know the package, or not all that it needs:"; echo "$said"; return 1
}
up() { # NAME PID: is it up?
    local tries
    for tries in {1..1800}; do
        grep -qE 'event=(server\.ready|server\.listening|agent\.connected)|Ready to accept' "$LOGS/$1.log" && return
        kill -0 "$2" || break
        sleep 0.05
    done
    tail -5 "$LOGS/$1.log"; return 1
}
serve() { # NAME COMMAND...: until the page ends
    : > "$LOGS/$1.log" # what one before it said is not its own
    "${@:2}" >> "$LOGS/$1.log" 2>&1 &
    echo $! > "$LOGS/$1.pid"
    up "$1" $!
}
end() { # NAME
    local pid
    pid=$(cat "$LOGS/$1.pid"); kill "$pid"; while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
}
systemctl() { # there is none here: what a unit starts is started, ended and signalled all the same
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
watch_it() { # COMMAND...: it goes on until it is ended
    local code=0
    timeout -s INT "$WATCH_SECONDS" "$@" || code=$?
    [ $code = 124 ] || [ "$*" = "berth top" ] # without a terminal that draws once
}
"""


class Shell:
    """One bash for a whole page, so that a variable set in one block is there in the next."""

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
        """The text with names of this place in it."""
        for name in known:
            text = text.replace(f"<{name}>", known[name])
        for old, new in self.swaps.items():
            text = text.replace(old, str(new))
        return text

    def type(self, text):
        """What it prints."""
        self.process.stdin.write(f"{text}\nprintf '\\n%s\\n' {self.MARK}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.strip() == self.MARK:
                return "".join(lines).strip()
            lines.append(line)
        raise AssertionError("the shell ended:\n" + "".join(lines))

    def run(self, block, known):
        """What the block prints, and which of its commands failed."""
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
        """Whatever is left of its session, and who made itself one but stayed in its place; after a failure that is all of it."""
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
        """Everything it started ends in peace."""
        self.type("trap - ERR; kill $(jobs -p); wait")
        self.process.stdin.close()
        self.process.wait(30 * SLOW)
        self.process.stdout.close()
