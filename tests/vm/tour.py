"""Types the README's blocks as a newcomer would, in a checkout that has been built. Runs in the machine, as the user who is logged in.

    python3 tour.py CHECKOUT               in a copy of it; `make run` is `berth dev` there
    python3 tour.py --running CHECKOUT     in the checkout itself, where `make run` already runs

fences.py explains the kinds of blocks."""
import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import urllib.request

checkout = pathlib.Path(sys.argv[-1]).resolve()
running = "--running" in sys.argv
elsewhere = ("make test", "make run") if running else ("make test",)
os.environ["BERTH_BIN"] = str(checkout / "build" / "berth")
sys.path.insert(0, str(checkout / "tests" / "e2e"))
from fences import Shell, fences, pattern_of  # noqa: E402  (it asks for BERTH_BIN)
from harness import calm_machine  # noqa: E402


def agent_is_there():
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen("http://127.0.0.1:7420/v1/nodes") as answer:
            if any(node["reached_by"] == "websocket" for node in json.load(answer)["nodes"]):
                return
        time.sleep(0.5)


def typed(shell, found):
    known = {}
    for at, fence in enumerate(found):
        if fence.kind != "sh":
            continue
        if "berth job submit" in fence.text:
            agent_is_there()
        text = "\n".join(line for line in fence.text.splitlines() if not line.startswith(elsewhere))
        printed, failed = shell.run(text, known)
        expected = found[at + 1] if at + 1 < len(found) else None
        if expected is not None and expected.kind == "text" and expected.follows:
            match = pattern_of(expected.text, known).fullmatch(printed)
            if not match:
                sys.exit(f"{fence}\n{text}\nexpected:\n{expected.text}\ngot:\n{printed}\n\n{shell.log()[-4000:]}")
            known.update(match.groupdict())
        elif failed:
            sys.exit(f"{fence}\n{text}\nprinted:\n{printed}\n{failed}\n\n{shell.log()[-4000:]}")
        print(f"{fence} typed", flush=True)


with tempfile.TemporaryDirectory() as place:
    place = pathlib.Path(place)
    if running:
        (place / "here").symlink_to(checkout)
    else:
        shutil.copytree(checkout, place / "here")
    # Commands keep an emulated machine busy, so berth measures a simulated idle one. And the node that is only registered is not removed,
    # however long the commands take.
    patient = {"BERTH_HEARTBEAT_STALE_MS": "600000", "BERTH_VIEW_DROP_MS": "600000"}
    shell = Shell(place, {"BERTH_HOST_ROOT": calm_machine(place), **patient}, {"make run": "berth dev"})
    try:
        typed(shell, fences(checkout / "README.md"))
        shell.close()
    finally:
        shell.kill()
