"""A virtual machine with a real Debian 12: systemd, control groups v2, PAM, two processors. Starts it, runs commands in it, reboots it,
ends it. Its disk is the cached image plus changes, which last as long as the machine and survive its reboots.

qemu emulates unless KVM works, about ten times slower than hardware, so tests wait for conditions, not for times."""
import ctypes
import json
import os
import pathlib
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BOOT_S = 600
PR_SET_PDEATHSIG = 1  # the machine ends with the process that started it
QEMU = "qemu-system-x86_64"
# Emulation costs a quarter less without vector instructions, which the C library would otherwise use everywhere.
ACCELERATORS = {"tcg": ("-accel", "tcg,thread=multi", "-cpu", "qemu64"), "kvm": ("-accel", "kvm", "-cpu", "max")}
# Emulated processors count the cycles of the real one. Without these options Linux would read the time from a device, which is a slow
# system call.
CLOCKS = {"tcg": " tsc=reliable clocksource=tsc", "kvm": ""}


class Hung(Exception):
    """The machine does not answer; only a reset helps."""


class Failed(AssertionError):
    """A command in the machine ended with a code other than 0."""


class Result:
    def __init__(self, command, answer):
        self.command, self.code, self.out, self.err = command, answer["code"], answer["out"], answer["err"]

    @property
    def json(self):
        return json.loads(self.out)

    def __str__(self):
        code = "it took too long" if self.code is None else f"exit code {self.code}"
        return f"$ {self.command}\n{self.out}{self.err}{code}"


