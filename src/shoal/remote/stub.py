"""The program that answers on the cluster. It arrives over ssh and is executed from memory.

Standard library, Python 3.6: the oldest Python of a login node has to say what is missing. channel.py, the other side,
imports the frames and names from here.

A frame is a record separator, the mark of this connection, two lengths, a JSON object and bytes. What stands before a
mark, such as a banner of the login shell, is noise. Every request has an `id`, which its replies repeat.

An order is executed detached from the connection, below <directory>/.shoal/requests/<id>/:

  request.json     what was ordered; given again under the same id it must be the same
  <n>/             the n-th time that it was started: worker.json, beat, out, err; `attached` while a person looks on
  answer.json      its exit code, and which of these times it was: written once

A worker that is gone without an answer is started again. What it had done by then is not repeated, because the command
carries the id as --command-id (actions/idempotency.py).
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
import zlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

PROTOCOL = 1
#: A reply or a tick comes at least this often while something is in progress.
TICK_S = 3.0
#: Nobody has been heard for so long: the laptop sleeps or is gone, and so does this program.
SILENCE_S = 120.0
#: A worker on another host whose beat does not change for so long is gone; of this host its process is looked at.
BEAT_S = 2.0
GONE_S = 30.0
#: A command that only follows runs is ended when nobody has looked on for so long.
UNATTENDED_S = 120.0
#: Answers that were received are removed after this time.
KEEP_ANSWERS_S = 7 * 86400.0
MIN_PYTHON = (3, 11)
_MAX_HEAD, _MAX_BODY = 4 << 20, 64 << 20
_BLOCK = 1 << 16
#: What a worker writes before its command begins, and more.
_ROOM_BYTES = 1 << 14
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_TREE = re.compile(r"[0-9a-f]{16}\Z")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class Refusal(Exception):
    """What cannot be done, for the person at the laptop; `code` is the exit code of the command there."""

    def __init__(self, message: str, hint: Optional[str] = None, code: int = 1) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code


class Lacking(Exception):
    """The command needs something that has not come yet: "shoal" or "tree"."""


def encode_frame(mark: bytes, head: Dict[str, Any], body: bytes = b"") -> bytes:
    raw = json.dumps(head).encode("ascii")
    if len(raw) > _MAX_HEAD or len(body) > _MAX_BODY:
        raise ValueError("a frame of %d and %d bytes" % (len(raw), len(body)))
    return b"\x1e%s %d %d\n%s%s" % (mark, len(raw), len(body), raw, body)


class FrameReader:
    """Frames of bytes that come in pieces; `noise` is what stood between them, its end at most."""

    def __init__(self, mark: bytes) -> None:
        self._start = b"\x1e" + mark + b" "
        self._rest = b""
        self.noise = b""

    def feed(self, data: bytes) -> Iterator[Tuple[Dict[str, Any], bytes]]:
        self._rest += data
        while True:
            at = self._rest.find(self._start)
            if at < 0:
                keep = len(self._start) - 1
                self._drop(max(0, len(self._rest) - keep))
                return
            self._drop(at)
            line = self._rest.find(b"\n", 0, 200)
            if line < 0:
                if len(self._rest) >= 200:
                    raise ValueError("a frame without a length")
                return
            head, body = (int(word) for word in self._rest[len(self._start) : line].split())
            if not (0 < head <= _MAX_HEAD and 0 <= body <= _MAX_BODY):
                raise ValueError("a frame of %d and %d bytes" % (head, body))
            end = line + 1 + head + body
            if len(self._rest) < end:
                return
            found = json.loads(self._rest[line + 1 : line + 1 + head].decode("ascii"))
            content = self._rest[line + 1 + head : end]
            self._rest = self._rest[end:]
            yield found, content

    def _drop(self, count: int) -> None:
        self.noise = (self.noise + self._rest[:count])[-2000:]
        self._rest = self._rest[count:]


class Channel:
    """Frames on standard input and output."""

    def __init__(self, mark: bytes) -> None:
        self.mark, self._reader = mark, FrameReader(mark)
        self._waiting = []  # type: List[Tuple[Dict[str, Any], bytes]]
        self._heard = time.monotonic()

    def send(self, head: Dict[str, Any], body: bytes = b"") -> None:
        rest = memoryview(encode_frame(self.mark, head, body))
        while rest:
            rest = rest[os.write(1, rest) :]

    def receive(self, timeout_s: float = SILENCE_S) -> Optional[Tuple[Dict[str, Any], bytes]]:
        """The next request; None if none came in time. EOFError when the laptop is gone."""
        until = time.monotonic() + timeout_s
        while not self._waiting:
            left = until - time.monotonic()
            if not select.select([0], [], [], max(0.0, left))[0]:
                if time.monotonic() - self._heard > SILENCE_S:
                    raise EOFError
                return None
            data = os.read(0, _BLOCK)
            if not data:
                raise EOFError
            self._heard = time.monotonic()
            self._waiting += [one for one in self._reader.feed(data) if not one[0].get("tick")]
        return self._waiting.pop(0)


def main(mark: str) -> int:
    """Answer until the connection ends."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.umask(0o077)
    channel = Channel(mark.encode("ascii"))
    channel.send({"hello": PROTOCOL, "python": list(sys.version_info[:3]), "host": os.uname()[1], "time": time.time()})
    upload = Upload()
    while True:
        try:
            request = channel.receive()
        except EOFError:
            return 0
        if request is None:
            continue
        head, body = request
        number = head.get("id")
        try:
            if head["do"] == "tree":
                reply = upload.find(head)
            elif head["do"] == "offer":
                reply = upload.offer(head, body)
            elif head["do"] == "bytes":
                upload.take(body)
                continue
            elif head["do"] == "keep":
                reply = upload.keep(head, body)
            else:
                reply = HANDLERS[head["do"]](channel, head, body)
        except EOFError:
            return 0
        except Lacking as lacking:
            reply = {"lacks": str(lacking)}
        except Refusal as refusal:
            reply = {"error": refusal.message, "hint": refusal.hint, "code": refusal.code}
        except OSError as error:
            where = " %s" % error.filename if error.filename else ""
            disk = error.errno in _DISK
            reply = {"error": "cannot %s%s: %s" % ("write" if disk else "use", where, (error.strerror or "").lower())}
            reply["hint"] = "df -h %s" % (os.path.dirname(str(error.filename)) if error.filename else "~")
            reply["code"] = 74 if disk else 1
        channel.send(dict(reply, id=number))


