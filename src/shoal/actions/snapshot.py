"""A copy of the code at submission, for jobs that start later: a run in the queue executes the code that was submitted.

Tracked files with their changes, and untracked ones that are not ignored, are written to snapshots/<tree> under the
state directory, once for each state of the code. What git ignores (data, environments, compiled extensions) is linked,
so that paths still lead there, and so are untracked files that hold secrets (.env); except directories that look like
outputs: each run has its own (job/workdir.py), and missing_files.py reports them. Submodules and other repositories
inside are kept in the same way. State directories (.shoal) and outputs are left out, also of other projects in the
repository. The commit and the difference to it are beside it. A project outside of git is treated as if it had just
been added to git: a list of usual names and its .shoalignore say what is not code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal import redaction
from shoal.actions.git_index import IGNORE_FILE, GitIndex, GitMissingError, SnapshotError
from shoal.job import PARENT_PATH, parent_paths
from shoal.kernel import is_shared, layout, make_dir, refuse_untrusted, replace, to_json

#: An untracked file larger than this is data, and is linked like what git ignores.
_MAX_UNTRACKED_BYTES = 5 << 20
#: More than this is not code that somebody wrote.
_MAX_FILES = 20_000
_MAX_BYTES = 500 << 20
STATE_DIRECTORY = ".shoal"

#: Names of folders that programs write to, and of files that they write. Those that git ignores are not linked: they
#: would be the same for all runs. Not `models` and `weights`, which programs read as often.
_OUTPUT_DIRECTORIES = (
    *("out", "output", "outputs", "output_dir", "result", "results", "eval_results", "predictions", "run", "runs"),
    *("log", "logs", "logdir", "log_dir", "lightning_logs", "tb_logs", "csv_logs", "tensorboard", "multirun"),
    *("checkpoint", "checkpoints", "ckpt", "ckpts", "save", "saved", "saves", "saved_models", "trained_models"),
    *("work_dir", "work_dirs", "exp", "exps", "artifacts", "wandb", "mlflow", "mlruns", "mlartifacts"),
)
WEIGHT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
_OUTPUT_SUFFIXES = (*WEIGHT_SUFFIXES, ".log", ".out", ".err")
#: Files that change no result of a program: two snapshots that differ in them alone are the same code.
_NOT_CODE = re.compile(
    r"/shoal\.toml$|/experiments/(?:.*/)?[^/]+\.(?:sh|toml|py)$|/tests?/|/test_[^/]+\.py$|/conftest\.py$|/docs/|/\.git[^/]*"
    r"|/(?:LICEN[CS]E|COPYING|CHANGELOG|README)[^/]*$|\.(?:md|rst|ipynb|png|jpe?g|svg|pdf|gif|log)$",
    re.IGNORECASE,
)
#: Compiled extensions are code, whatever folder they are in.
_COMPILED_SUFFIXES = (".so", ".pyd", ".dylib", ".egg-info")


class CodeSnapshot(NamedTuple):
    """Where the project's root stands in the snapshot, and which state of the code it is. `secrets` are untracked files
    that were not copied. `size` is what each run gets a copy of, in bytes."""

    root: str
    commit: str | None
    tree: str
    changed: bool
    secrets: tuple[str, ...] = ()
    size: int = 0


def is_program_output(name: str) -> bool:
    """Whether a path that git ignores looks like something that programs write: by its name, or that of a folder which
    it is in."""
    if name.endswith(_COMPILED_SUFFIXES):
        return False
    return name.endswith(_OUTPUT_SUFFIXES) or any(part in _OUTPUT_DIRECTORIES for part in name.split("/"))


def open_git(
    root: Path, environ: Mapping[str, str], folder: Path, *, reads_only: bool = False
) -> tuple[GitIndex, Path, str] | None:
    """git for the code around `root`, with an index in `folder`, or for one who `reads_only` with the user's own; the
    code's top, and the file that says what is not code. None where there is no git."""
    git = GitIndex(root, environ)
    try:
        place = git.find_repository()
    except GitMissingError:
        return None
    if place is None:
        return git.outside_of_git(folder / "git"), root, IGNORE_FILE
    index = None if reads_only else folder / "index"
    return (git.in_repository(place) if index is None else git.with_index(place, index)), place.top, ".gitignore"


