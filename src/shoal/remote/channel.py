"""One connection to the program on the cluster (stub.py): requests with ids, replies, and a deadline for every wait."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from shoal.errors import DiskError, InputError, ShoalError
from shoal.remote import stub
from shoal.remote.ssh import CONNECT_TIMEOUT_S, HostUnreachableError, RemoteHost, channel_argv, connection_error

#: From the start of ssh to the first frame: ProxyJumps, and login shells that load modules.
HELLO_DEADLINE_S = 4 * CONNECT_TIMEOUT_S
#: The other side says something at least every stub.TICK_S while it works.
SILENCE_S = 20.0
#: Installing is one request without ticks.
INSTALL_DEADLINE_S = 55.0
_BLOCK = 1 << 16
_FRAME = 1 << 18
#: The first words on the cluster; fixed, without quotes inside, for any login shell. Python reads 8 digits, then the
#: program of that length, byte by byte: what follows are frames.
_LOADER = (
    "exec /bin/sh -c 'for p in python3 /usr/libexec/platform-python /opt/conda/bin/python3; do "
    "if command -v $p >/dev/null 2>&1; then exec $p -I -c "
    '"import os;exec(bytes().join(os.read(0,1) for _ in range(int(bytes().join(os.read(0,1) for _ in range(8))))))"'
    "; fi; done; echo shoal-no-python >&2'"
)


class LostConnectionError(HostUnreachableError):
    """The connection broke after it was there. The same request can be given again."""


class Reply(NamedTuple):
    head: Mapping[str, Any]
    body: bytes


class RemoteChannel:
    """An open channel; `with` ends it. Each request waits for its own replies, in turn."""

    def __init__(self, remote: RemoteHost) -> None:
        self.remote = remote
        self._mark = secrets.token_hex(16).encode()
        self._reader = stub.FrameReader(self._mark)
        self._waiting: list[Reply] = []
        self._requests = 0
        self._errors = b""
        self._ticked = time.monotonic()
        self._ssh = subprocess.Popen(
            channel_argv(remote, _LOADER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which then says so on this channel
        )
        self._selector = selectors.DefaultSelector()
        for stream in (self._ssh.stdout, self._ssh.stderr):
            assert stream is not None  # noqa: S101
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        assert self._ssh.stdin is not None  # noqa: S101
        os.set_blocking(self._ssh.stdin.fileno(), False)
        try:
            program = _stub_program() + f"\nraise SystemExit(main({self._mark.decode()!r}))\n".encode()
            deadline_s = float(os.environ.get("SHOAL_SSH_HELLO_S") or HELLO_DEADLINE_S)
            self._write(b"%08d%s" % (len(program), program), deadline_s)
            self.hello = self._receive(deadline_s).head
        except BaseException:
            self.close()
            raise
        if self.hello.get("hello") != stub.PROTOCOL:
            self.close()
            raise HostUnreachableError(f"{remote.profile} answers with another protocol", hint=remote.connect_hint)

    @property
    def noise(self) -> bytes:
        """What stood on the channel and is no frame: banners."""
        return self._reader.noise

    def ask(self, do: str, body: bytes = b"", *, deadline_s: float = SILENCE_S, **fields: Any) -> Mapping[str, Any]:
        """One request and its reply; what is refused there is raised here."""
        number = self.begin(do, body, **fields)
        return next(reply.head for reply in self.replies(number, deadline_s=deadline_s))

    def begin(self, do: str, body: bytes = b"", **fields: Any) -> int:
        """Send a request; its number."""
        self._requests += 1
        try:
            frame = stub.encode_frame(self._mark, {"do": do, "id": self._requests, **fields}, body)
        except ValueError as error:
            raise InputError(f"too much for one request to {self.remote.profile}: {error}", hint="shorten it") from None
        self._write(frame, SILENCE_S)
        return self._requests

    def send(self, do: str, body: bytes = b"") -> None:
        """Send something that has no reply."""
        self._write(stub.encode_frame(self._mark, {"do": do}, body), SILENCE_S)

    def replies(self, number: int, *, deadline_s: float = SILENCE_S) -> Iterator[Reply]:
        """All replies to a request; an error of the other side is raised."""
        while True:
            reply = self._receive(deadline_s)
            if reply.head.get("id") != number or reply.head.get("tick"):
                continue
            if "error" in reply.head:
                raise _refused(self.remote, reply.head)
            yield reply

    def close(self) -> None:
        self._selector.close()
        for stream in (self._ssh.stdin, self._ssh.stdout, self._ssh.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        if self._ssh.poll() is None:
            try:
                self._ssh.wait(0.5)
            except subprocess.TimeoutExpired:
                self._ssh.terminate()
                try:
                    self._ssh.wait(2)
                except subprocess.TimeoutExpired:
                    self._ssh.kill()
                    self._ssh.wait()

    def __enter__(self) -> RemoteChannel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def _receive(self, deadline_s: float) -> Reply:
        """The next frame; a LostConnectionError if nothing at all comes in time."""
        until = time.monotonic() + deadline_s
        while not self._waiting:
            left = until - time.monotonic()
            if left <= 0:
                raise self._lost(f"{self.remote.host} did not answer for {deadline_s:g} s")
            if time.monotonic() - self._ticked > SILENCE_S and hasattr(self, "hello"):
                self._ticked = time.monotonic()
                self._write(stub.encode_frame(self._mark, {"tick": 1}), deadline_s)
            for key, _ in self._selector.select(min(left, 1.0)):
                self._read(key.fileobj)
        return self._waiting.pop(0)

    def _read(self, stream: Any) -> None:
        try:
            data = os.read(stream.fileno(), _BLOCK)
        except BlockingIOError:
            return
        if self._ssh.stderr is not None and stream is self._ssh.stderr:
            self._errors = (self._errors + data)[-8000:]
            if not data:
                self._selector.unregister(self._ssh.stderr)
            return
        if not data:
            raise self._lost("the connection ended")
        try:
            self._waiting += [Reply(head, body) for head, body in self._reader.feed(data)]
        except ValueError as error:
            raise self._lost(f"{self.remote.host} sent {error}") from None

    def _write(self, data: bytes, deadline_s: float) -> None:
        """Send all of it, and read meanwhile, so that neither side waits for the other."""
        assert self._ssh.stdin is not None  # noqa: S101
        rest, until = memoryview(data), time.monotonic() + deadline_s
        with selectors.DefaultSelector() as writable:
            writable.register(self._ssh.stdin, selectors.EVENT_WRITE)
            while rest:
                if time.monotonic() > until:
                    raise self._lost(f"{self.remote.host} took nothing for {deadline_s:g} s")
                for key, _ in self._selector.select(0):
                    self._read(key.fileobj)
                if not writable.select(0.2):
                    continue
                try:
                    count = os.write(self._ssh.stdin.fileno(), rest[:_FRAME])
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._lost("the connection ended") from None
                rest, until = rest[count:], time.monotonic() + deadline_s

    def _lost(self, why: str) -> HostUnreachableError:
        """Why there is no connection (any more), by what ssh wrote, if that tells it."""
        text = self._drain()
        if "shoal-no-python" in text:
            return HostUnreachableError(
                f"no python3 on {self.remote.host}: shoal needs Python {_wanted_python()} or later there",
                hint="make python3 available in ~/.bashrc on the cluster, for example: module load python",
            )
        if hasattr(self, "hello"):
            return LostConnectionError(
                f"lost the connection to {self.remote.profile}: {why}", hint=self.remote.connect_hint
            )
        return connection_error(self.remote, text, why)

    def _drain(self) -> str:
        """The rest of what ssh writes before it ends."""
        assert self._ssh.stderr is not None  # noqa: S101
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            try:
                data = os.read(self._ssh.stderr.fileno(), _BLOCK)
            except BlockingIOError:
                if self._ssh.poll() is not None:
                    break
                time.sleep(0.02)
                continue
            except (OSError, ValueError):
                break
            if not data:
                break
            self._errors = (self._errors + data)[-8000:]
        return self._errors.decode("utf-8", "replace")


def _wanted_python() -> str:
    return ".".join(map(str, stub.MIN_PYTHON))


@cache
def _stub_program() -> bytes:
    return Path(stub.__file__).read_bytes()


def _refused(remote: RemoteHost, head: Mapping[str, Any]) -> ShoalError:
    """An error of the other side, with the exit code that it would have there."""
    kinds: dict[int, type[ShoalError]] = {2: InputError, 74: DiskError}
    kind = kinds.get(head.get("code", 1), ShoalError)
    hint = head.get("hint")
    return kind(
        f"{remote.profile}: {head['error']}",
        hint=None if hint is None else str(hint).replace("clusters.X", f"clusters.{remote.profile}"),
    )
