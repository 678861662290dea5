"""The newest complete checkpoint of a run, and whether an attempt continued from the one it was given.

Among names that differ only in their numbers, the numbers decide, because clocks and copies disagree about times. Names
that have nothing in common (last.ckpt and epoch=3.ckpt) are compared by modification time.

Whether an attempt continued is read from its log: a program that ignores its checkpoint begins where the first attempt
began. Steps in logs and the number in a checkpoint's name may count different things, so logs are compared with logs
first.
"""

import glob
import json
import os
import re
import shutil
import struct
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import files, layout, lease, metric_files, progress_lines
from .lazy import regex

_DIGITS = regex(r"(\d+)")
#: Lightning writes last-v1.ckpt where there is a last.ckpt already: a later version of the same name.
_VERSION = regex(r"-v(\d+)\Z")
_EXTENSION = regex(r"\.[A-Za-z][A-Za-z0-9]{0,14}\Z")
_STEP = regex(r"(?:step|iter(?:ation)?|update)s?[=_\-.]?(\d+)(?![\d.]*\.\d)", re.IGNORECASE)
_EPOCH = regex(r"(?<![a-z])ep(?:och)?s?[=_\-.]?(\d+)(?![\d.]*\.\d)", re.IGNORECASE)
#: A number that is no part of a fraction such as loss=0.32.
_INTEGER = regex(r"(?<![\d.])(\d+)(?![\d.]*\.\d)(?!\d)")
_UNFINISHED = regex(r"\.(tmp|part|partial|incomplete|temp)\Z|\A\.?tmp[-_.]|[.-]tmp[-_.]?\w*\Z", re.IGNORECASE)
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npz", ".h5", ".pkl", ".msgpack")
#: Written behind everything else, by the libraries that write such folders: files of the folder -> the last one.
_LAST_FILE = (
    (regex(r".*\.distcp\Z"), ".metadata"),  # torch.distributed.checkpoint
    (regex(r"training_args\.bin\Z"), "trainer_state.json"),  # Hugging Face's Trainer
)
#: Files beside such folders that name the last whole one: DeepSpeed, Megatron.
_LATEST_FILES = ("latest", "latest_checkpointed_iteration.txt")
_MAX_FILES = 2000
_ZIP_END_BYTES = 22 + 0xFFFF


class _CheckpointName(NamedTuple):
    """What a name says: its family (the name without numbers), and its numbers with the version behind them."""

    family: str
    numbers: Tuple[int, ...]


def newest_checkpoint(folder: str, pattern: str) -> Optional[str]:
    """The newest whole checkpoint in an output folder that matches the pattern, or None; torn and empty ones are passed
    over.

    The highest by number (model_10 after model_9, last-v2 after last); between names of different kinds, that of the
    kind which was written last.
    """
    return next((path for path in list_newest_first(folder, pattern) if is_complete(path)), None)


def list_newest_first(folder: str, pattern: str) -> List[str]:
    """Everything that matches the pattern in an output folder and its working directory, whole or not, newest first.
    What belongs to the code there is none of the run's checkpoints."""
    own = layout.OwnFiles(folder)
    families: Dict[str, List[Tuple[Tuple[int, ...], str]]] = {}
    places = [os.path.join(glob.escape(place), pattern) for place in layout.written_dirs(folder)]
    for path in [path for place in places for path in glob.glob(place, recursive=True) if path in own]:
        name = _parse(path)
        families.setdefault(name.family, []).append((name.numbers, path))
    members = [[path for _, path in sorted(found, reverse=True)] for found in families.values()]
    by_time = sorted(members, key=lambda paths: (_mtime_ns(paths[0]), paths[0]), reverse=True)
    return [path for paths in by_time for path in paths]


def previous_checkpoint(folder: str, pattern: str, checkpoint: str) -> Optional[str]:
    """The newest whole checkpoint that is older than this one, or None."""
    found = list_newest_first(folder, pattern)
    older = found[found.index(checkpoint) + 1 :] if checkpoint in found else []
    return next((path for path in older if is_complete(path)), None)


def step_of(checkpoint: str) -> Optional[int]:
    """The step that a checkpoint's name carries, or else the epoch, or the last whole number in it."""
    name, _ = _split(os.path.basename(checkpoint))
    for pattern in (_STEP, _EPOCH, _INTEGER):
        numbers = pattern.findall(name)
        if numbers:
            return int(numbers[-1])
    return None


