"""An OpenSSH server for one test, on a free loopback port, with its own keys."""
import os
import pathlib
import shutil
import subprocess

from harness import clean_env, eventually, live
from redis import free_port


def sshd_program():
    """The path of sshd, which must be started by its full path. None if it is not installed."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """Accepts this user with the key of `ssh_config`; the session has `env` in its environment."""

    def __init__(self, directory, host, env):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir()
        port = free_port()
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.dir / name], check=True)
        (self.dir / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {self.dir}/host\nAuthorizedKeysFile {self.dir}/key.pub\nPidFile none\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\n"
            "SetEnv " + " ".join(f"{name}={value}" for name, value in env.items()) + "\n")
        key = (self.dir / "host.pub").read_text()
        (self.dir / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
        self.ssh_config = self.dir / "ssh_config"
        self.ssh_config.write_text(f"Host {host}\n HostName 127.0.0.1\n Port {port}\n IdentityFile {self.dir}/key\n IdentitiesOnly yes\n"
                                   f" UserKnownHostsFile {self.dir}/known_hosts\n BatchMode yes\n")
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd needs this directory, which its package creates at boot
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", sshd_program(), "-D", "-e", "-f", self.dir / "sshd_config"],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_env())
        live.add(self.process)
        eventually("sshd listens", lambda: "Server listening" in (self.dir / "log").read_text())

    def close(self):
        self.process.terminate()
        self.process.wait()
        live.discard(self.process)