def take_snapshot(root: Path, home: Path, environ: Mapping[str, str], link: Sequence[str] = ()) -> CodeSnapshot | None:
    """Keep the code around `root`; None where there is no git to do it. A repository is not changed by it.

    `link` are paths in `root` that runs see as they are in the project, whatever their names.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        opened = open_git(root, environ, Path(folder))
        if opened is None:
            return None
        git, top, ignore = opened
        inside = os.path.relpath(root.resolve(), top.resolve())
        wanted = [os.path.normpath(os.path.join(inside, name)) for name in link]
        parts = _add_repositories(git, top, home, root, ignore, wanted)
        tree, commit = parts[0].tree, git.commit
        shared = is_shared(str(home))
        target = Path(layout.snapshots_dir(str(home), shared)) / tree[:16]
        difference = "".join(part.difference() for part in parts)
        if not target.exists():
            above = sorted(parent_paths(match for part in parts for match in part.git.matches(PARENT_PATH)))
            make_dir(str(target.parent))
            partial = _write_trees(parts, target, shared)
            facts = {"schema": 1, "commit": commit, "tree": tree, "branch": git.ask("branch", "--show-current")}
            more = {"changed": bool(difference), "above": above, "size": _size_of(partial), "code": _code_digest(parts)}
            more["links"] = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_symlink())
            replace(f"{target}.json", to_json({**facts, **more}), sync=False)
            if difference:
                redacted = redaction.redact(difference, redaction.secret_values(environ))
                replace(f"{target}.diff", redacted.encode("utf-8", "surrogateescape"), sync=False)
            _rename(partial, target)
        refuse_untrusted(str(target))
        for name in wanted:
            if not os.path.lexists(top / name):
                (top / name).mkdir(parents=True)
            _link(top / name, target / name)
        for part in parts:
            _link_excluded(part, target)
        os.utime(target)  # its last use, for `shoal clean`
    where = os.path.normpath(target / inside)
    secrets = tuple(part.path + name for part in parts for name in part.secrets)
    return CodeSnapshot(where, commit, tree, bool(difference), secrets, _size_in(f"{target}.json"))


def delivered_snapshot(code: Path, root: Path, home: Path, link: Sequence[str] = ()) -> CodeSnapshot:
    """The snapshot that came over ssh, whose project is at `code`, completed with what only the cluster has: names in
    the project's directory there that no file of the code has are linked, as what git ignores is elsewhere."""
    top = Path(layout.snapshot_of(str(code)))
    refuse_untrusted(str(top))
    for name in link:
        if not os.path.lexists(root / name):
            (root / name).mkdir(parents=True)
        _link(root / name, code / name)
    _link_absent(root, code, "")
    os.utime(top)
    record = json.loads(Path(f"{top}.json").read_bytes())
    return CodeSnapshot(str(code), record.get("commit"), record["tree"], bool(record["changed"]), (), record["size"])


def _link_absent(root: Path, code: Path, inside: str) -> None:
    """Link what `root` has and `code` has not, folder by folder."""
    for entry in os.scandir(root / inside):
        name, copy = os.path.join(inside, entry.name), code / inside / entry.name
        if entry.name in (STATE_DIRECTORY, ".git", "__pycache__") or is_program_output(name):
            continue
        if not os.path.lexists(copy):
            _link(root / name, copy)
        elif entry.is_dir(follow_symlinks=False) and copy.is_dir() and not copy.is_symlink():
            _link_absent(root, code, name)


def is_in_git(root: Path, environ: Mapping[str, str]) -> bool:
    try:
        return GitIndex(root, environ).find_repository() is not None
    except GitMissingError:
        return False


class _Repository(NamedTuple):
    """A repository of the code: the first one has all others, submodules for instance, at `path` ("lib/" or "") in it.
    Not in our index, besides what git ignores: large untracked files, those that hold secrets, folders of outputs and
    of state, and folders `not_kept` that should be repositories."""

    git: GitIndex
    top: Path
    path: str
    large: list[str]
    secrets: list[str]
    outputs: list[str]
    state: list[str]
    not_kept: list[str]
    gitlinks: list[str]
    tree: str = ""

    def difference(self) -> str:
        if self.git.commit is None or self.tree == self.git.commit_tree:
            return ""
        return self.git.difference(self.git.commit, [*self.outputs, *self.state], self.path)


