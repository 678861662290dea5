"""Imports flow one way and through a package's `__init__`; jobs need the standard library only; tables are complete."""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import shoal
from shoal.cli import COMMANDS

SRC = Path(shoal.__file__).parent
SHIPPED = sorted([*(SRC / "job").rglob("*.py"), *(SRC / "kernel").rglob("*.py")])
#: From the ground upwards: a package or module may import from those before it, never from those after it, also not
#: inside a function.
ORDER = (
    "errors",
    "kernel",
    "job",
    "units",
    "model",
    "names",
    "redaction",
    "batch",
    "clusters",
    "observe",
    "describe",
    "search",
    "plan",
    "doctor",
    "actions",
    "remote",
    "switch",
    "data",
    "cleanup",
    "sandbox",
    "views",
    "functions",
    "submitit",
    "api",
    "mcp_server",
    "cli",
    "__main__",
)
#: What code in jobs imports inside a function, with a sentence for people who do not have it.
OPTIONAL = {"job/pack/ray_starter.py": ("ray",), "job/file_copy.py": ("isal.isal_zlib",)}
#: Packages whose docstring lists their modules; the list of cli is its table of commands.
LISTED = sorted({path.parent for path in SRC.rglob("__init__.py")} - {SRC, SRC / "cli"})
#: Files of users in examples.
USER_FILE = re.compile(r"(a|train|evaluate|.*/?sweep|\d{3}_\w+)\.py")
#: Packages of their own, which import what packages export as other packages do.
PLUGIN_FILES = sorted((SRC.parent.parent / "plugins").rglob("*.py"))
#: What a module of cli/ may import: what the API offers, how it is shown, and what names mistakes, states and units.
#: kernel/ is for output that must not fail.
CLI_IMPORTS = {"", "api", "cli", "errors", "kernel", "mcp_server", "model", "units", "views"}
#: Commands whose flows are still in cli/, and the packages that they call themselves. None may be added.
FLOWS_IN_CLI = {
    "cli.clusters": {"batch", "clusters", "describe", "plan"},
    "cli.data": {"data"},
    "cli.init": {"describe", "observe"},
    "cli.sandbox": {"sandbox"},
}
#: Exported for users and tests, not for other packages.
PUBLIC = {"api", "data", "functions", "sandbox", "submitit"}
_COMMAND_NAMES = [name for group in COMMANDS.values() for name in group]


def _modules() -> dict[str, Path]:
    """Every module of ours by its dotted name without "shoal."; packages by their own name."""
    paths = (path for path in SRC.rglob("*.py") if not {"demo_project", "probe"} & set(path.relative_to(SRC).parts))
    return {".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


MODULES = _modules()
PACKAGES = {
    name for name, path in MODULES.items() if path.name == "__init__.py" and "." not in name and name != "__init__"
}


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """Everything in a file, for the tests that look at all files."""
    return list(ast.walk(_parse(path)))


@cache
def _imports(path: Path) -> list[tuple[str, str | None, bool]]:
    """(module, name or None, whether it is imported when the file is) for everything that a file imports.

    Modules of ours are named without "shoal."; relative imports are resolved.
    """
    late = {
        inner
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for inner in ast.walk(node)
    }
    found: list[tuple[str, str | None, bool]] = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, None, node not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            outer = path.relative_to(SRC).parts[: -node.level] if node.level else ()
            module = ".".join([*(["shoal"] if node.level else []), *outer, *([node.module] if node.module else [])])
            found += [(module, alias.name, node not in late) for alias in node.names]
    return found


def _ours(path: Path) -> list[tuple[str, str]]:
    """(module of ours without "shoal.", name) for what a file imports from us."""
    return [
        (module.removeprefix("shoal").lstrip("."), name or "")
        for module, name, _ in _imports(path)
        if module.partition(".")[0] == "shoal"
    ]


def _top(module: str, name: str) -> str:
    return (module or name).partition(".")[0]


def test_every_package_and_module_has_its_place_in_the_order() -> None:
    assert {name for name in MODULES if "." not in name} - {"__init__"} == set(ORDER)


def test_imports_flow_one_way() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in MODULES.items()
        if name != "__init__"
        for imported in _ours(path)
        if _top(*imported) in ORDER[ORDER.index(name.partition(".")[0]) + 1 :]
    ]
    assert wrong == []


def test_nobody_imports_past_the_init_of_another_package() -> None:
    past = [
        f"{name}: from shoal.{module} import {imported}"
        for name, path in MODULES.items()
        for module, imported in _ours(path)
        if "." in module and _top(module, imported) in PACKAGES - {name.partition(".")[0]}
    ]
    assert past == [], "export it in the package's __init__"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.partition(".")[0] == "cli"))
def test_a_command_calls_the_api_and_shows_what_it_returns(name: str) -> None:
    """A flow that is written in cli/ cannot be called by a script, the MCP server or over ssh."""
    tops = {module.partition(".")[0] for module, imported in _ours(MODULES[name]) if (module, imported) != ("", "api")}
    assert tops - CLI_IMPORTS == FLOWS_IN_CLI.get(name, set()), "put the flow into shoal.api"


def test_only_cli_knows_argparse_and_the_api_never_prints_or_exits() -> None:
    """views/data.py prints for a command of FLOWS_IN_CLI; functions/delivery.py is a program of its own."""
    users = {
        name
        for name, path in MODULES.items()
        if name.partition(".")[0] != "cli" and any(module == "argparse" for module, _, _ in _imports(path))
    }
    calls = {
        name
        for name, path in MODULES.items()
        if name.partition(".")[0] in {"api", "actions", "functions"}
        for node in _nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.exit", "sys.stdout.write"}
    }
    assert (users, calls) == ({"views.data"}, {"functions.delivery"})