def is_complete(path: str) -> bool:
    """Whether a checkpoint has been written to its end, as far as its name, its size and its format tell."""
    if _UNFINISHED.search(os.path.basename(path)):
        return False
    try:
        return _is_complete_dir(path) if os.path.isdir(path) else _is_complete_file(path)
    except (OSError, ValueError):
        return False


def copy_checkpoint_file(source: str, dest: str) -> bool:
    """Copy a checkpoint, with its time; whether all of it was copied, and nothing wrote to it meanwhile.

    A disk that is full, or out of quota, is an OSError.
    """
    part = dest + ".part"
    try:
        before = _stamp(source)
        os.makedirs(os.path.dirname(dest), exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        if os.path.isdir(source):
            shutil.copytree(source, part)
        else:
            shutil.copy2(source, part)
        if _stamp(source) != before:
            return False
        os.rename(part, dest)
        return True
    except (OSError, shutil.Error) as error:
        if getattr(error, "errno", None) in files.DISK_ERRNOS:
            raise
        return False


def is_unchanged_copy(path: str, source: str) -> bool:
    """Whether `path` is what `copy_checkpoint_file` made of `source` as it is now."""
    try:
        return [one[1:] for one in _stamp(path)] == [one[1:] for one in _stamp(source)]
    except OSError:
        return False


def _stamp(path: str) -> List[Tuple[int, int, int]]:
    inside = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
    stats = [os.stat(one) for one in (sorted(inside) if os.path.isdir(path) else [path])]
    return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in stats]


def _split(name: str) -> Tuple[str, int]:
    """A file's name without its extensions and its version, and that version: last-v2.ckpt -> (last, 2)."""
    while _EXTENSION.search(name) and not name.startswith("."):
        name = _EXTENSION.sub("", name)
    version = _VERSION.search(name)
    return (name[: version.start()], int(version.group(1))) if version else (name, 0)


def _parse(path: str) -> _CheckpointName:
    name = os.path.basename(path)
    plain, version = _split(name)
    words = _DIGITS.split(plain)
    extension = name[name.find(".", 1) :] if "." in name[1:] else ""
    return _CheckpointName("#".join(words[::2]) + _DIGITS.sub("#", extension), (*map(int, words[1::2]), version))


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _is_complete_file(path: str) -> bool:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if size == 0:
            return False
        if path.endswith(".safetensors"):
            (length,) = struct.unpack("<Q", head)
            if length > size:
                return False
            tensors = json.loads(file.read(length).decode("utf-8"))
            ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
            return bool(size >= 8 + length + max(ends, default=0))
        if head.startswith(b"PK\x03\x04"):  # torch.save and numpy.savez: a zip, whose directory is written last
            file.seek(max(0, size - _ZIP_END_BYTES))
            return b"PK\x05\x06" in file.read()
        if path.endswith((".pkl", ".pickle")) and head.startswith(b"\x80"):
            file.seek(size - 1)
            return file.read() == b"."
    return True


def _is_complete_dir(folder: str) -> bool:
    parent = os.path.dirname(folder.rstrip("/"))
    if any(_names_older_checkpoint(os.path.join(parent, name), folder) for name in _LATEST_FILES):
        return False
    names: List[str] = []
    for top, _, inside in os.walk(folder):
        for name in inside:
            path = os.path.join(top, name)
            if _UNFINISHED.search(name) or (name.endswith(_WEIGHTS) and not _is_complete_file(path)):
                return False
            names.append(name)
        if len(names) > _MAX_FILES:
            break
    for sign, last in _LAST_FILE:
        if last not in names and any(sign.match(name) for name in names):
            return False
    return bool(names)


def _names_older_checkpoint(note: str, folder: str) -> bool:
    """Whether a file names another folder of this kind, with a lower number, as the last one that is whole."""
    try:
        with open(note, encoding="utf-8") as file:
            word = file.read(256).strip()
    except (OSError, ValueError):
        return False
    mine = _parse(folder.rstrip("/"))
    named = (int(word), 0) if word.isdigit() else _parse(word).numbers
    is_kind = word.isdigit() or _parse(word).family == mine.family
    return bool(word) and is_kind and mine.numbers > named


#: Progress is looked for in so much of the beginning, and of the end, of a log.
_HEAD_BYTES = 1 << 18
_TAIL_BYTES = 1 << 16
#: The first two steps decide: a bar may be drawn at 0 before it jumps to where the program is.
_MIN_STEPS = 2


