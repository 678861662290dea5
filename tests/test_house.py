"""The order of the house: imports flow one way, the agent needs nothing, the tables match what is there."""

from __future__ import annotations

import argparse
import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import shoal
from shoal.cli import COMMANDS

SRC = Path(shoal.__file__).parent
AGENT = sorted([*(SRC / "job").rglob("*.py"), *(SRC / "kernel").rglob("*.py")])
#: From the ground upwards: a room may import from rooms before it, never from those after it. Rooms that are not here
#: are leaves or stand beside one of these, and are not looked at.
FLOORS = (
    "errors",
    "units",
    "kernel",
    "job",
    "model",
    "names",
    "describe",
    "observe",
    "submit",
    "views",
    "cli",
)
#: What the agent imports inside a function, with a sentence for people who do not have it.
OPTIONAL = {"job/pack/ray_starter.py": ("ray",), "job/checksum.py": ("isal.isal_zlib",)}
_COMMAND_NAMES = [name for group in COMMANDS.values() for name in group]


def _imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is imported at the top of the file and at run time)."""
    tree = ast.parse(path.read_text("utf-8"))
    late = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "shoal" else [node.module]
            found += [(name, node not in late) for name in names]
    return found


def _room(module: str) -> str:
    return module.split(".")[1] if module.startswith("shoal.") else ""


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_flow_one_way(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    paths = sorted((SRC / floor).rglob("*.py")) if (SRC / floor).is_dir() else [SRC / f"{floor}.py"]
    wrong = [
        f"{path.relative_to(SRC)} imports {module}"
        for path in paths
        for module, at_top in _imports(path)
        if at_top and _room(module) in above
    ]
    assert wrong == []


@pytest.mark.parametrize("path", AGENT, ids=lambda path: str(path.relative_to(SRC)))
def test_the_agent_is_standard_library_and_python_3_8(path: Path) -> None:
    ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
    for module, at_top in _imports(path):
        if not at_top and module in OPTIONAL.get(str(path.relative_to(SRC)), ()):
            continue
        assert module.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


@pytest.mark.parametrize("name", _COMMAND_NAMES)
def test_every_command_of_the_table_is_a_module_with_a_page_of_help(name: str) -> None:
    module = import_module(f"shoal.cli.{name}")
    assert module.__doc__ and f"shoal {name}" in module.__doc__, "its docstring, which is its help, shows an example"
    parser = argparse.ArgumentParser(prog=f"shoal {name}")
    module.configure(parser)
    assert parser.format_help() and callable(module.run)


def test_every_command_module_is_in_the_table() -> None:
    modules = {
        path.stem for path in (SRC / "cli").glob("*.py") if "def configure" in path.read_text() and path.stem[0] != "_"
    }
    modules |= {path.parent.name for path in (SRC / "cli").glob("*/__init__.py") if "def configure" in path.read_text()}
    assert {name for name in modules if _is_command(name)} <= set(_COMMAND_NAMES)


def _is_command(name: str) -> bool:
    return hasattr(import_module(f"shoal.cli.{name}"), "run")


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None
    ]
    assert silent == []


def test_every_benchmark_runs_by_its_own_name() -> None:
    """`python -m benchmarks.data.reading` printed nothing: it had a main that nobody called."""
    silent = [
        str(path)
        for path in (SRC.parents[1] / "benchmarks").rglob("*.py")
        if path.name != "__init__.py"
        and "\ndef main(" in path.read_text("utf-8")
        and 'if __name__ == "__main__":' not in path.read_text("utf-8")
    ]
    assert silent == []


def test_nothing_runs_text_through_a_shell_or_trusts_pickles() -> None:
    banned = {"os.system", "pickle.load", "pickle.loads", "yaml.load", "tempfile.mktemp", "eval", "os.popen"}
    found = []
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                if ast.unparse(node.func) in banned:
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} {ast.unparse(node.func)}")
                if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} shell=")
    assert found == []


def test_only_the_kernel_starts_programs_of_slurm() -> None:
    """srun is not here: what starts user processes as steps needs a Popen of its own."""
    programs = {"sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr"}
    found = []
    for path in SRC.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        starts_processes = any(module.startswith(("subprocess", "asyncio")) for module, _ in _imports(path))
        if path == SRC / "kernel/slurm.py" or not starts_processes:
            continue
        through_kernel = {
            id(argument)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "slurm.run"
            for argument in node.args
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and id(node) not in through_kernel:
                first = node.elts[0]
                if isinstance(first, ast.Constant) and first.value in programs:
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} {first.value}")
    assert found == []


def test_the_public_list_exists() -> None:
    for name in getattr(shoal, "__all__", ()):
        assert hasattr(shoal, name), name
    assert shoal.__version__


def test_every_benchmark_does_something_when_it_is_run() -> None:
    """`python -m benchmarks.data.reading` printed nothing: it defined main and did not call it."""
    files = [path for path in (SRC.parents[1] / "benchmarks").rglob("*.py") if not path.stem.startswith("__")]
    silent = [path.name for path in files if "\ndef main(" in path.read_text() and "__main__" not in path.read_text()]
    assert files and silent == []
