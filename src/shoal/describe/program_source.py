"""What the source of a program shows, without running it: which file names a variable, and whether it resumes.

Read are the files that a command names, what they import from the project, and the project's YAML files, where Hydra
may read a variable. That a program continues from its checkpoint is known from its step's settings or seen in its
source, never assumed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from shoal.describe.locate import code_path
from shoal.describe.project import Project
from shoal.job import placeholder_names
from shoal.model import RunSpec

#: Enough of a program to see what it reads; a data file among the words is not read whole.
_MAX_BYTES = 1 << 20
_MAX_FILES = 2000
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w., \t]+))", re.M)
_FILE_WORD = re.compile(r"[\w./{}$-]+\.(?:py|sh|bash)\b")
#: A folder in a variable is taken for the script's own, or the project's.
_LEADING_VARIABLE = re.compile(r"\A.*\$\{?\w+\}?/")
#: In a script, YAML or Python; `$#` and `${x#y}` begin none.
_COMMENT = re.compile(r"(?:\A|(?<=\s))#.*")
_MODULE_WORD = re.compile(r"-m[ \t]+([\w.]+)")
_SKIPPED_DIRECTORIES = frozenset(
    {"outputs", "output", "data", "datasets", "wandb", "mlruns", "node_modules", "venv", "env", "runs"}
)


def find_reader(variable: str, root: Path, command: Sequence[str]) -> str:
    """The first file of the program that names the variable, or has such an argument as `type=bool`, relative to the
    project; "" if none does."""
    root = Path(code_path(str(root), os.environ))
    seen: set[Path] = set()
    waiting = list(_files_named_in(" ".join(command), [root], words=command))
    while waiting and len(seen) < _MAX_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        text = _read_source(path)
        if _reads_variable(path, text, variable):
            return _relative_path(path, root)
        waiting += _files_named_in(text, [path.parent, root])
        if path.suffix == ".py":
            waiting += _imported_files(path, text, root)
    if not seen:
        return ""
    return next(
        (
            _relative_path(path, root)
            for path in _settings_files(root)
            if _reads_variable(path, _read_source(path), variable)
        ),
        "",
    )


def _reads_variable(path: Path, text: str, variable: str) -> bool:
    """Whether the file names the variable outside of comments and of texts that stand alone, as docstrings do."""
    if variable not in text:
        return False
    if path.suffix == ".py":
        try:
            return _code_reads_variable(ast.parse(text), variable)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # written for another Python: lines have to do
    return any(variable in _COMMENT.sub("", line) for line in text.splitlines())


def _code_reads_variable(tree: ast.AST, variable: str) -> bool:
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            name = None if id(node) in alone else node.value
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Name):
            name = f"{node.arg}={node.value.id}"
        else:
            name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
        if isinstance(name, str) and variable in name:
            return True
    return False


def _files_named_in(text: str, folders: Sequence[Path], words: Iterable[str] = ()) -> Iterator[Path]:
    """Files that a command or a shell script names: programs, modules behind -m, and words that are files."""
    modules = [name.replace(".", "/") for name in _MODULE_WORD.findall(text)]
    names = [*words, *_FILE_WORD.findall(text)]
    for module in modules:
        names += [f"{module}.py", f"{module}/__main__.py", f"src/{module}.py", f"src/{module}/__main__.py"]
    for name in dict.fromkeys(names):
        for folder in folders:
            path = folder / _LEADING_VARIABLE.sub("", name)
            if _is_readable(path):
                yield path.resolve()


def _imported_files(path: Path, text: str, root: Path) -> Iterator[Path]:
    """Files of the project that a Python file imports."""
    for source, names, plain in _IMPORT.findall(text):
        if plain:
            for name in plain.split(","):
                yield from _module_file(name.split()[0] if name.split() else "", [path.parent, root, root / "src"])
            continue
        dots = len(source) - len(source.lstrip("."))
        bases = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else [path.parent, root, root / "src"]
        module = source.lstrip(".")
        yield from _module_file(module, bases)
        for name in names.replace(",", " ").split():
            yield from _module_file(f"{module}.{name}" if module else name, bases)


def _module_file(name: str, bases: Sequence[Path]) -> Iterator[Path]:
    inside = name.replace(".", "/")
    for base in bases if inside else ():
        for path in (base / f"{inside}.py", base / inside / "__init__.py"):
            if _is_readable(path):
                yield path.resolve()


def _settings_files(root: Path) -> Iterator[Path]:
    count = 0
    for top, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED_DIRECTORIES]
        for name in names:
            if name.endswith((".yaml", ".yml")):
                yield Path(top) / name
            count += 1
        if count > 10 * _MAX_FILES:
            return


def _is_readable(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _MAX_BYTES
    except (OSError, ValueError):
        return False


def _read_source(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    return "" if b"\0" in data[:1024] else data.decode("utf-8", "replace")


def _relative_path(path: Path, root: Path) -> str:
    return os.path.relpath(path, root.resolve()) if path.is_relative_to(root.resolve()) else str(path)


RESUME_VARIABLE = "SHOAL_RESUME_FROM"


def with_current_step(spec: RunSpec, project: Project) -> RunSpec:
    """A run that was recorded, with what its step says now about checkpoints: that may have been added to resume it."""
    step = project.steps.get(spec.step_kind)
    if step is None:
        return spec
    args = spec.resume_args if step.resume_args is None else list(step.resume_args)
    return msgspec.structs.replace(spec, checkpoint=step.checkpoint or spec.checkpoint, resume_args=args)


def resume_method(spec: RunSpec, known_programs: dict[tuple[str, ...], str]) -> str:
    """How it is known that the run's program continues from a checkpoint; "" if it is not. Each program is looked at
    once: what was found is put into `known_programs`."""
    if spec.resume_args is not None:
        return "resume_args"
    words = (*spec.command, *spec.args, *spec.env.values())
    if "resume_from" in placeholder_names([*spec.command, *spec.args]):
        return "{resume_from}"
    if any(RESUME_VARIABLE in word for word in words):
        return RESUME_VARIABLE
    program = (spec.start_dir, *spec.command)
    if program not in known_programs:
        known_programs[program] = find_reader(RESUME_VARIABLE, Path(spec.start_dir), spec.command)
    return known_programs[program]


def unknown_resume_note(spec: RunSpec) -> str:
    """For a plan: what happens to a run whose program is not known to continue from its checkpoint."""
    return (
        f"step {spec.step_kind}: no file of its program reads {RESUME_VARIABLE}, so a run that is requeued or retried "
        f"may start at step 0; set resume_args in [steps.{spec.step_kind}] of shoal.toml"
    )


def empty_argument_note(spec: RunSpec) -> str | None:
    """For a plan: an argument that is nothing but a flag until there is a checkpoint, which few programs can read."""
    word = next((word for word in (*spec.command, *spec.args) if "resume_from" in placeholder_names([word])), None)
    if word is None or spec.resume_args is not None:
        return None
    remainder = word.replace("{resume_from}", "")
    shown = f"{remainder!r}" if remainder else "an empty argument"
    return (
        f"step {spec.step_kind}: {word} is {shown} until the run has a checkpoint; to pass it only then, set "
        f'resume_args = ["{word}"] in [steps.{spec.step_kind}]'
    )
