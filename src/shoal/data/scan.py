"""The samples of a directory, or of a list of files with fields: keys, labels and sizes, before anything is sharded.

File names need not be text: they are kept as Python keeps them (lone surrogates for bytes that are not UTF-8). A key is
made safe for every tool that reads the shards; the original name stays in the index, and `unpack` restores it.
"""

from __future__ import annotations

import csv
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shoal.data.file_selection import ALL_SPLITS, LABELS, NameFilter, SkippedFiles, select_files
from shoal.errors import InputError

#: Threads that ask for sizes: on network storage a stat is a round trip, and a million of them one by one take hours.
#: On a local disk it is microseconds, and threads only stand in each other's way.
_STAT_THREADS, _SLOW_STAT_S = 16, 100e-6
_TIMED_STATS = 256
_PATH_COLUMNS = ("path", "file", "filename", "file_name", "image")
_LABEL_COLUMNS = ("label", "class", "cls")
_SPLIT_COLUMNS = ("split", "subset", "partition")
_LIST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".txt", ".list")


class SourceFile(NamedTuple):
    path: str
    size: int
    mtime_ns: int


class SourceSample(NamedTuple):
    """One sample to write: (field, file) pairs, a class number if there is one, and fields of a list's row."""

    key: str
    files: tuple[tuple[str, SourceFile], ...]
    label: int | None = None
    row: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        return sum([file.size for _, file in self.files])


class SourceScan(NamedTuple):
    """What there is. `bad` cannot be sharded, `skipped` is not meant to be; `guessed` is what nobody said."""

    root: str
    samples: list[SourceSample]
    classes: list[str]
    notes: list[str]
    bad: list[str]
    skipped: list[SkippedFiles]
    guessed: list[str]

    def class_counts(self) -> dict[str, int]:
        """Samples of each class, by its name, or by its number where a list has only numbers."""
        counts = Counter(sample.label for sample in self.samples if sample.label is not None)
        names = dict(enumerate(self.classes)) if self.classes else {number: str(number) for number in sorted(counts)}
        return {name: counts[number] for number, name in names.items()}

    def field_counts(self) -> dict[str, int]:
        """Samples that have each field."""
        counts = Counter(field for sample in self.samples for field, _ in sample.files)
        counts.update("cls" for sample in self.samples if sample.label is not None)
        counts.update("json" for sample in self.samples if sample.row)
        return dict(counts.most_common())


def scan_source(
    source: str,
    *,
    group: str = "file",
    label: str = "auto",
    path_column: str | None = None,
    split: str | None = None,
    names: NameFilter = NameFilter(),  # noqa: B008 (immutable)
) -> SourceScan:
    """Look at a source without reading its files. `bad` names what cannot be sharded, each with the reason."""
    if label not in LABELS:
        raise InputError(f"unknown --label {label!r}", hint=f"--label {'|'.join(LABELS)}")
    if os.path.isdir(source):
        found = _scan_folder(source, group, label, split, names)
    elif os.path.isfile(source) and source.lower().endswith(_LIST_SUFFIXES):
        found = _scan_list(source, label, path_column, split, names)
    elif os.path.exists(source):
        raise InputError(f"{source} is neither a folder nor a list", hint=f"a list ends in {', '.join(_LIST_SUFFIXES)}")
    else:
        raise InputError(f"there is no {source}", hint="ls " + (os.path.dirname(source) or "."))
    if not found.samples and not found.bad:
        left = "; ".join(f"{one.files} files are {one.why}" for one in found.skipped)
        raise InputError(f"there is nothing to shard in {source}: {left or 'no file in it'}")
    return found