# The project's directory


def _project_directory(head: Dict[str, Any]) -> str:
    """The project's directory on this machine, made if need be; nobody else may be able to write in it."""
    path = os.path.join(os.path.expanduser("~"), os.path.expanduser(head["directory"]))
    path = os.path.normpath(path)
    try:
        os.makedirs(path, 0o755, exist_ok=True)
    except FileExistsError:
        raise Refusal("%s is not a directory" % path, "ls -ld %s" % path, 2) from None
    except OSError as error:
        hint = "set `directory` in [clusters.X.ssh] to a place where you may write"
        raise Refusal("cannot make %s: %s" % (path, (error.strerror or "").lower()), hint, 2) from None
    home = os.path.join(path, ".shoal")
    if not os.access(path, os.W_OK | os.X_OK):
        hint = "set `directory` in [clusters.X.ssh] to a place where you may write"
        raise Refusal("you may not write in %s" % path, hint, 2)
    if not os.path.isdir(home):
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
    found = os.stat(home)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Refusal("%s belongs to several users, which works only on the login node" % home, "ssh to the cluster", 2)
    return os.path.realpath(path)


# shoal itself


def _shoal_dir(digest: str) -> str:
    if not re.match(r"[0-9a-f]{16}\Z", digest):
        raise Refusal("bad digest")
    base = os.environ.get("XDG_DATA_HOME", "")
    base = base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "shoal", "remote", digest)


