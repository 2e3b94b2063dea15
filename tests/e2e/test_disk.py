"""The agent's disk: what jobs leave on it, and what happens when it is full. The small disk is a real file system that only the agent and
its descendants see."""
import contextlib
import os
import pathlib
import shutil

from harness import eventually
from test_agent import GATE, AgentCase

NO_DISK_LEVEL = "resources: {disk_warning_pct: 0, disk_danger_pct: 0}\n"


def size_of(directory):
    """The disk space of everything below a directory, in bytes."""
    total = 0
    for place, directories, files in os.walk(directory):  # which ignores directories that vanish meanwhile
        for name in directories + files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


class Disk(AgentCase):
    def small(self, server, size="4m", **settings):
        """An agent whose data is on a file system of that size, and that directory's path as seen from outside."""
        where = self.dir / "small"
        where.mkdir()
        script = f'mount -t tmpfs -o size={size},mode=0700 small "{where}" && exec "$@"'
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        agent = self.agent(server, data_dir="small", prefix=(*unshare, "sh", "-c", script, "sh"), **settings)
        return agent, pathlib.Path(f"/proc/{agent.process.pid}/root") / str(where).lstrip("/")

    def free(self, inside):
        fs = os.statvfs(inside)
        return fs.f_bavail * fs.f_frsize

    def test_scratch_files_go_with_their_job(self):
        server = self.start()
        agent = self.agent(server, log_level="info")
        jobs = [self.run_task(server, "head -c 5000000 /dev/zero > scratch; mkdir -p a/b; touch a/b/c; echo kept", queue_ms=60000)
                for _ in range(20)]
        for job in jobs:
            self.assertEqual(self.ended(server, job)["result"]["tail"], "kept\n")
        eventually("the jobs' files are removed", lambda: size_of(agent.dir / "runs") < 1000000)
        logs = self.ok(server.get(f"/v1/jobs/{jobs[0]['job_id']}/logs"))
        self.assertEqual(logs["text"], "kept\n")

    def test_a_job_that_fills_the_disk(self):
        """The ends of this job and of others are recorded and reported although the disk is full, and later there is room again."""
        server = self.start()
        agent, inside = self.small(server, config=NO_DISK_LEVEL)
        others = [self.run_task(server, GATE.format(gate=self.dir / "gate") + "; echo other; exit 3", max_attempts=1) for _ in range(2)]
        hog = self.run_task(server, "cat /dev/zero > scratch; echo full; " + GATE.format(gate=self.dir / "end"), max_attempts=1)
        for job in (*others, hog):
            self.running(server, job)
        eventually("the disk is full", lambda: self.free(inside) == 0)
        (self.dir / "gate").touch()
        for job in others:
            found = self.ended(server, job)
            self.assertEqual((found["reason"], found["result"]["tail"]), ("EXIT_3", "other\n"), found)
        (self.dir / "end").touch()
        self.assertEqual(self.ended(server, hog)["state"], "DONE")
        self.assertSlots(server, "a1", 0, 0)
        eventually("the job's scratch file is removed", lambda: self.free(inside) > 3000000)
        self.assertEqual(self.ended(server, self.run_task(server, "echo next"))["result"]["tail"], "next\n")
        self.assertEqual(agent.stop(), 0)

    def test_a_full_disk_is_a_level(self):
        server = self.start()
        agent, inside = self.small(server)
        self.assertEqual(self.ended(server, self.run_task(server, "true"))["state"], "DONE")
        with open(inside / "filler", "wb") as filler:
            filler.write(bytes(self.free(inside) - 40960))

        def card():
            return self.ok(server.get("/v1/cluster/status"))["servers"]["a1"]

        eventually("the level is danger", lambda: card()["level"] == "danger")
        self.assertEqual(card()["tripped"], "disk")
        self.assertEqual((card()["disk_total_gb"], card()["disk_free_gb"]), (0, 0))
        answer = self.task(server, type="dev", command="true")
        self.assertEqual(answer.status, 503, str(answer))
        self.assertIn("by=disk", agent.events("level.change")[-1])
        os.unlink(inside / "filler")

    def test_the_directory_of_runs_is_removed(self):
        """The directory is removed while the agent runs, and is made again for the next run."""
        server = self.start()
        agent = self.agent(server)
        self.assertEqual(self.ended(server, self.run_task(server, "true"))["state"], "DONE")
        shutil.rmtree(agent.dir / "runs")
        for _ in range(3):
            self.assertEqual(self.ended(server, self.run_task(server, "pwd"))["result"]["exit_code"], 0)
        self.assertTrue((agent.dir / "runs").is_dir())
        self.assertEqual(agent.stop(), 0)
        self.agent(server)  # the next agent can use it