def _add_repositories(
    git: GitIndex, top: Path, home: Path, root: Path, ignore: str, wanted: Sequence[str], path: str = ""
) -> list[_Repository]:
    """Put changes and small untracked files into our own index, and those of repositories inside into theirs; returns
    all of these repositories. What is wanted from the project itself is in none."""
    part = _add_repository(git, top, home, root, ignore, wanted, path)
    parts = [part]
    inside = [name.rstrip("/") for name in part.large if (top / name / ".git").exists()]
    for number, name in enumerate(dict.fromkeys([*part.gitlinks, *inside])):
        if not (top / name / ".git").exists():
            part.not_kept.append(name)
            continue
        index = Path(f"{git.index}-{number}")
        below = [os.path.relpath(one, name) for one in wanted if one.startswith(f"{name}/")]
        sub = GitIndex(top / name, git.environ).open_inside(top / name, index)
        added = _add_repositories(sub, top / name, home, root, ".gitignore", below, f"{path}{name}/")
        parts += added
        tree = added[0].tree
        # The tree, where it is not that of a commit: the snapshot of other changes has another name.
        commit = sub.commit if sub.commit is not None and tree == sub.commit_tree else tree
        git.must("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    part.large[:] = [name for name in part.large if name.rstrip("/") not in inside]
    return [part._replace(tree=git.must("write-tree")), *parts[1:]]


def _add_repository(
    git: GitIndex, top: Path, home: Path, root: Path, ignore: str, wanted: Sequence[str], path: str
) -> _Repository:
    git.must("add", "--update", ".")
    not_code = _OutputDirectories(top, home, root)
    linked = tuple(f"{name}/" for name in wanted)
    files = git.list_files()
    tracked = [name for name in files.modes if not_code.around(name) or f"{name}/".startswith(linked)]
    if tracked:
        git.must("update-index", "--force-remove", "-z", "--stdin", given="\0".join(tracked))
    small: list[str] = []
    large: list[str] = []
    secrets: list[str] = []
    size = 0
    for name in files.untracked:
        file = top / name
        if not_code.around(name) or f"{name}/".startswith(linked):
            continue
        if redaction.is_secret_file(file.name):
            secrets.append(name)
            continue
        is_small = not file.is_symlink() and file.is_file() and file.stat().st_size <= _MAX_UNTRACKED_BYTES
        (small if is_small or file.is_symlink() else large).append(name)
        size += file.stat().st_size if is_small else 0
    if len(small) > _MAX_FILES or size > _MAX_BYTES:
        [(folder, _)] = Counter(name.split("/")[0] for name in small).most_common(1)
        raise SnapshotError(
            f"the code could not be kept: {len(small)} untracked files with {size >> 20} MB, most of them in {folder}",
            hint=f"echo '/{folder}' >> {top / ignore}   # it is linked then; or add --no-snapshot",
        )
    if small:
        git.must("update-index", "--add", "-z", "--stdin", given="\0".join(small))
    gone = set(tracked)
    gitlinks = [name for name, mode in files.modes.items() if mode == "160000" and name not in gone]
    return _Repository(git, top, path, large, secrets, list(not_code.outputs), list(not_code.state), [], gitlinks)


class _OutputDirectories:
    """Folders of state and outputs of every project in the repository, as they are met."""

    def __init__(self, top: Path, home: Path, root: Path) -> None:
        self.top = top
        self.home = os.path.relpath(home.resolve(), top.resolve())
        self.state: dict[str, None] = {}
        self.outputs: dict[str, None] = {}
        inside = os.path.relpath(root.resolve(), top.resolve())
        self._is_project = {"" if inside == os.curdir else inside: True}

    def around(self, name: str) -> bool:
        """Whether a path lies in a folder of state or outputs, which is then noted."""
        parts = name.split("/")
        for at, part in enumerate(parts[:-1]):
            folder, parent = "/".join(parts[: at + 1]), "/".join(parts[:at])
            if part == STATE_DIRECTORY or folder == self.home:
                self.state[folder] = None
                return True
            if part == "outputs" and self._has_state(parent):
                self.outputs[folder] = None
                return True
        return False

    def _has_state(self, parent: str) -> bool:
        if parent not in self._is_project:
            folder = self.top / parent
            self._is_project[parent] = (folder / "shoal.toml").is_file() or (folder / STATE_DIRECTORY).is_dir()
        return self._is_project[parent]


def _write_trees(parts: Sequence[_Repository], target: Path, shared: bool) -> Path:
    """Write the trees beside their name, so that nobody ever starts in half of one.

    In a shared project the group can read it and only its owner change it.
    """
    umask = os.umask(0o027) if shared else None
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        for part in parts:
            part.git.must("checkout-index", "--all", f"--prefix={partial}/{part.path}")
        partial.chmod(0o750 if shared else 0o755)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        if umask is not None:
            os.umask(umask)
    return partial


def _code_digest(parts: Sequence[_Repository]) -> str:
    """Equal for snapshots whose code is: descriptions of experiments, which each run has in its own record, tests, and
    files that people read do not count."""
    lines = [
        f"{blob} {part.path}{name}"
        for part in parts
        for blob, name in part.git.list_blobs()
        if not _NOT_CODE.search(f"/{part.path}{name}")
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _rename(partial: Path, target: Path) -> None:
    try:
        os.rename(partial, target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():  # another command may have written the same tree meanwhile
            raise


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _size_in(record: str) -> int:
    try:
        return int(json.loads(Path(record).read_bytes()).get("size", 0))
    except (OSError, ValueError):
        return 0


def _link_excluded(part: _Repository, target: Path) -> None:
    """Link what is not code, each time: data may have come since the same code was kept first. Not what is in a state
    directory, which git ignores piece by piece: all runs change it, and none looks for it there."""
    for name in [*ignored_paths(part.git), *part.large, *part.secrets, *part.outputs, *part.not_kept]:
        if not is_program_output(name) and STATE_DIRECTORY not in name.split("/"):
            _link(part.top / name, target / part.path / name)


def ignored_paths(git: GitIndex) -> list[str]:
    """What git ignores: of folders that have nothing else, the folder."""
    names = git.names("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    return [name.rstrip("/") for name in names]


def _link(original: Path, link: Path) -> None:
    if (
        link.name in (STATE_DIRECTORY, "__pycache__")
        or not os.path.lexists(original)
        or (os.path.lexists(link) and not _is_empty(link))
    ):
        return
    if link.is_dir():
        link.rmdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        link.symlink_to(original)
    except FileExistsError:
        pass  # another command was faster


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