def _find_shoal(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """Where this version of shoal is installed, or the interpreters that it could be installed for."""
    folder = _shoal_dir(head["digest"])
    if os.path.exists(os.path.join(folder, "complete")):
        return {"installed": folder}
    return {"installed": None, "interpreters": _interpreters(head.get("python"))}


_ABOUT = (
    "import sys,sysconfig,platform,json;"
    "print(json.dumps([list(sys.version_info[:2]),sysconfig.get_config_var('SOABI') or '',"
    "sys.platform+'-'+platform.machine(),platform.libc_ver()[0]]))"
)


def _interpreters(asked: Optional[str]) -> List[Dict[str, Any]]:
    """What each Python here is; the one that the profile names alone, if it names one."""
    names = [os.path.expanduser(asked)] if asked else ["python3"] + ["python3.%d" % minor for minor in range(20, 5, -1)]
    more = [] if asked else ["~/.local/bin", "/opt/conda/bin", "~/miniconda3/bin", "~/miniforge3/bin", "/usr/local/bin"]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath)] + [os.path.expanduser(one) for one in more])
    found, seen = [], set()
    for name in names:
        program = shutil.which(name, path=path)
        if program is None or os.path.realpath(program) in seen:
            continue
        seen.add(os.path.realpath(program))
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            out = subprocess.check_output([program, "-I", "-c", _ABOUT], stderr=subprocess.DEVNULL, timeout=20)
            version, soabi, platform, libc = json.loads(out.decode("ascii"))
            about = {"path": program, "version": version, "soabi": soabi, "platform": platform, "libc": libc}
            found.append(about)
    return found


