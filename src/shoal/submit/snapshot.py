"""A copy of the code at submission, for jobs that start later: a queued run executes the code that was submitted.

Tracked files with their changes, and untracked ones that are not ignored, are written to snapshots/<tree> under the
state directory, once for each state of the code. What git ignores (data, environments, compiled extensions) is linked,
so that paths still lead there, and so are untracked files that hold secrets (.env); except directories that look like
outputs: each run has its own (job/workdir.py), and missing_files.py reports them. Submodules and other repositories
inside are kept in the same way. State directories (.shoal) and outputs are left out, also of other projects in the
repository. The commit and the difference to it are beside it. A project outside of git is treated as if it had just
been added to git: a list of usual names and its .shoalignore say what is not code.
"""

from __future__ import annotations

import json
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

from shoal import redaction
from shoal.errors import ShoalError
from shoal.job import PARENT_PATH, parent_paths
from shoal.kernel import is_shared, layout, make_dir, refuse_untrusted, replace, to_json

#: An untracked file larger than this is data, and is linked like what git ignores.
_MAX_UNTRACKED_BYTES = 5 << 20
#: More than this is not code that somebody wrote.
_MAX_FILES = 20_000
_MAX_BYTES = 500 << 20
_TIMEOUT_S = 120
_NO_SNAPSHOT_HINT = "add --no-snapshot"
IGNORE_FILE = ".shoalignore"
STATE_DIRECTORY = ".shoal"
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


class SnapshotError(ShoalError):
    """The code could not be kept."""


def is_program_output(name: str) -> bool:
    """Whether a path that git ignores looks like something that programs write: by its name, or that of a folder which
    it is in."""
    if name.endswith(_COMPILED_SUFFIXES):
        return False
    return name.endswith(_OUTPUT_SUFFIXES) or any(part in _OUTPUT_DIRECTORIES for part in name.split("/"))


def open_git(root: Path, environ: Mapping[str, str], folder: Path) -> tuple[GitIndex, Path, str] | None:
    """git for the code around `root`, with an index in `folder`; the code's top, and the file that says what is not
    code. None where there is no git."""
    git = GitIndex(root, environ)
    if git.ask("--version") is None:
        return None
    top = git.top()
    if top is None:
        return git.outside_of_git(folder / "git"), root, IGNORE_FILE
    return git.with_index(Path(top), folder / "index"), Path(top), ".gitignore"


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
        tree = git.must("write-tree")
        commit = git.ask("rev-parse", "--verify", "HEAD")
        shared = is_shared(str(home))
        target = Path(layout.snapshots_dir(str(home), shared)) / tree[:16]
        difference = "".join(part.difference() for part in parts)
        if not target.exists():
            above = sorted(parent_paths(match for part in parts for match in part.git.matches(PARENT_PATH)))
            make_dir(str(target.parent))
            partial = _write_trees(parts, target, shared)
            facts = {"schema": 1, "commit": commit, "tree": tree, "branch": git.ask("branch", "--show-current")}
            more = {"changed": bool(difference), "above": above, "size": _size_of(partial)}
            replace(f"{target}.json", to_json({**facts, **more}), sync=False)
            if difference:
                told = redaction.redact(difference, redaction.secret_values(environ))
                replace(f"{target}.diff", told.encode("utf-8", "surrogateescape"), sync=False)
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


def is_in_git(root: Path, environ: Mapping[str, str]) -> bool:
    return GitIndex(root, environ).top() is not None


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

    def difference(self) -> str:
        commit = self.git.ask("rev-parse", "--verify", "HEAD")
        return self.git.difference(commit, [*self.outputs, *self.state], self.path) if commit else ""


def _add_repositories(
    git: GitIndex, top: Path, home: Path, root: Path, ignore: str, wanted: Sequence[str], path: str = ""
) -> list[_Repository]:
    """Put changes and small untracked files into our own index, and those of repositories inside into theirs; returns
    all of these repositories. What is wanted from the project itself is in none."""
    part = _add_repository(git, top, home, root, ignore, wanted, path)
    parts = [part]
    links = [line.partition("\t")[2] for line in git.names("ls-files", "--stage", "-z") if line.startswith("160000")]
    inside = [name.rstrip("/") for name in part.large if (top / name / ".git").exists()]
    for number, name in enumerate(dict.fromkeys([*links, *inside])):
        if not (top / name / ".git").exists():
            part.not_kept.append(name)
            continue
        index = Path(f"{git.index}-{number}")
        below = [os.path.relpath(one, name) for one in wanted if one.startswith(f"{name}/")]
        sub = GitIndex(top / name, git.environ).with_index(top / name, index)
        parts += _add_repositories(sub, top / name, home, root, ".gitignore", below, f"{path}{name}/")
        tree, commit = sub.must("write-tree"), sub.ask("rev-parse", "--verify", "HEAD")
        if commit is None or tree != sub.ask("rev-parse", "HEAD^{tree}"):
            commit = tree  # so that the snapshot of other changes has another name
        git.must("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    part.large[:] = [name for name in part.large if name.rstrip("/") not in inside]
    return parts


def _add_repository(
    git: GitIndex, top: Path, home: Path, root: Path, ignore: str, wanted: Sequence[str], path: str
) -> _Repository:
    git.must("add", "--update", ".")
    not_code = _OutputDirectories(top, home, root)
    linked = tuple(f"{name}/" for name in wanted)
    tracked = [name for name in git.names("ls-files", "-z") if not_code.around(name) or f"{name}/".startswith(linked)]
    if tracked:
        git.must("update-index", "--force-remove", "-z", "--stdin", given="\0".join(tracked))
    small: list[str] = []
    large: list[str] = []
    secrets: list[str] = []
    size = 0
    for name in git.names("ls-files", "--others", "--exclude-standard", "-z"):
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
    return _Repository(git, top, path, large, secrets, list(not_code.outputs), list(not_code.state), [])


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
    """Link what is not code, each time: data may have come since the same code was kept first."""
    for name in [*ignored_paths(part.git), *part.large, *part.secrets, *part.outputs, *part.not_kept]:
        if not is_program_output(name):
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


class GitIndex:
    """git in one repository, with an index of our own, so that the user's stays as it is."""

    def __init__(self, cwd: Path, environ: Mapping[str, str], index: Path | None = None) -> None:
        self.cwd, self.environ, self.index = cwd, environ, index
        hidden = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        self.env = {**hidden, "LC_ALL": "C", **({"GIT_INDEX_FILE": str(index)} if index else {})}

    def with_index(self, top: Path, index: Path) -> GitIndex:
        """A copy of the user's index saves git from reading every file again. With its time: a file that changed in the
        second in which the index was written is read again by that alone.
        """
        current = self.ask("rev-parse", "--git-path", "index")
        if current and (self.cwd / current).is_file():
            shutil.copy2(self.cwd / current, index)
        git = GitIndex(top, self.environ, index)
        git.look_at_all_files()
        return git

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
            raise SnapshotError(
                f"git cannot read the repository: {' '.join(said.split())[-200:]}", hint=_NO_SNAPSHOT_HINT
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
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            raise SnapshotError(f"the code could not be kept: git {words[0]}: {said}", hint=_NO_SNAPSHOT_HINT)
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
