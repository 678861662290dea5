"""The code as it is now, kept for jobs that start later: a queued run executes what was there when it was submitted.

Tracked files with their changes, and untracked ones that are not ignored, are written to snapshots/<tree> under the
state folder, once for each state of the code. What git ignores (data, environments, compiled extensions) is linked, so
that paths still lead there, and so are untracked files that hold secrets (.env); except folders that look like outputs:
each run has its own (agent/workdir.py). State folders (.shoal) and outputs are left out, also of other projects in the
repository. The commit and the difference to it stand beside it. A project outside of git is treated as if it had
just been put there: a list of usual names and its .shoalignore say what is not code.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal import secrecy
from shoal.agent.workdir import UPWARD, upward
from shoal.errors import ShoalError
from shoal.kernel import layout
from shoal.kernel.files import is_shared, make_dir, refuse_foreign, replace, to_json

#: An untracked file larger than this is data, and is linked like what git ignores.
_LARGEST_UNTRACKED = 5 << 20
#: More than this is not code that somebody wrote.
_MOST_FILES = 20_000
_MOST_BYTES = 500 << 20
_TIMEOUT_S = 120
_WITHOUT = "add --no-snapshot"
IGNORE = ".shoalignore"
STATE = ".shoal"
#: What is seldom code, at the root of a project that has no .gitignore.
_NOT_CODE = """\
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


#: Names of folders that programs write to, and of files that they write. Those that git ignores are not linked: they
#: would be the same for all runs.
_WRITTEN = (
    *("out", "output", "outputs", "result", "results", "log", "logs", "run", "runs", "multirun", "save", "saved"),
    *("checkpoint", "checkpoints", "ckpt", "ckpts", "wandb", "mlflow", "mlruns"),
    *("lightning_logs", "tb_logs", "tensorboard"),
)
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")
_WRITTEN_FILES = (*_WEIGHTS, ".log", ".out", ".err")


class Code(NamedTuple):
    """Where the project's root stands in the snapshot, and which state of the code it is. `secrets` are untracked files
    that were not copied. `hidden` are paths that a program may want to read and will not find, because it has its own
    in their place; of new snapshots only."""

    root: str
    commit: str | None
    tree: str
    changed: bool
    hidden: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


class SnapshotError(ShoalError):
    """The code could not be kept."""


def take(root: Path, home: Path, environ: Mapping[str, str], link: Sequence[str] = ()) -> Code | None:
    """Keep the code around `root`; None where there is no git to do it. A repository is not changed by it.

    `link` are paths in `root` that runs see as they are in the project, whatever their names.
    """
    git = _Git(root, environ)
    if git.ask("--version") is None:
        return None
    top = git.top()
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        if top is None:
            top, ignore = str(root), IGNORE
            git = git.outside_of_git(Path(folder) / "git")
        else:
            ignore = ".gitignore"
            git = git.with_index(Path(top), Path(folder) / "index")
        left_out = _add_everything(git, Path(top), home, root, ignore)
        tree = git.must("write-tree")
        commit = git.ask("rev-parse", "--verify", "HEAD")
        shared = is_shared(str(home))
        target = Path(layout.snapshots_dir(str(home), shared)) / tree[:16]
        difference = git.difference(commit, [*left_out.outputs, *left_out.state]) if commit else ""
        is_new = not target.exists()
        if is_new:
            facts = {"schema": 1, "commit": commit, "tree": tree, "branch": git.ask("branch", "--show-current")}
            above = sorted(upward(git.matches(UPWARD)))
            make_dir(str(target.parent))
            replace(f"{target}.json", to_json({**facts, "changed": bool(difference), "above": above}), sync=False)
            _write(git, target, shared)
            if difference:
                told = secrecy.redact(difference, secrecy.secret_values(environ))
                replace(f"{target}.diff", told.encode("utf-8", "surrogateescape"), sync=False)
        refuse_foreign(str(target))
        inside = os.path.relpath(root.resolve(), Path(top).resolve())
        wanted = [os.path.normpath(os.path.join(inside, name)) for name in link]
        hidden = _link_the_rest(git, Path(top), target, wanted, left_out.linked)
        os.utime(target)  # its last use, for `shoal clean`
    where = os.path.normpath(target / inside)
    new = tuple(hidden) if is_new else ()
    return Code(where, commit, tree, bool(difference), new, tuple(left_out.secrets))


def is_in_git(root: Path, environ: Mapping[str, str]) -> bool:
    return _Git(root, environ).top() is not None


class _LeftOut(NamedTuple):
    """What is not in our index: large untracked files, those that hold secrets, and folders of outputs and of state."""

    large: list[str]
    secrets: list[str]
    outputs: list[str]
    state: list[str]

    @property
    def linked(self) -> list[str]:
        return [*self.large, *self.secrets, *self.outputs]


def _add_everything(git: _Git, top: Path, home: Path, root: Path, ignore: str) -> _LeftOut:
    """Put changes and small untracked files into our own index; returns what is left out of it."""
    git.must("add", "--update", ".")
    not_code = _NotCode(top, home, root)
    tracked = [name for name in git.names("ls-files", "-z") if not_code.around(name)]
    if tracked:
        git.must("update-index", "--force-remove", "-z", "--stdin", given="\0".join(tracked))
    small: list[str] = []
    large: list[str] = []
    secrets: list[str] = []
    size = 0
    for name in git.names("ls-files", "--others", "--exclude-standard", "-z"):
        path = top / name
        if not_code.around(name):
            continue
        if secrecy.is_secret_file(path.name):
            secrets.append(name)
            continue
        is_small = not path.is_symlink() and path.is_file() and path.stat().st_size <= _LARGEST_UNTRACKED
        (small if is_small or path.is_symlink() else large).append(name)
        size += path.stat().st_size if is_small else 0
    if len(small) > _MOST_FILES or size > _MOST_BYTES:
        [(folder, _)] = Counter(name.split("/")[0] for name in small).most_common(1)
        raise SnapshotError(
            f"the code could not be kept: {len(small)} untracked files with {size >> 20} MB, most of them in {folder}",
            hint=f"echo '/{folder}' >> {top / ignore}   # it is linked then; or add --no-snapshot",
        )
    if small:
        git.must("update-index", "--add", "-z", "--stdin", given="\0".join(small))
    return _LeftOut(large, secrets, list(not_code.outputs), list(not_code.state))