def _install(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """A virtual environment with the packages that came, whole or not there."""
    folder, python = _shoal_dir(head["digest"]), head["python"]
    if hashlib.sha256(body).hexdigest() != head["sha256"]:
        raise Refusal("shoal arrived damaged", "run the same command again")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    partial = "%s.tmp-%s-%d" % (folder, os.uname()[1], os.getpid())
    try:
        done = subprocess.Popen(
            [python, "-I", "-m", "venv", "--without-pip", partial], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out = done.communicate(timeout=50)[0].decode("utf-8", "replace")
        if done.returncode != 0:
            hint = 'set python = "/path/to/python" in [clusters.X.ssh] to one that has venv'
            raise Refusal("%s cannot make a virtual environment: %s" % (python, out.strip()[-200:]), hint)
        inside = [os.path.join(partial, "lib", name, "site-packages") for name in os.listdir(partial + "/lib")]
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            archive.extractall(inside[0])
        program = "#!%s/bin/python\nimport sys\nfrom shoal.cli import main\nsys.exit(main())\n" % folder
        os.mkdir(partial + "/command")  # alone: a `python` beside it would be the one of users' jobs
        with open(partial + "/command/shoal", "w") as file:
            file.write(program)
        os.chmod(partial + "/command/shoal", 0o755)  # noqa: S103 (a program)
        test = [partial + "/bin/python", "-I", "-c", "import msgspec, rich, shoal.cli"]
        tried = subprocess.Popen(test, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out = tried.communicate(timeout=50)[0].decode("utf-8", "replace")
        if tried.returncode != 0:
            raise Refusal("shoal does not start with %s: %s" % (python, out.strip()[-300:]))
        with open(partial + "/complete", "w"):
            pass
        with contextlib.suppress(OSError):  # another command was faster
            os.rename(partial, folder)
    except subprocess.TimeoutExpired:
        raise Refusal("installing shoal took more than 50 s", "run the same command again") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"installed": folder}


# The code


class Upload:
    """A snapshot of the code that is being received: files that are here already are linked, the rest come as bytes."""

    def __init__(self) -> None:
        self._target = self._partial = ""
        self._manifest = []  # type: List[List[Any]]
        self._missing = []  # type: List[List[Any]]
        self._open = None  # type: Optional[Tuple[Any, Any, int]]
        self._failed = None  # type: Optional[Exception]

    def find(self, head: Dict[str, Any]) -> Dict[str, Any]:
        if not _TREE.match(head["name"]):
            raise Refusal("bad tree")
        self._target = os.path.join(_project_directory(head), ".shoal", "snapshots", head["name"])
        return {"there": os.path.isdir(self._target)}

    def offer(self, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
        """Make the folders and link what an earlier snapshot has; which files have to come, by their place."""
        self._manifest = json.loads(zlib.decompress(body).decode("ascii"))
        os.makedirs(os.path.dirname(self._target), 0o700, exist_ok=True)
        self._clear_old()
        self._partial = "%s.tmp-%s-%d" % (self._target, os.uname()[1], os.getpid())
        shutil.rmtree(self._partial, ignore_errors=True)
        os.mkdir(self._partial, 0o755)
        known = self._known_files()
        self._missing, self._open, self._failed = [], None, None
        places = []
        for place, (path, kind, digest, size) in enumerate(self._manifest):
            where = self._where(path)
            os.makedirs(os.path.dirname(where), 0o755, exist_ok=True)
            if kind == "link":
                os.symlink(_bytes(digest), _bytes(where))
            elif not self._link_known(known.get((digest, kind)), where, digest, size):
                self._missing.append([where, kind, digest, size])
                places.append(place)
        self._next_file()
        return {"missing": places}

    def take(self, data: bytes) -> None:
        """Bytes of the missing files, in their order, without anything between them. They have no reply: what goes
        wrong is told when all have come."""
        if self._failed is None:
            try:
                self._take(data)
            except (OSError, Refusal) as error:
                self._failed = error

    def _take(self, data: bytes) -> None:
        while data:
            if self._open is None:
                raise Refusal("more bytes than files came", "run the same command again")
            file, digest, left = self._open
            part, data = data[:left], data[left:]
            file.write(part)
            digest.update(part)
            self._open = (file, digest, left - len(part))
            if left == len(part):
                self._close_file()

    def keep(self, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
        if self._failed is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise self._failed
        if self._missing or self._open is not None:
            raise Refusal("the code arrived in part", "run the same command again")
        if body:
            _replace(self._target + ".diff", zlib.decompress(body))
        for suffix, record in ((".json", head["record"]), (".files", self._manifest)):
            _replace(self._target + suffix, json.dumps(record).encode("ascii"))
        with contextlib.suppress(OSError):  # another command was faster
            os.rename(self._partial, self._target)
        shutil.rmtree(self._partial, ignore_errors=True)
        return {"there": os.path.isdir(self._target)}

    def _where(self, path: str) -> str:
        if os.path.isabs(path) or ".." in path.split("/") or "\0" in path or not path:
            raise Refusal("bad path in the code: %r" % path)
        return os.path.join(self._partial, path)

    def _known_files(self) -> Dict[Tuple[str, str], str]:
        """(digest, kind) -> a file of one of the newest snapshots."""
        folder = os.path.dirname(self._target)
        names = [name for name in os.listdir(folder) if name.endswith(".files")]
        names.sort(key=lambda name: os.path.getmtime(os.path.join(folder, name)))
        known = {}
        for name in names[-4:]:
            with contextlib.suppress(OSError, ValueError):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for path, kind, digest, _ in json.load(file):
                        known[digest, kind] = os.path.join(folder, name[: -len(".files")], path)
        return known

    def _link_known(self, known: Optional[str], where: str, digest: str, size: int) -> bool:
        """A second name for a file that has this content; a file that somebody changed is not used."""
        if known is None:
            return False
        try:
            found = os.lstat(_bytes(known))
            if not stat.S_ISREG(found.st_mode) or found.st_size != size or found.st_uid != os.getuid():
                return False
            with open(_bytes(known), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    return False
            os.link(_bytes(known), _bytes(where))
            return True
        except OSError:
            return False

    def _next_file(self) -> None:
        while self._missing and self._open is None:
            where, kind, _, size = self._missing[0]
            mode = 0o755 if kind == "program" else 0o644
            file = os.fdopen(os.open(_bytes(where), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
            os.chmod(_bytes(where), mode)
            self._open = (file, hashlib.sha256(), size)
            if size == 0:
                self._close_file()

    def _close_file(self) -> None:
        assert self._open is not None  # noqa: S101
        file, digest, _ = self._open
        file.close()
        where, _, wanted, _ = self._missing.pop(0)
        self._open = None
        if digest.hexdigest() != wanted:
            raise Refusal("%s arrived damaged" % os.path.basename(where), "run the same command again")
        self._next_file()

    def _clear_old(self) -> None:
        """Half snapshots that a connection left behind."""
        folder = os.path.dirname(self._target)
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if ".tmp-" in name and time.time() - os.path.getmtime(path) > 86400:
                shutil.rmtree(path, ignore_errors=True)


def _bytes(path: str) -> bytes:
    """Names are bytes: of the laptop's as they are, whatever the locale of this machine."""
    return path.encode("utf-8", "surrogateescape")


# Commands


class _Command:
    """A command of shoal as it was ordered: where it runs, with which arguments and variables."""

    def __init__(self, head: Dict[str, Any]) -> None:
        self.root = _project_directory(head)
        self.home = os.path.join(self.root, ".shoal")
        shoal = _shoal_dir(head["digest"])
        if not os.path.exists(os.path.join(shoal, "complete")):
            raise Lacking("shoal")
        tree = os.path.join(self.home, "snapshots", head["tree"])
        if not _TREE.match(head["tree"]) or not os.path.isdir(tree):
            raise Lacking("tree")
        code = os.path.normpath(os.path.join(tree, head["inside"]))
        self.cwd = os.path.normpath(os.path.join(code, head["cwd"]))
        if not os.path.isdir(_bytes(self.cwd)):
            raise Refusal(
                "no file of %s is part of the code that travels" % (head["cwd"] or "."), "cd to another one", 2
            )
        self.argv = [_bytes(word) for word in [shoal + "/bin/python", "-P", "-m", "shoal"] + head["argv"]]
        self.env = dict(_login_environment())
        self.env.update({name: value for name, value in head["env"].items() if name.startswith("SHOAL_")})
        self.env.update(SHOAL_ROOT=self.root, SHOAL_HOME=self.home, SHOAL_CODE=code)
        self.env["PATH"] = shoal + "/command" + os.pathsep + self.env.get("PATH", os.defpath)

    def start(self, out: int, err: int) -> "subprocess.Popen[bytes]":
        environ = {_bytes(name): _bytes(value) for name, value in self.env.items()}
        return subprocess.Popen(  # its own session: Ctrl-C and hang-ups are ours to pass on
            self.argv, cwd=_bytes(self.cwd), env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip


def _login_environment() -> Dict[str, str]:
    """The environment of a login, where the one of this connection has no Slurm: sites set PATH in /etc/profile."""
    own = dict(os.environ)
    if shutil.which("sbatch") is not None:
        return own
    shell = os.environ.get("SHELL") or "/bin/sh"
    mark = "shoal-%d-%s" % (os.getpid(), os.urandom(8).hex())
    program = "import json,os,sys;sys.stdout.write(sys.argv[1]+json.dumps(dict(os.environ))+sys.argv[1])"
    words = "exec %s -I -c '%s' %s" % (sys.executable, program, mark)
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        out = subprocess.check_output([shell, "-l", "-c", words], stderr=subprocess.DEVNULL, timeout=20)
        found = json.loads(out.decode("utf-8", "surrogateescape").split(mark)[1])
        return {str(name): str(value) for name, value in found.items()}
    return own


def _look(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """Run a command that changes nothing; it ends with the connection."""
    command = _Command(head)
    pipes = [os.pipe(), os.pipe()]
    child = command.start(pipes[0][1], pipes[1][1])
    for _, end in pipes:
        os.close(end)
    names = {pipes[0][0]: "out", pipes[1][0]: "err"}
    told = time.monotonic()
    try:
        while names:
            ready = select.select([*names, 0], [], [], TICK_S)[0]
            for one in [one for one in ready if one in names]:
                data = os.read(one, _BLOCK)
                if data:
                    channel.send({"id": head["id"], "stream": names[one]}, data)
                    told = time.monotonic()
                else:
                    os.close(one)
                    del names[one]
            _hear(channel, 0 in ready, child, head)
            if time.monotonic() - told >= TICK_S:
                channel.send({"id": head["id"], "tick": 1})
                told = time.monotonic()
        return {"exit": child.wait()}
    finally:
        _end(child)


def _hear(channel: Channel, ready: bool, child: "Optional[subprocess.Popen[bytes]]", head: Dict[str, Any]) -> bool:
    """What the laptop says while a command runs: that it is there, or to interrupt; True if it detaches."""
    heard = channel.receive(0.0) if ready else None
    if heard is not None and heard[0].get("do") == "interrupt" and child is not None:
        os.killpg(child.pid, signal.SIGINT)
    return heard is not None and heard[0].get("do") == "detach"


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is not None:
        return
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(OSError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            return


# Orders


def _order(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """Begin an order, or attach to it if it was given before; its output from the byte that the laptop has."""
    if not _ID.match(head["request"]):
        raise Refusal("bad request id")
    command = _Command(head)
    requests = os.path.join(command.home, "requests")
    os.makedirs(requests, 0o700, exist_ok=True)
    _forget_answered(requests)
    folder = os.path.join(requests, head["request"])
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    names = ("argv", "tree", "cwd", "inside", "follows", "digest", "env", "directory", "request")
    record = {name: head[name] for name in names}
    _create(os.path.join(folder, "request.json"), json.dumps(record).encode("ascii"))
    first = _read_json(os.path.join(folder, "request.json")) or {}
    if any(first.get(name) != record[name] for name in ("argv", "tree", "cwd", "inside", "follows")):
        raise Refusal("request %s was another order" % head["request"], "give the order again", 2)
    channel.send({"id": head["id"], "accepted": 1})
    return _attend(channel, head, command, folder)


def _attend(channel: Channel, head: Dict[str, Any], command: _Command, folder: str) -> Dict[str, Any]:
    """Stream what the newest worker writes until there is an answer, and start one where none lives."""
    sent = {"attempt": head["attempt"], "out": head["out"], "err": head["err"]}
    beats, told = _Beats(), time.monotonic()
    pause = 0.01
    while True:
        answer = _read_json(os.path.join(folder, "answer.json"))
        attempts = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
        newest = answer["attempt"] if answer else attempts[-1] if attempts else 0
        inside = os.path.join(folder, str(newest))
        if answer is None and (not newest or os.path.exists(inside + "/stopped") or beats.is_gone(inside)):
            # Looked at again: it may have answered and ended since.
            if _read_json(os.path.join(folder, "answer.json")) is None:
                _start_worker(command, folder, newest + 1, head["follows"])
            continue
        if newest != sent["attempt"]:
            sent = {"attempt": newest, "out": 0, "err": 0}
        moved = _copy_new(channel, head["id"], inside, sent)
        if answer is not None and not moved:
            return {"exit": answer["code"]}
        now = time.monotonic()
        if moved or now - told >= TICK_S:
            _touch(inside + "/attached")
            told = now
            if not moved:
                channel.send({"id": head["id"], "tick": 1})
        pause = 0.01 if moved else min(0.1, pause * 1.5)
        if _hear(channel, bool(select.select([0], [], [], pause)[0]), None, head):
            return {"exit": 130}


def _copy_new(channel: Channel, number: int, inside: str, sent: Dict[str, int]) -> bool:
    moved = False
    for name in ("out", "err"):
        try:
            with open(os.path.join(inside, name), "rb") as file:
                file.seek(sent[name])
                data = file.read(_BLOCK)
        except FileNotFoundError:
            continue
        if data:
            channel.send({"id": number, "stream": name, "attempt": sent["attempt"], "offset": sent[name]}, data)
            sent[name] += len(data)
            moved = True
    return moved


class _Beats:
    """Whether workers live: their process on this machine, elsewhere their beat."""

    def __init__(self) -> None:
        self._seen = {}  # type: Dict[str, Tuple[bytes, float]]

    def is_gone(self, inside: str) -> bool:
        worker = _read_json(os.path.join(inside, "worker.json"))
        if worker is not None and (worker["host"], worker["boot"]) == _this_boot():
            return bool(_process_start(worker["pid"]) != worker["start"])
        try:
            with open(os.path.join(inside, "beat"), "rb") as file:
                beat = file.read(100)
        except OSError:
            beat = b""
        before, since = self._seen.get(inside, (None, 0.0))
        if before != beat:
            self._seen[inside] = (beat, time.monotonic())
            return False
        return time.monotonic() - since > GONE_S


def _start_worker(command: _Command, folder: str, number: int, follows: bool) -> None:
    """Start a process that nothing connects to us, unless another connection does so at this moment."""
    inside = os.path.join(folder, str(number))
    try:
        os.mkdir(inside, 0o700)
    except FileExistsError:
        return
    room = os.path.join(inside, "room")
    try:  # a worker could tell nobody that the disk is full
        _replace(room, b" " * _ROOM_BYTES)
        os.unlink(room)
    except OSError:
        shutil.rmtree(inside, ignore_errors=True)
        raise
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for one in (0, 1, 2):
            os.dup2(null, one)
        code = _work(command, folder, inside, number, follows)
    finally:
        os._exit(code)


def _work(command: _Command, folder: str, inside: str, number: int, follows: bool) -> int:
    host, boot = _this_boot()
    who = {"host": host, "boot": boot, "pid": os.getpid(), "start": _process_start(os.getpid())}
    out, err = [
        os.open(os.path.join(inside, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for name in ("out", "err")
    ]
    _replace(os.path.join(inside, "worker.json"), json.dumps(who).encode("ascii"))
    child = command.start(out, err)
    count, attached, looked = 0, b"", time.monotonic()
    stopped = False
    while True:
        try:
            code = child.wait(BEAT_S)
            break
        except subprocess.TimeoutExpired:
            pass
        count += 1
        with contextlib.suppress(OSError):
            _replace(os.path.join(inside, "beat"), b"%d" % count)
        with contextlib.suppress(OSError):
            with open(inside + "/attached", "rb") as file:
                now = file.read(100)
            if now != attached:
                attached, looked = now, time.monotonic()
        if follows and time.monotonic() - looked > UNATTENDED_S:
            stopped = True
            _end(child)
    if stopped:
        _replace(inside + "/stopped", b"")
        return 0
    _create(os.path.join(folder, "answer.json"), json.dumps({"code": code, "attempt": number}).encode("ascii"))
    return 0


def _outcome(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """What became of an order: its exit code, "open", or None if it never came here; `follows` as it was given."""
    if not _ID.match(head["request"]):
        raise Refusal("bad request id")
    folder = os.path.join(_project_directory(head), ".shoal", "requests", head["request"])
    record = _read_json(os.path.join(folder, "request.json"))
    if record is None:
        return {"outcome": None}
    answer = _read_json(os.path.join(folder, "answer.json"))
    return {"outcome": "open" if answer is None else answer["code"], "follows": record["follows"]}


def _resume(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """Give an order again that came here before, as it is written down."""
    if not _ID.match(head["request"]):
        raise Refusal("bad request id")
    folder = os.path.join(_project_directory(head), ".shoal", "requests", head["request"])
    record = _read_json(os.path.join(folder, "request.json"))
    if record is None:
        raise Refusal("no order %s" % head["request"])
    return _order(channel, dict(record, id=head["id"], attempt=0, out=0, err=0), body)


def _acknowledge(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """The laptop has the answer."""
    if _ID.match(head["request"]):
        folder = os.path.join(_project_directory(head), ".shoal", "requests", head["request"])
        if os.path.isdir(folder):
            _replace(os.path.join(folder, "received"), b"")
    return {}


def _forget_answered(requests: str) -> None:
    for name in os.listdir(requests):
        with contextlib.suppress(OSError):
            if time.time() - os.path.getmtime(os.path.join(requests, name, "received")) > KEEP_ANSWERS_S:
                shutil.rmtree(os.path.join(requests, name), ignore_errors=True)


# Files of runs


def _open_output(head: Dict[str, Any]) -> int:
    """A plain file below an output directory, opened for reading."""
    base, path = head["base"], head["path"]
    where = os.path.join(base, path)
    try:
        file = os.open(_bytes(where), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refusal("cannot read %s: %s" % (where, (error.strerror or "").lower()), "run the same command again")
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refusal("%s is no plain file any more" % where, "run the same command again")
    return file


def _about_file(file: int) -> Dict[str, Any]:
    found = os.fstat(file)
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def _digest(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """What a file is, and the SHA-256 of its first bytes."""
    file = _open_output(head)
    try:
        about, digest, left, told = _about_file(file), hashlib.sha256(), head["length"], time.monotonic()
        while left > 0:
            block = os.read(file, min(left, _BLOCK << 4))
            if not block:
                break
            digest.update(block)
            left -= len(block)
            if time.monotonic() - told >= TICK_S:
                channel.send({"id": head["id"], "tick": 1})
                told = time.monotonic()
        return dict(about, sha256=digest.hexdigest())
    finally:
        os.close(file)


def _fetch(channel: Channel, head: Dict[str, Any], body: bytes) -> Dict[str, Any]:
    """The bytes of a file from an offset to a size; then their SHA-256, and what the file is by now."""
    file = _open_output(head)
    try:
        digest, left = hashlib.sha256(), head["size"] - head["offset"]
        os.lseek(file, head["offset"], os.SEEK_SET)
        while left > 0:
            block = os.read(file, min(left, _BLOCK << 2))
            if not block:
                break
            channel.send({"id": head["id"], "bytes": len(block)}, block)
            digest.update(block)
            left -= len(block)
    finally:
        os.close(file)
    now = _open_output(head)  # by its name: a file that was replaced is another one
    try:
        return dict(_about_file(now), sha256=digest.hexdigest())
    finally:
        os.close(now)


def _this_boot() -> Tuple[str, str]:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return os.uname()[1], file.read().strip()
    except OSError:
        return os.uname()[1], ""


def _process_start(pid: int) -> Optional[str]:
    """When a process began, in the words of the kernel; None if it does not live."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in (b"Z", b"X") else words[19].decode("ascii")


def _read_json(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="ascii") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return None


def _replace(path: str, data: bytes) -> None:
    part = "%s.tmp-%d" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(data)
    os.rename(part, path)


def _touch(path: str) -> None:
    with contextlib.suppress(OSError):
        _replace(path, b"%d %d" % (os.getpid(), time.monotonic() * 1000))


def _create(path: str, data: bytes) -> None:
    """Write a file once, whole: whoever comes later leaves it as it is."""
    part = "%s.tmp-%d" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(part)


HANDLERS = {
    "find": _find_shoal,
    "install": _install,
    "look": _look,
    "order": _order,
    "outcome": _outcome,
    "resume": _resume,
    "received": _acknowledge,
    "digest": _digest,
    "fetch": _fetch,
}
