"""The tests' end inside the machine: runs the commands that come over the virtio port `channel` as lines of JSON, and answers each.

    {"id": 7, "command": "systemctl is-active berth-agent", "user": null, "limit_s": 60}
    {"id": 7, "code": 0, "out": "active\\n", "err": ""}

    {"id": 8, "method": "GET", "path": "/v1/nodes", "body": null, "limit_s": 60}
    {"id": 8, "code": 200, "out": "{...}", "err": ""}

The second form is a request to the berth server in the machine, which is much cheaper than a command where instructions are emulated.
`user` null runs the command as this service, as root; a name runs it in a login of that user: a PAM session with its own scope, as
over
ssh. Commands run in parallel. Output goes to files, so that processes which a command leaves running delay nothing. A command that
takes
longer than its limit is killed with its process group and answered with code null. After every boot the first line is {"boot":
BOOT_ID}."""
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
# This service is exempt from the OOM killer; what it starts is not.
ORDINARY = "echo 0 > /proc/self/oom_score_adj\n"


def ordinary():
    pathlib.Path("/proc/self/oom_score_adj").write_text("0")


def text_of(file):
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - OUTPUT_BYTES_MAX))
    return file.read().decode(errors="replace")


def run(asked):
    """Runs a command. Without preexec_fn Python need not copy this process (vfork), which saves half the cost of a small command."""
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
    """Sends one request; code 0 means that the server could not be reached."""
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
        if not data:  # the port has no reader on the host
            time.sleep(0.1)
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            asked = json.loads(line)
            threading.Thread(target=lambda asked=asked: tell(run(asked) if "command" in asked else ask(asked)), daemon=True).start()


main()
