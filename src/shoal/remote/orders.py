"""Commands of shoal, executed on a cluster: looks, which end with their connection, and orders, which do not.

An order has a request id. It is written down here before it is sent, runs there detached from the connection, and is
given again under its id when the connection is lost, so that each run exists once whatever was lost: the order, its
answer, or the worker that executes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shoal.errors import InterruptError
from shoal.kernel import new_token
from shoal.remote.channel import LostConnectionError, RemoteChannel
from shoal.remote.code import CodeTree, send_tree
from shoal.remote.notes import OrderNote, drop_note, open_notes, write_note
from shoal.remote.package import ensure_installed, own_package
from shoal.remote.ssh import HostUnreachableError, RemoteHost

#: Pauses before a lost connection is opened again, over and over for so long; then the command ends, and can be given
#: again. With the time in which a silent connection is noticed, that is less than a minute.
_PAUSES_S = (0.2, 1.0, 2.0, 4.0)
_RECONNECT_S = 20.0
#: A look whose connection was lost sooner than this is asked once more.
_QUICK_LOSS_S = 10.0


class RemoteProject(NamedTuple):
    """A project on a cluster: where, and the interpreter that its profile names."""

    host: RemoteHost
    directory: str
    python: str | None


class RemoteCommand(NamedTuple):
    """A command of shoal: its words, the code or settings that it needs, the directory in the project where it was
    given, and variables that only shoal reads. `follows`: it ends when nobody looks on any more."""

    argv: Sequence[str]
    tree: CodeTree
    cwd: str
    variables: Mapping[str, str]
    follows: bool = False


class OutputSink(Protocol):
    """Who gets what a command writes: `stream` is out or err. `note` is about the connection."""

    def write(self, stream: str, data: bytes) -> None: ...
    def note(self, text: str) -> None: ...


def look(project: RemoteProject, command: RemoteCommand, sink: OutputSink) -> int:
    """Execute a command that changes nothing; its exit code. It is asked once more if the connection was lost before
    anything came."""
    came, began = False, time.monotonic()

    def write(head: Mapping[str, Any], data: bytes) -> None:
        nonlocal came
        came = True
        sink.write(head["stream"], data)

    for is_last in (False, True):
        try:
            with RemoteChannel(project.host) as channel:
                return _converse(channel, "look", project, command, {}, write)
        except LostConnectionError:
            if came or is_last or time.monotonic() - began > _QUICK_LOSS_S:
                raise
    raise AssertionError


def order(
    project: RemoteProject,
    command: RemoteCommand,
    sink: OutputSink,
    environ: Mapping[str, str],
    *,
    command_id: str | None = None,
    identified: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Execute a command exactly once; its exit code. `identified`: it takes --command-id, and gets the request id
    unless a person named it.

    HostUnreachableError if there is no connection; the same command then continues this order.
    """
    given = _OpenOrder(project, command, sink, environ, command_id, identified)
    while True:
        try:
            with RemoteChannel(project.host) as channel:
                given.finish_others(channel)
                return given.give(channel)
        except KeyboardInterrupt:
            raise given.interrupted() from None
        except HostUnreachableError as error:
            if not given.is_sent:
                raise
            if (pause := given.pauses.next_s(time.monotonic())) is None:
                raise given.unanswered(error) from None
            sink.note(f"{error.message}; trying again in {pause:g} s")
            try:
                sleep(pause)
            except KeyboardInterrupt:
                raise given.interrupted() from None


class ReconnectPauses:
    """How long to wait before a lost connection is opened again, and until when."""

    def __init__(self) -> None:
        self._losses, self._lost_at = 0, 0.0

    @property
    def is_counting(self) -> bool:
        return self._losses > 0

    def reset(self) -> None:
        """Something came."""
        self._losses = 0

    def next_s(self, now: float) -> float | None:
        """The next pause; None when it has been tried for long enough."""
        self._lost_at = self._lost_at if self._losses else now
        self._losses += 1
        if now - self._lost_at > _RECONNECT_S:
            return None
        return _PAUSES_S[min(self._losses, len(_PAUSES_S)) - 1]