class _NotCode:
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
            if part == STATE or folder == self.home:
                self.state[folder] = None
                return True
            if part == "outputs" and self._has_state(parent):
                self.outputs[folder] = None
                return True
        return False

    def _has_state(self, parent: str) -> bool:
        if parent not in self._is_project:
            folder = self.top / parent
            self._is_project[parent] = (folder / "shoal.toml").is_file() or (folder / STATE).is_dir()
        return self._is_project[parent]


def _write(git: _Git, target: Path, shared: bool) -> None:
    """Write the tree beside its name and rename it, so that nobody ever starts in half of one.

    In a shared project the group can read it and only its owner change it.
    """
    umask = os.umask(0o027) if shared else None
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        git.must("checkout-index", "--all", f"--prefix={partial}/")
        partial.chmod(0o750 if shared else 0o755)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():  # another command may have written the same tree meanwhile
            raise
    finally:
        if umask is not None:
            os.umask(umask)


def _link_the_rest(git: _Git, top: Path, target: Path, wanted: Sequence[str], kept_out: Sequence[str]) -> list[str]:
    """Link what is not code, each time: data may have come since the same code was kept first. Returns what programs
    may want to read among that which is not linked."""
    for name in wanted:
        if not os.path.lexists(top / name):
            (top / name).mkdir(parents=True)
        _link(top / name, target / name)
    ignored = git.names("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    modules = [line.partition("\t")[2] for line in git.names("ls-files", "--stage", "-z") if line.startswith("160000")]
    hidden = []
    for name in [path.rstrip("/") for path in (*ignored, *modules, *kept_out)]:
        base = os.path.basename(name)
        if base not in _WRITTEN and not base.endswith(_WRITTEN_FILES):
            _link(top / name, target / name)
        elif name not in wanted and ("ckpt" in base or "checkpoint" in base or base.endswith(_WEIGHTS)):
            hidden.append(name)
    return hidden


def _link(original: Path, link: Path) -> None:
    if (
        link.name in (STATE, "__pycache__")
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


class _Git:
    """git in one repository, with an index of our own, so that the user's stays as it is."""

    def __init__(self, cwd: Path, environ: Mapping[str, str], index: Path | None = None) -> None:
        self.cwd, self.environ = cwd, environ
        hidden = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        self.env = {**hidden, "LC_ALL": "C", **({"GIT_INDEX_FILE": str(index)} if index else {})}

    def with_index(self, top: Path, index: Path) -> _Git:
        """A copy of the user's index saves git from reading every file again. With its time: a file that changed in the
        second in which the index was written is read again by that alone.
        """
        current = self.ask("rev-parse", "--git-path", "index")
        if current and (self.cwd / current).is_file():
            shutil.copy2(self.cwd / current, index)
        return _Git(top, self.environ, index)

    def outside_of_git(self, folder: Path) -> _Git:
        """The same folder as the work tree of an empty repository elsewhere."""
        git = _Git(self.cwd, self.environ)
        git.env.update(GIT_DIR=str(folder), GIT_WORK_TREE=str(self.cwd.resolve()))
        git.must("init", "-q")
        own = self.cwd / IGNORE
        text = own.read_text("utf-8", "surrogateescape") if own.is_file() else ""
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "exclude").write_text(_NOT_CODE + text, "utf-8", "surrogateescape")
        return git

    def ask(self, *words: str) -> str | None:
        """One line of answer, or None."""
        try:
            done = self._run(words, "")
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape").strip() or None if done.returncode == 0 else None

    def matches(self, pattern: str) -> set[str]:
        """What the text files of the index have that matches."""
        done = self._run(("grep", "--cached", "-hoIE", pattern), "")
        return set(done.stdout.decode("utf-8", "replace").splitlines()) if done.returncode == 0 else set()

    def top(self) -> str | None:
        """The root of the repository; None outside of one. One that git refuses to read is a SnapshotError."""
        try:
            done = self._run(("rev-parse", "--show-toplevel"), "")
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
        said = done.stderr.decode("utf-8", "replace")
        if "not a git repository" in said:
            return None
        owned = re.search(r"dubious ownership in repository at '(.+)'", said)
        if owned is None:
            raise SnapshotError(f"git cannot read the repository: {' '.join(said.split())[-200:]}", hint=_WITHOUT)
        raise SnapshotError(
            f"git does not read the repository {owned[1]}, because another user owns it",
            hint=f"git config --global --add safe.directory {shlex.quote(owned[1])}   # or add --no-snapshot",
        )

    def difference(self, commit: str, without: Sequence[str]) -> str:
        """What was changed since the commit, whatever diff programs and converters the user has set up."""
        plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
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
            raise SnapshotError(f"the code could not be kept: {error}", hint=_WITHOUT) from None
        if done.returncode != 0:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise SnapshotError(f"the code could not be kept: git {words[0]}: {said}", hint=_WITHOUT)
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
