"""Which files of a directory are samples, and of which class: decided from names alone, refused where unclear.

    images/cat/1.jpg  images/dog/a/2.jpg         the top directories are the classes, as in torchvision
    images/train/cat/1.jpg  images/val/...       splits: one at a time, with the classes of all of them
    images/README.md  images/cat/.DS_Store       stray: left out and reported

An ambiguous directory is an error with the flags that settle it. `include` takes exactly what it names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from shoal.errors import InputError

LABELS = ("auto", "folder", "parent", "none")
ALL_SPLITS = "all"
SPLIT_NAMES = ("train", "training", "trn", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation")
#: What systems and tools leave in folders; names that begin with a dot count, too.
_SYSTEM_NAMES = ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found", "__pycache__")
_MEDIA_EXTENSIONS = {
    "images": "jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm jp2 avif heic exr hdr",
    "sounds": "wav flac mp3 ogg opus m4a aac",
    "videos": "mp4 avi mov mkv webm mpg mpeg m4v",
}
_MEDIA_TYPE = {ending: family for family, endings in _MEDIA_EXTENSIONS.items() for ending in endings.split()}


class SkippedFiles(NamedTuple):
    """Files that are not sharded, and why; `examples` are the first of them."""

    why: str
    files: int
    examples: list[str]


class FileSelection(NamedTuple):
    """What to shard of a folder. `labels` gives the class number of each path, in the order of `paths`, or None."""

    root: str
    paths: list[str]
    labels: list[int | None]
    classes: list[str]
    skipped: list[SkippedFiles]
    guessed: list[str]


class NameFilter(NamedTuple):
    """Patterns of names: one with a slash is compared with the whole path below the source, others with the name."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def reject_reason(self, path: str) -> str | None:
        """Why a file is left out, or None if it is not."""
        if any(_matches(path, pattern) for pattern in self.exclude):
            return "excluded by --exclude"
        if self.include:
            return None if any(_matches(path, pattern) for pattern in self.include) else "not included by --include"
        return "hidden or of the system" if any(_is_hidden(part) for part in path.split("/")) else None


def select_files(
    root: str, found: Sequence[str], *, label: str, split: str | None, group: str, names: NameFilter
) -> FileSelection:
    """Decide what is sharded of the files below `root`. InputError: it is not clear, with what makes it clear."""
    skipped: dict[str, list[str]] = {}
    guessed: list[str] = []
    paths = []
    for path in sorted(found):
        why = names.reject_reason(path)
        if why is None:
            paths.append(path)
        else:
            skipped.setdefault(why, []).append(path)
    root, paths, other_classes = _take_split(root, paths, label, split, skipped, guessed)
    depth = 1 if split == ALL_SPLITS else 0
    if not names.include:
        paths = _drop_other_types(root, paths, group, skipped)
    kind = _guess_label_mode(root, paths, depth, guessed) if label == "auto" else label
    if kind != "none":
        paths = _drop_unclassified(root, paths, depth, skipped)
    class_of = [None if kind == "none" else _class_name(path, kind, depth) for path in paths]
    here = {name for name in class_of if name is not None}
    classes = sorted(here | (other_classes if here and kind == "folder" else set()))
    if other_classes and here and classes != sorted(here):
        guessed.append(
            f"{len(classes) - len(here)} classes have no sample in this split; they are numbered all the same"
        )
    number = {name: place for place, name in enumerate(classes)}
    labels = [None if name is None else number[name] for name in class_of]
    skipped_files = [SkippedFiles(why, len(some), some[:3]) for why, some in skipped.items()]
    return FileSelection(root, paths, labels, classes, skipped_files, guessed)


def _take_split(
    root: str, paths: list[str], label: str, split: str | None, skipped: dict[str, list[str]], guessed: list[str]
) -> tuple[str, list[str], set[str]]:
    """(root, paths below it, classes of the other splits)."""
    tops = _top_directories(paths)
    named = sorted(top for top in tops if top.lower() in SPLIT_NAMES)
    others = sorted(tops - set(named))
    if split is None:
        if label == "folder" or not named or (label == "none" and len(named) == 1):
            return root, paths, set()
        if others:
            raise InputError(
                f"{root} has folders that look like splits ({', '.join(named)}) and others ({_first_names(others)})",
                hint=f"--split {named[0]} selects that one; --label folder makes each of them a class",
            )
        if len(named) > 1:
            raise InputError(
                f"{root} has the splits {', '.join(named)}, which are data sets of their own",
                hint=f"--split {named[0]} selects that one; --split {ALL_SPLITS} mixes them into one data set",
            )
        split = named[0]
        guessed.append(f"{split}/ is a split, and the only one (--label folder would make it a class)")
    if split != ALL_SPLITS and split not in tops:
        raise InputError(
            f"{root} has no folder {split!r} (folders: {_first_names(sorted(tops)) or 'none'})", place="--split"
        )
    if split == ALL_SPLITS and not named:
        raise InputError(f"{root} has no splits (folders: {_first_names(sorted(tops)) or 'none'})", place="--split")
    wanted = set(named) if split == ALL_SPLITS else {split}
    for path in paths:
        if path.partition("/")[0] not in wanted and (split == ALL_SPLITS or path.partition("/")[0] not in named):
            skipped.setdefault("beside the splits", []).append(path)
    if split == ALL_SPLITS:
        return root, [path for path in paths if path.partition("/")[0] in wanted], set()
    left = [path for path in paths if path.partition("/")[0] in named and not path.startswith(split + "/")]
    if left:
        skipped["of other splits"] = left
    siblings = {path.split("/")[1] for path in paths if path.partition("/")[0] in named and path.count("/") > 1}
    inside = [path[len(split) + 1 :] for path in paths if path.startswith(split + "/")]
    return os.path.join(root, split), inside, siblings