def escape_name(text: str) -> str:
    """A name for tar, shells and terminals: control characters, "%" and bytes that are not UTF-8 become %XX."""
    if text.isascii() and text.isprintable() and "%" not in text:
        return text
    parts = []
    for letter in text:
        if letter == "%" or not letter.isprintable() or "\udc80" <= letter <= "\udcff":
            parts += [f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogateescape")]
        else:
            parts.append(letter)
    return "".join(parts)


def _scan_folder(root: str, group: str, label: str, split: str | None, names: NameFilter) -> SourceScan:
    bad: list[str] = []
    notes: list[str] = []
    if group not in ("file", "stem"):
        raise InputError(f"samples are grouped by file or by stem, not by {group!r}", place="--group")
    chosen = select_files(root, list(_walk(root, bad, notes)), label=label, split=split, group=group, names=names)
    label_of = dict(zip(chosen.paths, chosen.labels, strict=True))
    files = sorted(_with_sizes(chosen.root, chosen.paths, bad))
    grouped = _group_by_file(files) if group == "file" else _group_by_stem(files)
    samples = [SourceSample(key, members, label_of[members[0][1].path]) for key, members in grouped]
    skipped = [one._replace(examples=[escape_name(path) for path in one.examples]) for one in chosen.skipped]
    classes = [escape_name(name) for name in chosen.classes]
    return SourceScan(
        chosen.root, samples, classes, notes, bad, skipped, [escape_name(text) for text in chosen.guessed]
    )


def _walk(root: str, bad: list[str], notes: list[str]) -> Iterator[str]:
    """Relative paths of all files; links to folders are followed, but never into a folder that holds them."""
    empty = 0
    todo: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while todo:
        folder, above = todo.pop()
        try:
            status = os.stat(os.path.join(root, folder) if folder else root)
            here = (status.st_dev, status.st_ino)
            if here in above:
                notes.append(f"{escape_name(folder)} is a link to a folder above it and was not followed")
                continue
            with os.scandir(os.path.join(root, folder) if folder else root) as entries:
                listed = list(entries)
        except OSError as error:
            bad.append(f"{escape_name(folder) or root}: {_error_reason(error)}")
            continue
        empty += not listed
        for entry in listed:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                bad.append(f"{escape_name(path)}: {_error_reason(error)}")
                continue
            if is_folder:
                todo.append((path, (*above, here)))
            else:
                yield path
    if empty:
        notes.append(f"{empty} empty folder{'s' if empty > 1 else ''} left out")


def _with_sizes(root: str, paths: Iterable[str], bad: list[str]) -> list[SourceFile]:
    def look(path: str) -> SourceFile | str:
        try:
            status = os.stat(os.path.join(root, path))
        except OSError as error:
            return f"{escape_name(path)}: {_error_reason(error)}"
        if not stat.S_ISREG(status.st_mode):
            return f"{escape_name(path)}: not a file but a {_FILE_TYPES.get(stat.S_IFMT(status.st_mode), 'device')}"
        return SourceFile(path, status.st_size, status.st_mtime_ns)

    listed = list(paths)
    began = time.perf_counter()
    answers = [look(path) for path in listed[:_TIMED_STATS]]
    if time.perf_counter() - began < _SLOW_STAT_S * len(answers):
        answers += map(look, listed[_TIMED_STATS:])
    else:
        chunks = [listed[i : i + 128] for i in range(_TIMED_STATS, len(listed), 128)]
        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            for some in pool.map(lambda chunk: [look(path) for path in chunk], chunks):
                answers += some
    bad += (answer for answer in answers if isinstance(answer, str))
    return [answer for answer in answers if not isinstance(answer, str)]


_FILE_TYPES = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFDIR: "folder"}


def _error_reason(error: OSError) -> str:
    return "too many links in a circle" if error.errno == 40 else (error.strerror or "unreadable").lower()


def _group_by_file(files: Iterable[SourceFile]) -> Iterator[tuple[str, tuple[tuple[str, SourceFile], ...]]]:
    taken: set[str] = set()
    for file in files:
        stem, extension = os.path.splitext(file.path)
        folder, slash, base = escape_name(stem).rpartition("/")
        key = _unique_key(folder + slash + base.replace(".", "_"), taken)
        yield key, ((_field_name(extension[1:]), file),)


def _group_by_stem(files: Iterable[SourceFile]) -> list[tuple[str, tuple[tuple[str, SourceFile], ...]]]:
    groups: dict[str, dict[str, SourceFile]] = {}
    for file in files:
        folder, slash, base = escape_name(file.path).rpartition("/")
        stem, _, extension = base.lstrip(".").partition(".")
        members = groups.setdefault(folder + slash + (stem or "_"), {})
        field = _field_name(extension)
        if field in members:
            raise InputError(
                f"{escape_name(members[field].path)} and {escape_name(file.path)} would be one field of one sample",
                hint="--group file   # makes each file a sample of its own",
            )
        members[field] = file
    return [(key, tuple(members.items())) for key, members in groups.items()]


def _field_name(extension: str) -> str:
    plain = escape_name(extension).lower()
    return plain if plain and not plain.startswith(".") else "bin"


def _unique_key(key: str, taken: set[str]) -> str:
    """WebDataset joins neighbours with one key into one sample, so no two samples may share theirs."""
    candidate, number = key, 2
    while candidate in taken:
        candidate, number = f"{key}~{number}", number + 1
    taken.add(candidate)
    return candidate


