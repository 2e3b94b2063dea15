"""The tests' hand inside the machine: runs what comes over the virtio port `channel` as lines of JSON and answers each.

    {"id": 7, "command": "systemctl is-active berth-agent", "user": null, "limit_s": 60}
    {"id": 7, "code": 0, "out": "active\\n", "err": ""}

    {"id": 8, "method": "GET", "path": "/v1/nodes", "body": null, "limit_s": 60}
    {"id": 8, "code": 200, "out": "{...}", "err": ""}

The second form asks the berth server here, which costs a fraction of a command where every instruction is emulated.
`user` null is this service itself, as root; a name is a login of that user: a PAM session with a scope of its own, as over ssh.
Commands run beside each other. Output goes to files, so that what a command leaves running holds up nobody. One that takes longer
than its limit is killed with its process group and answered with code null. The first line, after every boot, is
{"boot": BOOT_ID}."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

PORT = "/dev/virtio-ports/channel"
OUTPUT_BYTES_MAX = 1 << 20
# Our own exemption from the OOM killer is not for what we start.
ORDINARY = "echo 0 > /proc/self/oom_score_adj\n"


def ordinary():
    pathlib.Path("/proc/self/oom_score_adj").write_text("0")


def text_of(file):
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - OUTPUT_BYTES_MAX))
    return file.read().decode(errors="replace")


def run(asked):
    """Without a function of ours between fork and exec nothing of this process is copied: half of what a small command costs."""
    argv = ["su", "--login", asked["user"], "--command", asked["command"]] if asked["user"] else ["bash", "-c", ORDINARY + asked["command"]]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                   preexec_fn=ordinary if asked["user"] else None)
        try:
            code = process.wait(asked["limit_s"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        return {"id": asked["id"], "code": code, "out": text_of(out), "err": text_of(err)}


def ask(asked):
    """One request; a server that cannot be reached is code 0."""
    connection = http.client.HTTPConnection("127.0.0.1", 7420, timeout=asked["limit_s"])
    try:
        connection.request(asked["method"], asked["path"], asked["body"])
        answer = connection.getresponse()
        return {"id": asked["id"], "code": answer.status, "out": answer.read().decode(errors="replace"), "err": ""}
    except (OSError, http.client.HTTPException) as error:
        return {"id": asked["id"], "code": 0, "out": "", "err": str(error)}
    finally:
        connection.close()


def main():
    while not os.path.exists(PORT):
        time.sleep(0.1)
    port = open(PORT, "r+b", buffering=0)
    lock = threading.Lock()

    def tell(answer):
        data = json.dumps(answer).encode() + b"\n"
        with lock:
            while data:
                data = data[port.write(data):]

    tell({"boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()})
    pending = b""
    while True:
        data = port.read(65536)
        if not data:  # nobody at the other end
            time.sleep(0.1)
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            asked = json.loads(line)
            threading.Thread(target=lambda asked=asked: tell(run(asked) if "command" in asked else ask(asked)), daemon=True).start()


main()