def _drop_other_types(root: str, paths: list[str], group: str, skipped: dict[str, list[str]]) -> list[str]:
    """Without what is of another kind than most samples. InputError: files that may be parts of one sample."""
    kinds: dict[str, dict[str, str]] = {}
    for path in paths:
        kinds.setdefault(_stem(path) if group == "stem" else path, {})[_media_type(path)] = path
    if group == "file":
        _refuse_pairs(root, paths)
    counts = Counter(kind for sample in kinds.values() for kind in sample if kind in _MEDIA_EXTENSIONS)
    family, count = counts.most_common(1)[0] if counts else ("", 0)
    if count * 2 < len(kinds) or not family:
        return paths
    stray = [path for path in paths if family not in kinds[_stem(path) if group == "stem" else path]]
    if stray:
        skipped.setdefault(f"not {family}", []).extend(stray)
    gone = set(stray)
    return [path for path in paths if path not in gone]


def _refuse_pairs(root: str, paths: list[str]) -> None:
    stems: dict[str, str] = {}
    for path in paths:
        other = stems.setdefault(_stem(path), path)
        if _media_type(path) != _media_type(other):
            (kind, _), *_ = Counter(map(_media_type, paths)).most_common()
            endings = sorted({_extension(path) for path in paths if _media_type(path) == kind})
            patterns = " ".join(f"--include '*{'.' + ending if ending else ''}'" for ending in endings)
            raise InputError(
                f"{path} and {other} of {root} have one stem: are they one sample or two?",
                hint=f"--group stem makes one sample of each stem; {patterns} selects only those; "
                "--include '*' makes every file a sample",
            )


def _guess_label_mode(root: str, paths: list[str], depth: int, guessed: list[str]) -> str:
    """folder or none; InputError if it could be either."""
    below = [path.split("/", depth)[depth] if path.count("/") >= depth else path for path in paths]
    tops, loose = _top_directories(below), [path for path in below if "/" not in path]
    if not tops:
        guessed.append("no folders, so samples have no class")
        return "none"
    if loose:
        endings = {_extension(path) for path in below if "/" in path}
        alike = [path for path in loose if _extension(path) in endings]
        if alike:
            raise InputError(
                f"{root} has {len(alike):,} files beside its folders, such as {alike[0]}: with or without a class?",
                hint="--label folder leaves them out; --label none takes all files without classes",
            )
    if len(tops) == 1:
        (only,) = tops
        inner = [path[len(only) + 1 :] for path in below if path.startswith(only + "/")]
        if len(_top_directories(inner)) > 1 and all("/" in path for path in inner):
            raise InputError(
                f"{root} has one folder, {only}, with {len(_top_directories(inner)):,} folders in it: "
                "are those the classes?",
                hint=f"shard {os.path.join(root, only)} instead; or --label none",
            )
        guessed.append(f"one folder only ({only}), so samples have no class (--label folder gives them that one)")
        return "none"
    if all(path.count("/") > 1 for path in below if "/" in path):
        example = next(path for path in below if "/" in path).split("/")
        raise InputError(
            f"every file of {root} is two or more folders deep ({'/'.join(example)}): which folder is the class?",
            hint=f"--label folder takes {example[0]}; --label parent takes {example[-2]}; --label none takes none",
        )
    return "folder"


def _drop_unclassified(root: str, paths: list[str], depth: int, skipped: dict[str, list[str]]) -> list[str]:
    """Without the files that lie in no folder, and so in no class."""
    loose = [path for path in paths if path.count("/") <= depth]
    if len(loose) == len(paths) and paths:
        raise InputError(f"{root} has no folders to take classes from", hint="--label none")
    if loose:
        skipped.setdefault("beside the class folders", []).extend(loose)
    return [path for path in paths if path.count("/") > depth]


def _class_name(path: str, kind: str, depth: int) -> str:
    parts = path.split("/")
    return parts[depth] if kind == "folder" else parts[-2]


def _top_directories(paths: Sequence[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths if "/" in path}


def _media_type(path: str) -> str:
    """Which files are alike: all images, all sounds, all videos, else those with the same ending."""
    ending = _extension(path)
    return _MEDIA_TYPE.get(ending, "." + ending)


def _extension(path: str) -> str:
    return os.path.splitext(path)[1][1:].lower()


def _stem(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return folder + slash + name.lstrip(".").partition(".")[0]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
