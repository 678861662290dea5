"""Real sshds for tests: on a free port, with their own keys and settings, and a proxy before them that delays, freezes
and cuts. `SshServer(folder, ...)` has the ssh configuration of a laptop in `folder/laptop/.ssh/config`."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from waiting import wait_until

SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
_BLOCK = 1 << 16


class Proxy:
    """A TCP proxy on a free port. It passes bytes on until a test cuts or freezes it."""

    def __init__(self, port: int, *, delay_s: float = 0.0) -> None:
        self._to, self.delay_s = port, delay_s
        self.is_frozen = self.refuses = False
        #: Called with every block: ("up" to the server or "down" from it, the bytes so far in that direction).
        self.watch: Callable[[str, int], None] = lambda way, count: None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections at once, as a network that is gone and came back."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self) -> None:
        self.refuses = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            self.connections += 1
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
            for way, source, target in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._pass_on, args=(way, source, target), daemon=True).start()

    def _pass_on(self, way: str, source: socket.socket, target: socket.socket) -> None:
        count = 0
        try:
            while data := source.recv(_BLOCK):
                while self.is_frozen:
                    time.sleep(0.02)
                if self.delay_s:
                    time.sleep(self.delay_s)
                count += len(data)
                self.watch(way, count)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class SshServer:
    """An sshd that logs this user in by key, behind a proxy. `home` is the home directory of the login node."""

    def __init__(
        self, folder: Path, environ: Mapping[str, str], *, settings: str = "", banner: str = "", command: str = ""
    ) -> None:
        assert SSHD, "openssh-server is not installed; `make packages` does it"
        self.folder, self.home, self.laptop = folder, folder / "cluster-home", folder / "laptop"
        for path in (folder, self.home, self.laptop / ".ssh"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.host_key = self._make_key("host_key")
        self.user_key = self._make_key("user_key")
        (folder / "authorized_keys").write_text(f"{self.user_key}.pub" and Path(f"{self.user_key}.pub").read_text())
        kept = {name: environ[name] for name in ("SLURM_CONF", "LD_LIBRARY_PATH") if name in environ}
        # HOME is set by sshd itself; a wrapper gives every session the home of the login node.
        wrapper = folder / "session"
        exports = "".join(
            f"export {name}='{value}'\n" for name, value in {**kept, **self.session_environment()}.items()
        )
        noise = f"printf '%s' '{banner}'\n" if banner else ""
        last = command or 'exec ${SHELL:-/bin/sh} -c "$SSH_ORIGINAL_COMMAND"'
        wrapper.write_text(f'#!/bin/sh\n{exports}cd "$HOME"\n{noise}{last}\n')
        wrapper.chmod(0o755)
        (folder / "sshd_config").write_text(
            f"HostKey {self.host_key}\nPidFile {folder}/sshd.pid\nAuthorizedKeysFile {folder}/authorized_keys\n"
            "UsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin yes\nForceCommand {wrapper}\nPrintMotd no\n{settings}"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.start()
        self.proxy = Proxy(self.port)
        self.write_laptop_config()

    def session_environment(self) -> dict[str, str]:
        path = os.pathsep.join((os.path.dirname(os.path.realpath(sys.executable)), "/usr/bin", "/bin", "/usr/sbin"))
        return {
            "HOME": str(self.home),
            "PATH": path,
            "SHELL": "/bin/bash",
            "SHOAL_SUBMIT_GRACE_S": "3",
            "SHOAL_LEASE_S": "12",
        }

    def start(self) -> None:
        assert SSHD
        argv = [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]
        argv += ["-p", str(self.port), "-o", "ListenAddress=127.0.0.1"]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_until(self._answers, 10, "sshd listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.proxy.close()
        self.stop()

    def write_laptop_config(self, *, known: bool = True) -> None:
        """The user's own ssh configuration, with the host of this cluster and its key."""
        known_hosts = self.laptop / ".ssh" / "known_hosts"
        key = Path(f"{self.host_key}.pub").read_text().split()
        known_hosts.write_text(f"[127.0.0.1]:{self.proxy.port} {key[0]} {key[1]}\n" if known else "")
        (self.laptop / ".ssh" / "config").write_text(
            f"Host galvani\n  HostName 127.0.0.1\n  Port {self.proxy.port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {self.user_key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n"
            "  StrictHostKeyChecking yes\n"
        )

    def laptop_environment(self) -> dict[str, str]:
        """ssh reads the configuration of the user's entry in passwd, whatever HOME is: a wrapper names the file."""
        programs = self.laptop / "bin"
        programs.mkdir(exist_ok=True)
        real = shutil.which("ssh")
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {self.laptop}/.ssh/config "$@"\n')
        (programs / "ssh").chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        runtime = self.laptop / "run"
        runtime.mkdir(exist_ok=True, mode=0o700)
        return {"HOME": str(self.laptop), "PATH": path, "XDG_RUNTIME_DIR": str(runtime)}

    def sessions(self) -> list[int]:
        """Processes of the login node that hold a session open: those that sshd started for somebody."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if f"HOME={self.home}\0".encode() in environ and b"SSH_CONNECTION=" in environ:
                found.append(int(name))
        return found

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _make_key(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path

    def change_host_key(self) -> None:
        self.stop()
        for path in (self.host_key, Path(f"{self.host_key}.pub")):
            path.unlink()
        self._make_key("host_key")
        self.start()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