def image():
    """The directory of the image, which is made if it does not exist."""
    return pathlib.Path(subprocess.run([HERE / "image"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


def disk(path, size_mb, *make):
    """Makes a sparse file of that size, and runs `make` on it."""
    with open(path, "ab") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(size_mb << 20)
    if make:
        subprocess.run([*make, path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, "PATH": f"{os.environ['PATH']}:/sbin:/usr/sbin"})


def accelerator(image):
    """`kvm` if KVM runs the kernel of the image until it panics (there is no disk), else `tcg`. Some machines have a /dev/kvm that cannot
    start anything, so it is tried once for each image."""
    known = image / "accel"
    if not known.exists():
        works = False
        if os.access("/dev/kvm", os.R_OK | os.W_OK):
            try:
                works = subprocess.run([QEMU, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot",
                                        "-kernel", image / "vmlinuz", "-append", "panic=-1"], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10).returncode == 0
            except subprocess.TimeoutExpired:
                pass
        known.write_text("kvm" if works else "tcg")
    return known.read_text()


class Machine:
    """`files` is a disk that the machine can mount as /mnt, read only, once it has contents. `log` gets every command with its output,
    `console` the messages of the kernel and of systemd."""

    def __init__(self, files, log, console, memory_mb=2048, swap_mb=1024, loud=False):
        if not shutil.which(QEMU):
            raise SystemExit(f"there is no {QEMU}; run tools/install-packages test")
        self.image, self.files = image(), files
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="berth-vm-"))
        self.log, self.console, self.loud = open(log, "w"), console, loud
        self.process, self.mounted = None, False
        self.asked = 0
        self.answers = {}
        self.boots = queue.Queue()
        self.lock = threading.Lock()
        try:
            disk(self.work / "swap", swap_mb, "mkswap")
            self.start(memory_mb)
        except BaseException:
            self.close()
            raise

    def start(self, memory_mb):
        ends = {name: socket.socket(socket.AF_UNIX) for name in ("channel", "monitor")}
        accel = accelerator(self.image)
        # snapshot: writes go to an unlinked file, which vanishes when qemu ends.
        drives = [f"file={path},if=virtio,format=raw,cache=unsafe,snapshot={snapshot}" for path, snapshot in
                  ((self.image / "root.img", "on"), (self.files, "on"), (self.work / "swap", "off"))]
        self.process = subprocess.Popen(
            [QEMU, "-name", "berth-tests", *ACCELERATORS[accel], "-smp", "2",
             "-m", str(memory_mb), "-nodefaults", "-display", "none", "-kernel", self.image / "vmlinuz", "-initrd", self.image / "initrd.gz",
             "-append", "console=ttyS0 quiet loglevel=4 systemd.show_status=0 panic=10 mitigations=off modprobe.blacklist=kvm_amd,powernow_k8,ata_piix"
             + CLOCKS[accel],
             "-chardev", f"socket,id=console,path={self.work}/console,server=on,wait=off,logfile={self.console}", "-serial", "chardev:console",
             "-chardev", f"socket,id=channel,path={self.work}/channel,server=on,wait=off",
             "-device", "virtio-serial", "-device", "virtserialport,chardev=channel,name=channel",
             "-qmp", f"unix:{self.work}/monitor,server=on,wait=off",
             *(word for drive in drives for word in ("-drive", drive))],
            # In a session of its own Linux schedules the machine fairly against the other test programs, which share a session.
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.work / "qemu", "w"),
            env={**os.environ, "TMPDIR": str(self.work)}, preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        for name, end in ends.items():
            while True:
                try:
                    end.connect(f"{self.work}/{name}")
                    break
                except (FileNotFoundError, ConnectionRefusedError):
                    if self.process.poll() is not None:
                        raise SystemExit("qemu ended: " + (self.work / "qemu").read_text()) from None
                    time.sleep(0.02)
        self.channel, self.monitor = ends["channel"], ends["monitor"].makefile("rw")
        self.monitor.readline()
        self.say("qmp_capabilities")
        threading.Thread(target=self.listen, daemon=True).start()
        self.booted()

    def say(self, command):
        """Sends a command to qemu and ignores its events."""
        self.monitor.write(json.dumps({"execute": command}) + "\n")
        self.monitor.flush()
        while "return" not in json.loads(self.monitor.readline() or '{"return": "it is gone"}'):
            pass

    def listen(self):
        for line in self.channel.makefile("rb"):
            try:
                message = json.loads(line)
            except ValueError:
                continue  # half a line, from before a reset
            if "boot" in message:
                self.boots.put(message["boot"])
            else:
                with self.lock:
                    waiting = self.answers.pop(message["id"], None)
                if waiting:
                    waiting.put(message)

    def booted(self):
        begun = time.monotonic()
        while True:
            try:
                self.boots.get(timeout=1)
                break
            except queue.Empty:
                if self.process.poll() is not None:
                    raise Hung("qemu ended: " + (self.work / "qemu").read_text()) from None
                if time.monotonic() - begun > BOOT_S:
                    raise Hung(f"the machine did not boot within {BOOT_S} s") from None
        self.note(f"--- booted in {time.monotonic() - begun:.1f} s")
        if self.mounted:
            self.sh("mount /mnt")

    def mount(self):
        """Mounts the disk of files, now and after every boot that follows."""
        self.sh("mount /mnt")
        self.mounted = True

    def note(self, text):
        self.log.write(text + "\n")
        self.log.flush()
        if self.loud:
            print(text, flush=True)

    def send(self, **asked):
        """Sends a request; returns the queue that gets its answer."""
        answer = queue.Queue()
        with self.lock:
            self.asked += 1
            number = self.asked
            self.answers[number] = answer
            self.channel.sendall(json.dumps({"id": number, **asked}).encode() + b"\n")
        return answer

    def answered(self, what, answer, limit_s):
        try:
            return Result(what, answer.get(timeout=limit_s + 120))
        except queue.Empty:
            raise Hung(f"no answer within the limit: {what}") from None

    def run(self, command, user=None, limit_s=120):
        """Runs a shell command and returns its result, whatever its code is."""
        begun, used = time.monotonic(), self.cpu_seconds()
        result = self.answered(command, self.send(command=command, user=user, limit_s=limit_s), limit_s)
        self.note(f"[{user or '-'}, {time.monotonic() - begun:.1f} s, CPU {self.cpu_seconds() - used:.1f} s] {result}")
        return result

    def sh(self, command, user=None, limit_s=120):
        """The output of a command that must succeed."""
        result = self.run(command, user, limit_s)
        if result.code != 0:
            raise Failed(str(result))
        return result.out

    def http(self, method, path, body=None, limit_s=60):
        """Sends a request to the berth server in the machine. The result's code is the status, 0 if the server cannot be reached."""
        result = self.answered(f"{method} {path}", self.send(method=method, path=path, limit_s=limit_s,
                                                             body=None if body is None else json.dumps(body)), limit_s)
        self.note(str(result) if method != "GET" else f"GET {path}: {result.code}")
        return result

    def write(self, path, text, mode="644"):
        self.sh(f"mkdir -p {shlex.quote(str(pathlib.PurePath(path).parent))} && printf %s {shlex.quote(text)} > {shlex.quote(path)} && "
                f"chmod {mode} {shlex.quote(path)}")

    def eventually(self, what, condition, limit_s=120, every_s=0.5):
        """Waits until condition() returns something true, and returns that."""
        begun = time.monotonic()
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() - begun > limit_s:
                raise AssertionError(f"not within {limit_s} s: {what}")
            time.sleep(every_s)

    def reboot(self):
        """Runs `systemctl reboot`. The machine may be down before the command is answered, so its answer is not awaited."""
        self.send(command="systemctl reboot", user=None, limit_s=60)
        self.booted()

    def power_cut(self):
        """Resets the machine: what was not on the disk is lost."""
        while not self.boots.empty():
            self.boots.get()
        self.say("system_reset")
        self.booted()

    def cpu_seconds(self):
        """The CPU time that the machine has used so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.work, ignore_errors=True)
        self.log.close()