def test_run_of_a_command_is_short() -> None:
    lengths = {
        name: (node.end_lineno or 0) - node.lineno + 1
        for name in _COMMAND_NAMES
        if f"cli.{name}" not in FLOWS_IN_CLI
        for node in _nodes(SRC / "cli" / f"{name}.py")
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    }
    assert len(lengths) > 20 and {name: length for name, length in lengths.items() if length > 24} == {}


def _exports(package: str) -> dict[str, str]:
    """What an `__init__` lists, and the module where that is."""
    blocks = [
        node
        for node in _parse(MODULES[package]).body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    return {
        alias.name: (node.module or "").removeprefix(f"shoal.{package}").lstrip(".")
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=lambda path: path.name)
def test_a_plugin_imports_only_what_packages_export(path: Path) -> None:
    for module, name in _ours(path):
        assert module in {"errors", "model"} or name in _exports(module), f"{path} imports {name} of shoal.{module}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_what_a_package_exports_is_there_and_used(package: str) -> None:
    exports = _exports(package)
    loaded = import_module(f"shoal.{package}")
    for name in exports:
        assert getattr(loaded, name, None) is not None, f"shoal.{package} exports {name}, which does not exist"
    shadowed = {name for name, home in exports.items() if home and f"{package}.{name}" in MODULES}
    assert shadowed == set(), "a name that is also a module of the package means whichever was imported last"
    others = [path for name, path in MODULES.items() if name.partition(".")[0] != package]
    used = {imported for path in [*others, *PLUGIN_FILES] for module, imported in _ours(path) if module == package}
    assert package in PUBLIC or set(exports) - used == set(), "nobody outside of the package uses these"


def test_no_class_name_occurs_twice() -> None:
    seen: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name, []).append(name)
    assert {name: homes for name, homes in seen.items() if len(homes) > 1} == {}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(SRC)))
def test_what_runs_in_jobs_is_standard_library_and_python_3_8(path: Path) -> None:
    ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
    for module, name, at_top in _imports(path):
        if not at_top and module in OPTIONAL.get(str(path.relative_to(SRC)), ()):
            continue
        ours = _top(module.removeprefix("shoal").lstrip("."), name or "") in ("kernel", "job")
        assert ours or module.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


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
        if path.read_text().strip() and ast.get_docstring(_parse(path)) is None
    ]
    assert silent == []


def _docstrings_and_comments(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    for node in _nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_files_that_docstrings_and_comments_mention_exist() -> None:
    """`x.py` is in the same package, `package/x.py` below it or below src/shoal. Help pages show files of users."""
    wrong = [
        f"{path.relative_to(SRC)}: {mentioned}"
        for name, path in MODULES.items()
        if name.removeprefix("cli.") not in _COMMAND_NAMES
        for text in _docstrings_and_comments(path)
        for mentioned in re.findall(r"(?<![\w.*<>/-])[\w/]+\.py\b", text)
        if not USER_FILE.fullmatch(mentioned)
        and not (path.parent / mentioned).exists()
        and not (SRC / mentioned).exists()
    ]
    assert wrong == []


@pytest.mark.parametrize("package", LISTED, ids=lambda path: str(path.relative_to(SRC)))
def test_a_package_lists_its_modules(package: Path) -> None:
    docstring = ast.get_docstring(_parse(package / "__init__.py")) or ""
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    missing = {name for name in modules if not re.search(rf"(?<![\w/]){name}\b", docstring)}
    assert missing == set(), f"name them in the docstring of {package.name}/__init__.py"


def test_nothing_runs_text_through_a_shell_or_trusts_pickles() -> None:
    """Results and arguments of functions are pickles: one module loads them, after it has checked whose they are."""
    banned = {"os.system", "pickle.load", "pickle.loads", "yaml.load", "tempfile.mktemp", "eval", "os.popen"}
    found = []
    for path in SRC.rglob("*.py"):
        for node in _nodes(path):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in banned and not (name.startswith("pickle.") and path == SRC / "job/function_call.py"):
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} {name}")
                if any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords):
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} shell=")
    assert found == []


def test_only_the_kernel_starts_programs_of_slurm() -> None:
    """srun is not here: what starts user processes as steps needs a Popen of its own."""
    programs = {"sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr"}
    found = []
    for path in SRC.rglob("*.py"):
        starts_processes = any(module.startswith(("subprocess", "asyncio")) for module, _, _ in _imports(path))
        if path == SRC / "kernel/slurm.py" or not starts_processes:
            continue
        through_kernel = {
            id(argument)
            for node in _nodes(path)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "slurm.run_command"
            for argument in node.args
        }
        for node in _nodes(path):
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


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("slurm", [False, True])
def test_every_test_is_run_by_one_target_of_the_makefile(slow: bool, slurm: bool) -> None:
    makefile = (SRC.parents[1] / "Makefile").read_text()
    chosen = {
        target
        for target, expression in re.findall(r'^(\w+):.*\n\t.*\$\(PARALLEL\) -m "?([\w ]+)"?$', makefile, re.MULTILINE)
        if eval(expression, {"slow": slow, "slurm": slurm})
    }
    (all_targets,) = re.findall(r"^test: (.*)$", makefile, re.MULTILINE)
    assert len(chosen) == 1 and chosen <= set(all_targets.split())
