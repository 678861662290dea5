"""Files of a run's output directory, brought from a cluster to this machine.

The cluster is not trusted with a place: every name that it sends stays below the directory that was chosen here, no
link is made or followed, nothing gets to be executable, and a file that is here and different is only replaced if the
person said so. A file has its name when all of it has come and its SHA-256 is that of the file there; until then it is
below .shoal-pull/, from where the same command continues.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shoal.errors import InputError, ShoalError
from shoal.remote.channel import RemoteChannel
from shoal.remote.orders import ReconnectPauses, RemoteProject
from shoal.remote.ssh import HostUnreachableError

_PARTS = ".shoal-pull"
_BLOCK = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RemoteFile(NamedTuple):
    path: str
    size: int


class OutputListing(NamedTuple):
    """The output directory of a run on a cluster. `place` is where it is below outputs/, None if it is elsewhere;
    `left_out` counts links and special files, which are not pulled."""

    run: str
    output_dir: str
    place: str | None
    files: list[RemoteFile]
    left_out: int


class PulledFile(NamedTuple):
    """`state`: new, different (one that is here has another content), same; after a pull: pulled, replaced, changed (it
    was written there meanwhile, and is not here)."""

    path: str
    size: int
    state: str


def list_output(run: str, output_dir: str, outputs: str) -> OutputListing:
    """What is in an output directory on this machine; links are neither listed nor followed."""
    files, left_out = list[RemoteFile](), 0
    for folder, names, others in os.walk(output_dir):
        left_out += sum(os.path.islink(os.path.join(folder, name)) for name in names)
        for name in others:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode):
                    files.append(RemoteFile(os.path.relpath(path, output_dir), found.st_size))
                else:
                    left_out += 1
    place = os.path.relpath(os.path.realpath(output_dir), os.path.realpath(outputs))
    return OutputListing(run, output_dir, None if place.startswith("..") else place, sorted(files), left_out)


def parse_listing(data: bytes, profile: str) -> OutputListing:
    """What a cluster says that there is. ShoalError if any name would lead out of the directory that is chosen here."""
    try:
        record = json.loads(data)
        files = [RemoteFile(str(path), int(size)) for path, size in record["files"]]
        listing = OutputListing(
            str(record["run"]), str(record["output_dir"]), record["place"], files, int(record["left_out"])
        )
        places = [] if listing.place is None else [str(listing.place)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ShoalError(f"{profile} sent no list of files", hint=f"shoal connect {profile}") from None
    for path in [listing.run, *places, *(one.path for one in files)]:
        if not _is_inside(path):
            raise ShoalError(
                f"{profile} sent the file name {path!r}, which leads out of the target directory or has control "
                "characters; nothing was pulled",
                hint=f"look at {listing.output_dir!r} on the login node",
            )
    if any(one.size < 0 for one in files) or len({one.path for one in files}) != len(files):
        raise ShoalError(f"{profile} sent a damaged list of files", hint="run the same command again")
    return listing


def _is_inside(path: str) -> bool:
    """Whether a path stays below the directory that it is joined to, and is none of our own files there."""
    parts = path.split("/")
    return (
        all(part not in ("", ".", "..") for part in parts)
        and parts[0] != _PARTS
        and not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in path)
    )


def choose_files(listing: OutputListing, patterns: Sequence[str]) -> list[RemoteFile]:
    """Files whose path, or name alone, is like one of the patterns; all without a pattern."""
    if not patterns:
        return listing.files
    return [
        one
        for one in listing.files
        if any(fnmatch.fnmatchcase(name, like) for like in patterns for name in (one.path, one.path.rpartition("/")[2]))
    ]


class _Target:
    """The directory here that files are written below. Each step into it is a step into a directory, never a link."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextlib.contextmanager
    def parent(self, parts: Sequence[str], *, make: bool) -> Iterator[int | None]:
        """The directory that a file is in, opened; None if it is not there and not to be made."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            for at, part in enumerate(parts[:-1]):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o777, dir_fd=folder)
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=folder)
                except FileNotFoundError:
                    if make:
                        raise
                    yield None
                    return
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise self.refusal("/".join(parts[: at + 1])) from None
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def refusal(self, path: str) -> InputError:
        return InputError(
            f"{os.path.join(self.path, path)!r} is a link or no directory, and nothing is written through it",
            hint="add --to DIR to pull into another directory",
        )

    def find(self, path: str) -> int | None:
        """A file that is here, opened; None if there is none. Only plain files may be where a file is to come."""
        parts = path.split("/")
        with self.parent(parts, make=False) as folder:
            if folder is None:
                return None
            try:
                file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise self.refusal(path) from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self.refusal(path)
        return file

    def open_part(self, path: str) -> int:
        """What has come of a file so far, opened for more."""
        os.makedirs(self.path, exist_ok=True)
        parts = [_PARTS, _part_name(path)]
        with self.parent(parts, make=True) as folder:
            return os.open(
                parts[1], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder
            )  # fmt: skip

    def keep(self, path: str, *, replaces: bool) -> None:
        """Give a file that has come its name. Without `replaces` a name that is taken meanwhile stays as it is."""
        parts = path.split("/")
        with self.parent([_PARTS, ""], make=True) as source, self.parent(parts, make=True) as folder:
            part = _part_name(path)
            if replaces:
                os.replace(part, parts[-1], src_dir_fd=source, dst_dir_fd=folder)
                return
            try:
                os.link(part, parts[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                raise _differing([path], self.path) from None
            os.unlink(part, dir_fd=source)

    def drop_part(self, path: str) -> None:
        with self.parent([_PARTS, ""], make=False) as folder, contextlib.suppress(FileNotFoundError):
            if folder is not None:
                os.unlink(_part_name(path), dir_fd=folder)

    def tidy(self) -> None:
        with contextlib.suppress(OSError):  # other files are still to come, or nothing came
            os.rmdir(os.path.join(self.path, _PARTS))


def _part_name(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _differing(paths: Sequence[str], target: str) -> InputError:
    some = ", ".join(map(repr, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return InputError(
        f"{len(paths)} {'file' if len(paths) == 1 else 'files'} in {target} would be replaced by other content: {some}",
        hint="add --overwrite to replace them, or --to DIR to pull into another directory",
    )


class Pull:
    """One command: compare, then bring what is not here, over any number of connections."""

    def __init__(
        self,
        project: RemoteProject,
        listing: OutputListing,
        target: str,
        note: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._project, self._base, self._target = project, listing.output_dir, _Target(target)
        self._note, self._sleep = note, sleep
        self._pauses = ReconnectPauses()
        self._channel: RemoteChannel | None = None

    def compare(self, files: Sequence[RemoteFile]) -> list[PulledFile]:
        """What each file is to what is here; only files of one size have to be read for that."""
        return [PulledFile(one.path, one.size, self._with_channel(self._compare, one)) for one in files]

    def bring(self, compared: Sequence[PulledFile], *, overwrite: bool) -> Iterator[PulledFile]:
        """Pull what is new, and what is different if that may be replaced; otherwise refuse before anything comes."""
        different = [one.path for one in compared if one.state == "different"]
        if different and not overwrite:
            raise _differing(different, self._target.path)
        for one in compared:
            yield one if one.state == "same" else self._with_channel(self._bring, one)
        self._target.tidy()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _with_channel(self, do: Callable[..., Any], one: Any) -> Any:
        """Do something with one file; a connection that is lost meanwhile is opened again for some time."""
        while True:
            try:
                return do(one)
            except HostUnreachableError as error:
                if self._channel is None and not self._pauses.is_counting:
                    raise
                self.close()
                if (pause := self._pauses.next_s(time.monotonic())) is None:
                    profile = self._project.host.profile
                    raise HostUnreachableError(
                        f"{error.message}; what has come is kept",
                        hint=f"shoal connect {profile}   # then give the same command again: it continues",
                    ) from None
                self._note(f"{error.message}; trying again in {pause:g} s")
                self._sleep(pause)

    def _open(self) -> RemoteChannel:
        if self._channel is None:
            self._channel = RemoteChannel(self._project.host)
        return self._channel

    def _digest_there(self, path: str, length: int) -> tuple[dict[str, Any], str]:
        found = dict(self._open().ask("digest", base=self._base, path=path, length=length))
        self._pauses.reset()
        return found, str(found["sha256"])

    def _compare(self, one: RemoteFile) -> str:
        file = self._target.find(one.path)
        if file is None:
            return "new"
        with os.fdopen(file, "rb") as here:
            size = os.fstat(file).st_size
            if size != one.size:
                return "different"
            found, digest = self._digest_there(one.path, size)
            is_same = found["size"] == size and digest == _digest(here, size).hexdigest()
        return "same" if is_same else "different"

    def _bring(self, one: PulledFile) -> PulledFile:
        with os.fdopen(self._target.open_part(one.path), "r+b") as part:
            have = os.fstat(part.fileno()).st_size
            found, digest = self._digest_there(one.path, have)
            if have > found["size"] or digest != _digest(part, have).hexdigest():
                have = 0  # it is another file there by now
                part.truncate(0)
            part.seek(have)
            size = int(found["size"])
            is_whole = self._receive(one.path, part, have, found)
            part.flush()
            os.fsync(part.fileno())
            if not is_whole:
                # Written meanwhile. What grows at its end, as a log does, is still what has come as far as that goes.
                part.seek(0)
                again, digest = self._digest_there(one.path, size)
                if again["size"] < size or digest != _digest(part, size).hexdigest():
                    self._target.drop_part(one.path)
                    return PulledFile(one.path, size, "changed")
        self._target.keep(one.path, replaces=one.state == "different")
        return PulledFile(one.path, size, "replaced" if one.state == "different" else "pulled")

    def _receive(self, path: str, part: Any, have: int, found: dict[str, Any]) -> bool:
        """Write the bytes from `have` on; False if the file there was written meanwhile."""
        channel, size, digest = self._open(), int(found["size"]), hashlib.sha256()
        number = channel.begin("fetch", base=self._base, path=path, offset=have, size=size)
        for reply in channel.replies(number):
            if "sha256" in reply.head:
                if reply.head["sha256"] != digest.hexdigest():
                    raise self._damaged(path)
                is_same = all(reply.head[name] == found[name] for name in ("size", "mtime_ns", "inode"))
                return is_same and part.tell() == size
            if part.tell() + len(reply.body) > size:
                raise self._damaged(path)
            part.write(reply.body)
            digest.update(reply.body)
            self._pauses.reset()
        raise AssertionError

    def _damaged(self, path: str) -> ShoalError:
        self._target.drop_part(path)
        return ShoalError(
            f"{path!r} arrived damaged from {self._project.host.profile}", hint="run the same command again"
        )


def _digest(file: Any, length: int) -> Any:
    """The SHA-256 of the first bytes of a file; of fewer if it has no more."""
    digest = hashlib.sha256()
    file.seek(0)
    while length > 0 and (block := file.read(min(_BLOCK, length))):
        digest.update(block)
        length -= len(block)
    return digest
