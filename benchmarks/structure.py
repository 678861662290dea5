"""How large the code is and how much of it one `submit` passes through.

    python -m benchmarks.structure                     this commit
    python -m benchmarks.structure --old ../base       beside another worktree, which has its own .venv
    python -m benchmarks.structure --list              also every file and call that the submit passes

Counted in src/: modules, lines, packages, class names that occur twice, imports between packages and how many of them
name the package itself (what its `__init__` exports) instead of a module inside it. Traced on a real Slurm, which the
sandbox starts: one `submit` of one bash script in a project without state, the files of ours whose functions were
called, and the calls from one package into another (reads of a record's property among them). What happens while a
module is imported does not count; the modules beside the packages (errors, model, ...) count as one package.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.sandbox import Sandbox, SandboxSpec

SCRIPT = 'source "$(shoal shell)"\ntrain\n'
PROJECT = """\
snapshot = false
[steps.train]
command = ["/bin/true"]
request = { cpus = 1, memory = "10M", time = "10m" }
"""
#: Executed by the Python of the commit that is traced; prints what was passed as its last line.
TRACE = """\
import json, os, sys, threading
import shoal
from shoal.cli import main
root = os.path.dirname(shoal.__file__) + os.sep
def package(path):
    first, _, rest = path[len(root):].partition(os.sep)
    return first if rest else ""
files, calls, reads = {}, {}, 0
def called(frame, event, _):
    global reads
    path = frame.f_code.co_filename
    if event != "call" or not path.startswith(root) or path.endswith("lazy.py"):
        return
    caller = None
    back = frame
    while back is not None:
        if back.f_code.co_filename.startswith(root):
            if back.f_code.co_name == "<module>":
                return
            caller = caller or (back if back is not frame else None)
        back = back.f_back
    functions = files.setdefault(path[len(root):], [])
    if frame.f_code.co_name not in functions:
        functions.append(frame.f_code.co_name)
    if caller is not None and package(caller.f_code.co_filename) != package(path):
        call = "{} -> {}:{}".format(caller.f_code.co_filename[len(root):], path[len(root):], frame.f_code.co_name)
        calls[call] = calls.get(call, 0) + 1
        reads += isinstance(getattr(type(frame.f_locals.get("self")), frame.f_code.co_name, None), property)
threading.setprofile(called)
sys.setprofile(called)
try:
    code = main()
except SystemExit as end:
    code = end.code
sys.setprofile(None)
print()
print(json.dumps({"files": files, "calls": calls, "reads": reads, "code": code}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__)
    parser.add_argument("--old", type=Path, metavar="WORKTREE", help="another worktree to count beside this one")
    parser.add_argument("--list", action="store_true", help="also print every file and call of the traced submit")
    args = parser.parse_args()
    old = args.old
    sides = {"this": Path(__file__).parents[1]} | ({"old": old.absolute()} if old else {})
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(SandboxSpec(name=f"structure{os.getpid()}", nodes=1, gpus=0))
        sandbox.up(deadline_s=120)
        try:
            found = {
                name: {**count(root), **trace(root, Path(folder) / name, sandbox, listed=args.list and name == "this")}
                for name, root in sides.items()
            }
        finally:
            sandbox.down()
    print("| " + " | ".join(["what", *found]) + " |")
    print("|---|" + "---|" * len(found))
    for what in found["this"]:
        print("| " + " | ".join([what, *(f"{one[what]:,}" for one in found.values())]) + " |")


def count(root: Path) -> dict[str, int]:
    source = root / "src" / "shoal"
    modules = {path: ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py"))}
    classes = Counter(
        node.name for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    packages = [path for path in source.iterdir() if (path / "__init__.py").exists()]
    exports = {path.name: _exported(modules[path / "__init__.py"]) for path in packages}
    between = whole = 0
    for path, tree in modules.items():
        for target in (name for node in ast.walk(tree) for name in _imported(node, path, source)):
            package, _, inside = target.partition(".")
            if package and (source / package).is_dir() and package != path.relative_to(source).parts[0]:
                between += 1
                whole += not inside or inside in exports.get(package, ())
    return {
        "modules": len(modules),
        "lines": sum(len(path.read_text("utf-8").splitlines()) for path in modules),
        "packages": len(packages),
        "names that packages export": sum(map(len, exports.values())),
        "imports between packages": between,
        "of these of the package itself": whole,
        "class names that occur twice": sum(1 for times in classes.values() if times > 1),
    }


def _imported(node: ast.AST, path: Path, source: Path) -> list[str]:
    """Modules of ours that a statement imports from, by their path in the package: "plan.calls", or "plan"."""
    if isinstance(node, ast.Import):
        return [alias.name.partition("shoal.")[2] for alias in node.names if alias.name.startswith("shoal.")]
    if not isinstance(node, ast.ImportFrom):
        return []
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        parts = [*path.relative_to(source).parts[: -node.level], *parts]
    elif parts[:1] == ["shoal"]:
        parts = parts[1:]
    else:
        return []
    inside = source.joinpath(*parts)
    return [
        ".".join([*parts, alias.name]) if (inside / f"{alias.name}.py").exists() or (inside / alias.name).is_dir()
        else ".".join(parts)
        for alias in node.names
    ]  # fmt: skip


def _exported(tree: ast.Module) -> list[str]:
    """What an `__init__` lists: the imports for type checkers (kernel/lazy.py), or `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and node.orelse:
            return [alias.name for one in node.body if isinstance(one, ast.ImportFrom) for alias in one.names]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def trace(root: Path, folder: Path, sandbox: Sandbox, listed: bool = False) -> dict[str, int]:
    script = folder / "experiments" / "001_a" / "000_train_0.sh"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    (folder / "shoal.toml").write_text(PROJECT)
    binaries = root / ".venv" / "bin"
    env = sandbox.env({**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"})
    argv: list[str | Path] = [binaries / "python", "-c", TRACE, "submit", script]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    passed: dict[str, Any] = {"code": done.returncode}
    if done.returncode == 0:
        passed = json.loads(done.stdout.splitlines()[-1])
    if passed["code"] not in (0, None):
        sys.exit(f"submit failed:\n{done.stdout}{done.stderr}")
    if listed:
        for path, functions in sorted(passed["files"].items()):
            print(f"{path}: {', '.join(functions)}")
        for call, times in sorted(passed["calls"].items()):
            print(f"{times:4} {call}")
    return {
        "files that one submit passes": len(passed["files"]),
        "calls from package to package": sum(passed["calls"].values()),
        "of these reads of a property": passed["reads"],
    }


if __name__ == "__main__":
    main()