def _scan_list(path: str, label: str, path_column: str | None, split: str | None, names: NameFilter) -> SourceScan:
    root = os.path.dirname(os.path.abspath(path))
    rows = list(_read_rows(path))
    if not rows:
        raise InputError(f"{path} lists nothing")
    column = path_column or next((name for name in _PATH_COLUMNS if name in rows[0]), None)
    if column is None or column not in rows[0]:
        raise InputError(
            f"{path} has no column {path_column or 'path'!r}, only {', '.join(map(repr, rows[0]))}",
            hint=f"--path-column {next(iter(rows[0]))}",
        )
    if any(not isinstance(row.get(column), str) or not row[column] for row in rows):
        raise InputError(f"{path} has a row without a value for {column!r}")
    key_label = None if label == "none" else next((name for name in _LABEL_COLUMNS if name in rows[0]), None)
    if label in ("folder", "parent"):
        raise InputError(f"the classes of a list are in a column of it, not in folders: --label {label}")
    classes, numbers = _label_numbers([row.get(key_label) for row in rows]) if key_label else ([], [None] * len(rows))
    every = list(zip(rows, numbers, strict=True))
    taken_rows = [(row, number) for row, number in every if names.reject_reason(row[column]) is None or not any(names)]
    skipped = {"left out by --include or --exclude": len(every) - len(taken_rows)}
    taken_rows = _rows_of_split(path, taken_rows, split, skipped)
    bad: list[str] = []
    known = {file.path: file for file in _with_sizes(root, dict.fromkeys(row[column] for row, _ in taken_rows), bad)}
    taken: set[str] = set()
    samples = []
    for row, number in taken_rows:
        file = known.get(row[column])
        if file is not None:
            key, members = next(_group_by_file([file._replace(path=os.path.normpath(file.path).lstrip("./"))]))
            rest = {name: value for name, value in row.items() if name not in (column, key_label)}
            samples.append(SourceSample(_unique_key(key, taken), ((members[0][0], file),), number, rest or None))
    doubles = len(taken_rows) - len({row[column] for row, _ in taken_rows})
    notes = [f"{doubles} rows name a file that another row names too; each is a sample"] if doubles else []
    without = sum(number is None for _, number in taken_rows)
    if key_label and without:
        notes.append(f"{without:,} rows have no value for {key_label!r}; these samples have no class")
    guessed = [f"files are in column {column!r}"] if path_column is None and len(rows[0]) > 1 else []
    guessed += [f"classes are in column {key_label!r}"] if key_label else []
    skipped_files = [SkippedFiles(why, count, []) for why, count in skipped.items() if count]
    return SourceScan(root, samples, classes, notes, bad, skipped_files, guessed)


def _rows_of_split(
    path: str, rows: list[tuple[dict[str, Any], int | None]], split: str | None, skipped: dict[str, int]
) -> list[tuple[dict[str, Any], int | None]]:
    """The rows of a split. Several splits are data sets of their own, and are not mixed unless asked to."""
    column = next((name for name in _SPLIT_COLUMNS if rows and name in rows[0][0]), None)
    if column is None and split is None:
        return rows
    values = sorted({str(row.get(column or "")) for row, _ in rows}) if column else []
    if split is None and len(values) > 1:
        raise InputError(
            f"{path} has the splits {', '.join(values[:6])} in column {column!r}, which are data sets of their own",
            hint=f"--split {values[0]} selects that one; --split {ALL_SPLITS} mixes them into one data set",
        )
    if split is None or split == ALL_SPLITS:
        return rows
    if split not in values:
        raise InputError(f"{path} has no split {split!r} (splits: {', '.join(values) or 'none'})", place="--split")
    kept = [(row, number) for row, number in rows if str(row.get(column or "")) == split]
    skipped["of other splits"] = len(rows) - len(kept)
    return kept


def _read_rows(path: str) -> Iterator[dict[str, Any]]:
    ending = os.path.splitext(path)[1].lower()
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            if ending in (".csv", ".tsv"):
                yield from csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ",")
            elif ending == ".jsonl":
                for number, line in enumerate(file, 1):
                    if line.strip():
                        row = json.loads(line)
                        if not isinstance(row, dict):
                            raise InputError("a line must be a JSON object", place=f"{path}:{number}")
                        yield row
            else:
                yield from ({"path": line.rstrip("\r\n")} for line in file if line.strip())
    except (csv.Error, ValueError) as error:
        raise InputError(f"{path} cannot be read as {ending[1:]}: {error}") from None


def _label_numbers(values: list[Any]) -> tuple[list[str], list[int | None]]:
    """Numbers stay numbers; words become the position of the word among all words, sorted."""
    try:
        return [], [None if value in (None, "") else int(value) for value in values]
    except (TypeError, ValueError):
        words = sorted({str(value) for value in values if value not in (None, "")})
        place = {word: index for index, word in enumerate(words)}
        return [escape_name(word) for word in words], [place.get(str(value)) for value in values]
