"""The code as it is now, kept for jobs that start later: a queued run executes what was there when it was submitted.

For a project in git: tracked files with their changes, and untracked ones that are not ignored, are written to
snapshots/<tree> under the state folder, once for each state of the code. What git ignores (data, environments, compiled
extensions) is linked, so that paths still lead there. The commit and the difference to it stand beside it. A project
outside of git has nothing that says what is code, and runs from where it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import ShoalError

#: An untracked file larger than this is data, and is linked like what git ignores.
_LARGEST_UNTRACKED = 5 << 20
_TIMEOUT_S = 120


class Code(NamedTuple):
    """Where the project's root stands in the snapshot, and which state of the code it is."""

    root: str
    commit: str | None
    tree: str
    changed: bool


class SnapshotError(ShoalError):
    """The code could not be kept."""


def take(root: Path, home: Path, environ: Mapping[str, str]) -> Code | None:
    """Keep the code around `root`; None where there is no git repository. The repository is not changed."""
    git = _Git(root, environ)
    top = git.ask("rev-parse", "--show-toplevel")
    if top is None:
        return None
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        git = git.with_index(Path(top), Path(folder) / "index")
        kept_out = _add_everything(git, Path(top), home, root)
        tree = git.must("write-tree")
        commit = git.ask("rev-parse", "--verify", "HEAD")
        target = home / "snapshots" / tree[:16]
        difference = git.text("diff", "--cached", "--binary", commit) if commit else ""
        if not target.exists():
            _write(git, Path(top), target, kept_out)
            facts = {"schema": 1, "commit": commit, "tree": tree, "branch": git.ask("branch", "--show-current")}
            target.with_suffix(".json").write_text(json.dumps({**facts, "changed": bool(difference)}) + "\n")
            if difference:
                target.with_suffix(".diff").write_text(difference, "utf-8", "surrogateescape")
    inside = os.path.relpath(root.resolve(), Path(top).resolve())
    return Code(os.path.normpath(target / inside), commit, tree, bool(difference))


def _add_everything(git: _Git, top: Path, home: Path, root: Path) -> list[str]:
    """Put changes and small untracked files into our own index; returns the untracked paths that are left out."""
    git.must("add", "--update", ".")
    ours = [os.path.relpath(path, top.resolve()) + "/" for path in (home.resolve(), (root / "outputs").resolve())]
    small: list[str] = []
    out: list[str] = []
    for name in git.names("ls-files", "--others", "--exclude-standard", "-z"):
        path = top / name
        if name.startswith(tuple(ours)):
            continue
        is_small = not path.is_symlink() and path.is_file() and path.stat().st_size <= _LARGEST_UNTRACKED
        (small if is_small or path.is_symlink() else out).append(name)
    if small:
        git.must("update-index", "--add", "-z", "--stdin", given="\0".join(small))
    return out


def _write(git: _Git, top: Path, target: Path, kept_out: Sequence[str]) -> None:
    """Write the tree beside its name and rename it, so that nobody ever starts in half of one."""
    target.parent.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        git.must("checkout-index", "--all", f"--prefix={partial}/")
        ignored = git.names("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        modules = [
            line.partition("\t")[2] for line in git.names("ls-files", "--stage", "-z") if line.startswith("160000")
        ]
        for name in (*ignored, *modules, *kept_out):
            _link(top / name.rstrip("/"), partial / name.rstrip("/"))
        partial.chmod(0o755)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():  # another command may have written the same tree meanwhile
            raise


def _link(original: Path, link: Path) -> None:
    if link.name in (".shoal", "__pycache__") or (os.path.lexists(link) and not _is_empty(link)):
        return
    if link.is_dir():
        link.rmdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(original)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


class _Git:
    """git in one repository, with an index of our own, so that the user's stays as it is."""

    def __init__(self, cwd: Path, environ: Mapping[str, str], index: Path | None = None) -> None:
        self.cwd, self.environ = cwd, environ
        hidden = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        self.env = {**hidden, "LC_ALL": "C", **({"GIT_INDEX_FILE": str(index)} if index else {})}

    def with_index(self, top: Path, index: Path) -> _Git:
        """A copy of the user's index saves git from reading every file again."""
        current = self.ask("rev-parse", "--git-path", "index")
        if current and (self.cwd / current).is_file():
            shutil.copyfile(self.cwd / current, index)
        return _Git(top, self.environ, index)

    def ask(self, *words: str) -> str | None:
        """One line of answer, or None."""
        try:
            done = self._run(words, "")
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape").strip() or None if done.returncode == 0 else None

    def must(self, *words: str, given: str = "") -> str:
        return self.text(*words, given=given).strip()

    def names(self, *words: str) -> list[str]:
        return [name for name in self.text(*words).split("\0") if name]

    def text(self, *words: str, given: str = "") -> str:
        try:
            done = self._run(words, given)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SnapshotError(f"the code could not be kept: {error}", hint="add --no-snapshot") from None
        if done.returncode != 0:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise SnapshotError(f"the code could not be kept: git {words[0]}: {said}", hint="add --no-snapshot")
        return done.stdout.decode("utf-8", "surrogateescape")

    def _run(self, words: Sequence[str], given: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", *words],
            cwd=self.cwd,
            env=self.env,
            input=given.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
