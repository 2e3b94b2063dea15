#!/usr/bin/env python3
"""A berth client with Python's standard library alone.

    client.py run TYPE COMMAND      start a task, wait for its end, print what it printed
    client.py why JOB_ID            why it went to its node, or to none
    client.py events [COUNT]        follow what happens; takes up where it left when cut off

BERTH_ADDR is the server (http://127.0.0.1:7420), BERTH_TOKEN a token if it wants one."""
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

ADDR = os.environ.get("BERTH_ADDR", "http://127.0.0.1:7420")


class Refused(Exception):
    """The server said no; .problem tells why."""

    def __init__(self, problem):
        super().__init__(f"{problem['error']}: {problem['detail']}")
        self.problem = problem


def request(method, path, body=None, headers=None, seconds=60):
    headers = {"Content-Type": "application/json", **(headers or {})}
    if os.environ.get("BERTH_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["BERTH_TOKEN"]
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(ADDR + path, data, headers, method=method), timeout=seconds)


def call(method, path, body=None, headers=None, tries=10):
    """One answer. Tried again while there is none, or the server asks to come back later: what must not happen
    twice carries an Idempotency-Key."""
    for left in reversed(range(tries)):
        try:
            with request(method, path, body, headers) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            if error.code not in (429, 503, 504) or not left:
                raise Refused(problem) from None
            time.sleep(float(error.headers.get("Retry-After", 1)))
        except OSError:
            if not left:
                raise
            time.sleep(1)


def run(type_, command):
    task = {"type": type_, "command": command, "queue_ms": "60s"}
    job = call("POST", "/v1/dispatch/task", task, {"Idempotency-Key": str(uuid.uuid4())})
    while job.get("state") not in ("DONE", "FAILED"):
        job = call("GET", f"/v1/jobs/{job['job_id']}?wait=30s")
    print((job["result"] or {}).get("tail", ""), end="")
    if job["state"] == "FAILED":
        print(f"{job['job_id']} failed: {job['reason']}", file=sys.stderr)
    return 0 if job["state"] == "DONE" else 1


def why(job_id):
    for decision in call("GET", f"/v1/jobs/{job_id}/explain")["decisions"]:
        print(f"attempt {decision['attempt_id']}: {decision['outcome']}")
        for node in decision["nodes"]:
            print(f"  {node['node_id']}: {node['reason']}: {node['detail']}")
    return 0


def events(count=None):
    last_id, name, seen = None, None, 0
    while True:
        try:
            with request("GET", "/v1/events", headers={"Last-Event-ID": last_id} if last_id else None) as stream:
                for line in (raw.decode().rstrip("\n") for raw in stream):
                    key, _, value = line.partition(": ")
                    if key == "id":
                        last_id = value
                    elif key == "event":
                        name = value
                    elif key == "data":
                        print(name, value, flush=True)
                        seen += 1
                        if count and seen >= int(count):
                            return 0
        except OSError:
            time.sleep(1)


if __name__ == "__main__":
    commands = {"run": run, "why": why, "events": events}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    try:
        sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
    except Refused as no:
        print(no, file=sys.stderr)
        if "job_id" in no.problem:
            why(no.problem["job_id"])
        sys.exit(5)