class _OpenOrder:
    """An order from its first sending to its answer, over any number of connections."""

    def __init__(
        self,
        project: RemoteProject,
        command: RemoteCommand,
        sink: OutputSink,
        environ: Mapping[str, str],
        command_id: str | None,
        identified: bool,
    ) -> None:
        self._project, self._sink, self._environ = project, sink, environ
        host, directory = project.host, project.directory
        self._others = open_notes(host.host, directory, environ)
        wanted = OrderNote(
            "", host.profile, host.host, directory, list(command.argv), command.tree.name, command.tree.inside,
            command.cwd, time.time(),
        )  # fmt: skip
        same = next((one for one in self._others if one.meaning == wanted.meaning), None) if identified else None
        self._note = same or wanted._replace(request=new_token())
        self._others = [one for one in self._others if one.request != self._note.request]
        self._is_noted, self._needs_note = same is not None, identified
        added = [f"--command-id={self._note.request}"] if identified and command_id is None else []
        at = command.argv.index("--") if "--" in command.argv else len(command.argv)
        self._command = command._replace(argv=[*command.argv[:at], *added, *command.argv[at:]])
        self._have = {"attempt": 0, "out": 0, "err": 0}
        self.pauses = ReconnectPauses()
        self.is_sent = False

    def finish_others(self, channel: RemoteChannel) -> None:
        """Earlier orders to this project whose answers never came: learn what became of them, and complete them."""
        profile = self._project.host.profile
        while self._others:
            note = self._others[0]
            fields: dict[str, Any] = {"request": note.request, "directory": note.directory}
            found = channel.ask("outcome", **fields)
            if found["outcome"] == "open" and found["follows"]:
                # Its runs may take days: the order stays open, and nothing has to wait for it.
                self._sink.note(f"{note.describe()} has no answer yet; the same command again continues it")
            else:
                if found["outcome"] == "open":
                    self._sink.note(f"completing {note.describe()}, whose connection was lost")
                    became = self._complete(channel, fields)
                elif found["outcome"] is None:
                    became = f"never reached {profile}"
                else:
                    became = f"was completed there (exit code {found['outcome']})"
                self._sink.note(f"{note.describe()} {became}")
                drop_note(note.request, self._environ)
            self._others.pop(0)

    def _complete(self, channel: RemoteChannel, fields: Mapping[str, Any]) -> str:
        """Give an earlier order again, as the cluster has written it down; what became of it."""
        for reply in channel.replies(channel.begin("resume", **fields)):
            if "exit" in reply.head:
                return f"was completed there (exit code {reply.head['exit']})"
            if "lacks" in reply.head:
                break
        profile = self._project.host.profile
        return f"cannot be completed, because its code is gone there; shoal status --on {profile} shows what it started"

    def give(self, channel: RemoteChannel) -> int:
        """Send the order, or attach to it again from the byte that is here."""
        if self._needs_note and not self._is_noted:
            _deliver(channel, self._project, self._command)
            write_note(self._note, self._environ)
            self._is_noted = True
        self.is_sent = True
        fields = {"request": self._note.request, "follows": self._command.follows, **self._have}
        code = _converse(channel, "order", self._project, self._command, fields, self._write)
        try:
            channel.ask("received", request=self._note.request, directory=self._project.directory)
        except HostUnreachableError:
            pass  # its files stay there for a while
        drop_note(self._note.request, self._environ)
        return code

    def _write(self, head: Mapping[str, Any], data: bytes) -> None:
        self.pauses.reset()
        if head["attempt"] != self._have["attempt"]:
            if self._have["attempt"]:
                self._sink.note("the command was started again, because its process on the cluster was gone")
            self._have = {"attempt": head["attempt"], "out": 0, "err": 0}
        if head["offset"] == self._have[head["stream"]]:
            self._have[head["stream"]] += len(data)
            self._sink.write(head["stream"], data)

    def interrupted(self) -> InterruptError:
        profile = self._project.host.profile
        if not self.is_sent:
            return InterruptError("interrupted; nothing was ordered")
        if self._command.follows:
            drop_note(self._note.request, self._environ)
            return InterruptError(
                f"stopped following; the runs continue on {profile}", hint=f"shoal status --on {profile}"
            )
        return InterruptError(
            f"interrupted here; the order continues on {profile}", hint=f"shoal status --on {profile}"
        )

    def unanswered(self, error: HostUnreachableError) -> HostUnreachableError:
        """The person is told what is certain: nothing is done twice."""
        profile = self._project.host.profile
        return HostUnreachableError(
            f"{error.message}; whether {profile} has carried out the order is not known yet",
            hint=f"shoal connect {profile}   # then give the same command again: nothing starts twice",
        )


def _deliver(channel: RemoteChannel, project: RemoteProject, command: RemoteCommand) -> None:
    """Bring what an order needs before it is written down."""
    ensure_installed(channel, project.python)
    send_tree(channel, command.tree, project.directory)


def _converse(
    channel: RemoteChannel,
    do: str,
    project: RemoteProject,
    command: RemoteCommand,
    more: Mapping[str, Any],
    write: Callable[[Mapping[str, Any], bytes], None],
) -> int:
    """Send a command and pass on its output; bring what the cluster lacks for it, and send it again."""
    fields = {
        "argv": list(command.argv),
        "tree": command.tree.name,
        "inside": command.tree.inside,
        "cwd": command.cwd,
        "env": dict(command.variables),
        "directory": project.directory,
        "digest": own_package().digest,
        **more,
    }
    brought: set[str] = set()
    while True:
        number = channel.begin(do, **fields)
        lacks = ""
        for reply in channel.replies(number):
            if "exit" in reply.head:
                code = int(reply.head["exit"])
                return code if code >= 0 else 128 - code
            if "stream" in reply.head:
                write(reply.head, reply.body)
            elif "lacks" in reply.head:
                lacks = str(reply.head["lacks"])
                break
        if lacks in brought:
            raise HostUnreachableError(
                f"{project.host.profile} does not keep {lacks}", hint="run the same command again"
            )
        brought.add(lacks)
        if lacks == "shoal":
            ensure_installed(channel, project.python)
        else:
            send_tree(channel, command.tree, project.directory)