class ResumeCheck(NamedTuple):
    """Where an attempt with a checkpoint began; `reached` is what was done before it."""

    continued: bool
    step: float
    reached: float

    def words(self, attempt: int, checkpoint: str) -> str:
        name = os.path.basename(checkpoint)
        if self.continued:
            return "attempt %d continued from %s: its progress begins at step %g" % (attempt, name, self.step)
        return "attempt %d did not continue from %s: its progress begins at step %g, and step %g was reached before" % (
            attempt,
            name,
            self.step,
            self.reached,
        )


class _LoggedSteps(NamedTuple):
    """The first steps that a log tells, no step twice; the last one; and whether they count epochs."""

    first: List[float]
    last: float
    epochs: bool


def check_resume(log_dir: str, attempt: int, checkpoint: str, is_over: bool = False) -> Optional[ResumeCheck]:
    """Where attempt `attempt` began, which was given `checkpoint`; None as long as, or if, its log does not tell.

    Of an attempt that `is_over`, a single line of progress is enough.
    """
    saved = step_of(checkpoint)
    steps = _read_steps(layout.log_file(log_dir, attempt))
    if steps is None or len(steps.first) < (1 if is_over else _MIN_STEPS):
        return None
    before = _earlier_steps(log_dir, attempt)
    if before is not None and before.last > before.first[0]:
        continued = _has_continued(steps, before, saved)
        return None if continued is None else ResumeCheck(continued, steps.first[0], before.last)
    if saved is not None and saved > 1 and not steps.epochs:
        return ResumeCheck(steps.first[-1] >= saved, steps.first[0], float(saved))
    return None


def newest_resumed_attempt(run_dir: str) -> int:
    """The newest attempt that was given a checkpoint and whose log tells, if it continued; 0 if it did not, or none
    tells."""
    names = layout.parse_names(files.list_names(run_dir))
    for number in reversed(names.attempts.get("start", [])):
        attempt = lease.read_attempt(run_dir, names, number)
        if attempt is None or not attempt.start.resume_from:
            continue
        began = check_resume(attempt.start.log_dir, number, attempt.start.resume_from, is_over=True)
        if began is not None:
            return number if began.continued else 0
    return 0


def _has_continued(steps: _LoggedSteps, before: _LoggedSteps, saved: Optional[int]) -> Optional[bool]:
    """Whether the first progress reaches the checkpoint's step, or half of what was done where its name tells none.

    A program that starts over prints its first step a little later or earlier than the first time, and one that prints
    seldom soon passes the half: then nobody knows.
    """
    first, reached = before.first[0], before.last
    target = float(saved) if saved is not None and first < saved <= reached else (first + reached) / 2
    began, then = steps.first[0], steps.first[-1]
    if began >= target:
        return True
    if then >= target:  # a bar at its beginning, and then where the program is; or seldom a line
        jumped = began <= first and then - began > 2 * (before.first[-1] - first)
        return True if jumped else None
    return False if began <= first or began < first + (then - began) else None


def _earlier_steps(log_dir: str, attempt: int) -> Optional[_LoggedSteps]:
    """Where the earliest of the earlier attempts in the same folder began, and the highest step that one reached."""
    earlier = [_read_steps(layout.log_file(log_dir, number)) for number in range(1, attempt)]
    known = [steps for steps in earlier if steps is not None]
    if not known:
        return None
    return min(known, key=lambda steps: steps.first[0])._replace(last=max(steps.last for steps in known))


def _read_steps(path: str) -> Optional[_LoggedSteps]:
    """What a log tells; None if it tells nothing, or counts from the beginning several times, as a bar per epoch."""
    first: List[float] = []
    last, epochs = None, False
    for line in _lines(path):
        parsed = progress_lines.parse_progress(line)
        if parsed is None or parsed[0] is None:
            continue
        if last is not None and parsed[0] < last:
            return None
        if len(first) < _MIN_STEPS and parsed[0] not in first:
            epochs = epochs or "epoch" in line.lower()
            first.append(parsed[0])
        last = parsed[0]
    return None if last is None else _LoggedSteps(first, last, epochs)


def _lines(path: str) -> List[str]:
    """The beginning and the end of a log, and all of one that is short."""
    head = metric_files.read_start(path, _HEAD_BYTES)
    size = os.path.getsize(path) if len(head) == _HEAD_BYTES else 0
    rest = min(_TAIL_BYTES, size - _HEAD_BYTES)
    return progress_lines.split_lines(head) + (
        progress_lines.split_lines(metric_files.read_end(path, rest)) if rest > 0 else []
    )
