"""git in one repository, with an index of our own where something is added to it, for snapshot.py and missing_files.py.

Each question is one start of git, which on a busy login node takes a tenth of a second: what every submission asks is
asked together.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import ShoalError

_TIMEOUT_S = 120
_NO_SNAPSHOT_HINT = "add --no-snapshot"
IGNORE_FILE = ".shoalignore"
#: What is seldom code, at the root of a project that has no .gitignore.
_EXCLUDED_PATTERNS = """\
.*/
__pycache__/
*.egg-info/
node_modules/
/venv/
/env/
/data/
/dataset/
/datasets/
/outputs/
/output/
/results/
/logs/
/log/
/runs/
/wandb/
/mlruns/
/checkpoints/
/ckpts/
/tmp/
*.log
*.pt
*.pth
*.ckpt
*.safetensors
*.npy
*.npz
*.h5
*.tar
*.gz
*.zip
"""


class SnapshotError(ShoalError):
    """The code could not be kept."""


class GitMissingError(SnapshotError):
    """There is no git that runs."""


class GitPlace(NamedTuple):
    """Where a repository has its root and its index, its commit and the tree of that; neither before the first one."""

    top: Path
    index_file: Path
    commit: str | None = None
    tree: str | None = None


class GitFiles(NamedTuple):
    """`modes` are those of the files in the index, as git writes them ("100644")."""

    modes: dict[str, str]
    untracked: list[str]


class GitIndex:
    """git in one repository, with an index of our own, so that the user's stays as it is."""

    def __init__(self, cwd: Path, environ: Mapping[str, str], index: Path | None = None) -> None:
        self.cwd, self.environ, self.index = cwd, environ, index
        self.commit: str | None = None
        self.commit_tree: str | None = None
        hidden = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        own = {"GIT_INDEX_FILE": str(index)} if index else {"GIT_OPTIONAL_LOCKS": "0"}
        self.env = {**hidden, "LC_ALL": "C", **own}

    def in_repository(self, place: GitPlace, index: Path | None = None) -> GitIndex:
        git = GitIndex(place.top, self.environ, index)
        git.commit, git.commit_tree = place.commit, place.tree
        return git

    def with_index(self, place: GitPlace, index: Path) -> GitIndex:
        """A copy of the user's index saves git from reading every file again. With its time: a file that changed in the
        second in which the index was written is read again by that alone.
        """
        if place.index_file.is_file():
            shutil.copy2(place.index_file, index)
        git = self.in_repository(place, index)
        git.look_at_all_files()
        return git

    def open_inside(self, top: Path, index: Path) -> GitIndex:
        """A repository inside of another, which may be one that git cannot read: told when it is used."""
        place = self.find_repository()
        return GitIndex(top, self.environ, index) if place is None else self.with_index(place._replace(top=top), index)

    def look_at_all_files(self) -> None:
        """Forget which files git was told not to look at (assume-unchanged, skip-worktree): runs get them as they are.
        A file that a sparse checkout leaves out stays out."""
        tagged = [line.partition(" ") for line in self.names("ls-files", "-v", "-z")]
        unlooked = [name for tag, _, name in tagged if tag.islower()]
        skipped = [name for tag, _, name in tagged if tag in "Ss" and os.path.lexists(self.cwd / name)]
        for flag, names in (("--no-assume-unchanged", unlooked), ("--no-skip-worktree", skipped)):
            if names:
                self.must("update-index", flag, "-z", "--stdin", given="\0".join(names))

    def outside_of_git(self, folder: Path) -> GitIndex:
        """The same folder as the work tree of an empty repository elsewhere."""
        git = GitIndex(self.cwd, self.environ, folder / "index")
        git.env.update(GIT_DIR=str(folder), GIT_WORK_TREE=str(self.cwd.resolve()))
        git.must("init", "-q")
        own = self.cwd / IGNORE_FILE
        text = own.read_text("utf-8", "surrogateescape") if own.is_file() else ""
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "exclude").write_text(_EXCLUDED_PATTERNS + text, "utf-8", "surrogateescape")
        return git

    def ask(self, *words: str) -> str | None:
        """One line of answer, or None."""
        try:
            done = self._run(words, "")
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape").strip() or None if done.returncode == 0 else None

    def matches(self, pattern: str, where: str = "--cached", without: Sequence[str] = ()) -> set[str]:
        """What the text files of the index have that matches; or, with "--untracked", those of the working tree."""
        excluded = [f":(exclude){name}" for name in without]
        done = self._run(("grep", "-hoIE", where, "-e", pattern, "--", ".", *excluded), "")
        return set(done.stdout.decode("utf-8", "replace").splitlines()) if done.returncode == 0 else set()

    def list_files(self) -> GitFiles:
        """What the index has, and what else is not ignored."""
        modes, untracked = {}, []
        for line in self.names("ls-files", "-t", "--stage", "--others", "--exclude-standard", "-z"):
            if line.startswith("? "):
                untracked.append(line[2:])
                continue
            tag_and_mode, _, name = line.partition("\t")
            modes[name] = tag_and_mode.split(" ")[1]
        return GitFiles(modes, untracked)

    def list_blobs(self) -> list[tuple[str, str]]:
        """(content, path) of each file in the index, without submodules; the content is git's digest, with the mode."""
        pairs = [line.partition("\t") for line in self.names("ls-files", "--stage", "-z")]
        return [(head, path) for head, _, path in pairs if not head.startswith("160000")]

    def find_repository(self) -> GitPlace | None:
        """The repository around; None outside of one. One that git refuses to read is a SnapshotError."""
        words = ("rev-parse", "--show-toplevel", "--git-path", "index", "--revs-only", "HEAD", "HEAD^{tree}")
        try:
            done = self._run(words, "")
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GitMissingError(f"git cannot be run: {error}", hint=_NO_SNAPSHOT_HINT) from None
        if done.returncode == 0:
            top, index, *head = done.stdout.decode("utf-8", "surrogateescape").splitlines()
            commit, tree = head if len(head) == 2 else (None, None)
            return GitPlace(Path(top), self.cwd / index, commit, tree)
        message = done.stderr.decode("utf-8", "replace")
        if "not a git repository" in message:
            return None
        if self.ask("--version") is None:
            raise GitMissingError("git cannot be run", hint=_NO_SNAPSHOT_HINT)
        owned = re.search(r"dubious ownership in repository at '(.+)'", message)
        if owned is None:
            raise SnapshotError(
                f"git cannot read the repository: {' '.join(message.split())[-200:]}", hint=_NO_SNAPSHOT_HINT
            )
        raise SnapshotError(
            f"git does not read the repository {owned[1]}, because another user owns it",
            hint=f"git config --global --add safe.directory {shlex.quote(owned[1])}   # or add --no-snapshot",
        )

    def difference(self, commit: str, without: Sequence[str], path: str = "") -> str:
        """What was changed since the commit, whatever diff programs and converters the user has set up."""
        plain = ("--no-ext-diff", "--no-textconv", "--no-color", f"--src-prefix=a/{path}", f"--dst-prefix=b/{path}")
        excluded = [f":(top,exclude,literal){name}" for name in without]
        return self.text("diff", "--cached", "--binary", *plain, commit, "--", ".", *excluded)

    def must(self, *words: str, given: str = "") -> str:
        return self.text(*words, given=given).strip()

    def names(self, *words: str) -> list[str]:
        return [name for name in self.text(*words).split("\0") if name]

    def text(self, *words: str, given: str = "") -> str:
        try:
            done = self._run(words, given)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SnapshotError(f"the code could not be kept: {error}", hint=_NO_SNAPSHOT_HINT) from None
        if done.returncode != 0:
            message = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise SnapshotError(f"the code could not be kept: git {words[0]}: {message}", hint=_NO_SNAPSHOT_HINT)
        return done.stdout.decode("utf-8", "surrogateescape")

    def _run(self, words: Sequence[str], given: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", "-c", "core.sparseCheckout=false", *words],
            cwd=self.cwd,
            env=self.env,
            input=given.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
