"""Pages for operators: every command line in them is one the program takes, every setting and metric they
name exists, every file they point to is there."""
import re
import shlex
import unittest

from harness import ROOT, berth

PAGES = sorted((ROOT / "docs").glob("*.md")) + [ROOT / "ARCHITECTURE.md", ROOT / "PROTOCOL.md"]


def command_lines(text):
    """Lines of code that call berth, without what a shell makes of them."""
    for line in re.findall(r"^(?: {4,}|```sh\n)(.*berth .*)$", text, re.M):
        line = line.split("  #")[0]
        for part in re.split(r"[|;&]+|\$\(", line):
            words = part.strip().removeprefix("sudo ").removeprefix("-u berth ").strip()
            if words.startswith("berth "):
                yield re.split(r"\s[<>]", words)[0].rstrip(")")


class Pages(unittest.TestCase):
    def test_every_command_exists_with_its_flags(self):
        known, seen = {}, 0
        for page in PAGES:
            for line in command_lines(page.read_text()):
                words = shlex.split(line, comments=True)[1:]
                if "--" in words:
                    words = words[:words.index("--")]
                names = []
                for word in words:
                    if word.startswith("-") or len(names) == 2 or not word.isalpha() or not word.islower():
                        break
                    names.append(word)
                while names and tuple(names) not in known:
                    done = berth(*names, "--help")
                    if done.returncode == 0 and (len(names) < 2 or f"berth {' '.join(names)}" in done.stdout):
                        known[tuple(names)] = done.stdout
                    else:
                        names.pop()
                self.assertTrue(names, f"{page.name}: {line}")
                seen += 1
                for flag in (word.split("=")[0] for word in words if word.startswith("--")):
                    self.assertIn(flag, known[tuple(names)], f"{page.name}: {line}")
        self.assertGreater(seen, 30)

    def test_every_link_leads_somewhere(self):
        for page in PAGES:
            for name in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
                self.assertTrue((page.parent / name).exists(), f"{page.name} points to {name}")

    def test_every_metric_and_limit_exists(self):
        source = "".join((ROOT / "src" / name).read_text()
                         for name in ("base/metrics.h", "base/metrics.c", "server/api_metrics.c"))
        flags = berth("server", "--help").stdout + berth("agent", "--help").stdout
        for page in PAGES:
            for name in re.findall(r"`(berth_[a-z_]+)[`{]", page.read_text()):
                self.assertIn(f'"{name}"', source, page.name)
        for name in re.findall(r"\| `([a-z_]+)`", (ROOT / "docs/install.md").read_text().split("## Limits")[1]):
            self.assertIn("--" + name.replace("_", "-"), flags)
