"""A flag that would do nothing where it is given is refused, in every command; and every flag is read by something."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.cli import COMMANDS
from shoal.cli.parser import CommandParser

SWEEP = 'step = "train"\n[sweep]\nlr = [0.1, 0.2]\n[request]\ntime = "5m"\n'
SWEEP_FILE, SCRIPT = "experiments/001_a/000_train.toml", "experiments/002_b/000_train_0.sh"

IDLE = [
    ("plan", SWEEP_FILE, "--startup", "8m"),
    ("plan", SWEEP_FILE, "--layouts", "--script"),
    ("plan", SWEEP_FILE, "--layouts", "--layout", "array"),
    ("plan", SWEEP_FILE, "--layouts", "--slots", "4"),
    ("plan", SWEEP_FILE, "--layouts", "--fresh"),
    ("plan", SCRIPT, "--zip", "a,b"),
    ("plan", SWEEP_FILE, "--retries", "0"),
    ("plan", SWEEP_FILE, "--layout", "job", "--max-parallel", "2"),
    ("plan", SWEEP_FILE, "--layout", "pack", "--slots", "2", "--max-parallel", "2"),
    ("plan", SWEEP_FILE, "--pilots", "2", "--layout", "array"),
    ("plan", SWEEP_FILE, "--smoke", "--smoke-here"),
    ("submit", SWEEP_FILE, "--on", "local", "--max-parallel", "2"),
    ("submit", SCRIPT, "--on", "local", "--prune"),
    ("submit", SWEEP_FILE, "--on", "local", "--layout", "pack", "--mem", "4G"),
    ("pack", "--on", "local", "--nodes", "2", "--", "true"),
    ("logs", "--errors", "-f"),
    ("logs", "--errors", "--attempt", "1"),
    ("logs", "x", "-q"),
    ("logs", "x", "--path", "-n", "3"),
    ("logs", "x", "--json", "--raw"),
    ("logs", "x", "--slurm", "--rank", "0"),
    ("status", "--json", "--columns", "+gpus"),
    ("status", "-q", "--tty"),
    ("watch", "--json", "--columns", "+gpus"),
    ("results", "--descending"),
    ("results", "--json", "--format", "csv"),
    ("report", "--json", "--md"),
    ("ui", "--export", "copy", "--port", "8000"),
    ("doctor", SCRIPT, "--gpus", "4"),
    ("doctor", "--explain", "--framework", "native", "--gpus", "1", "--fix"),
    ("switch", "x", "--gpus", "2", "--after-step", "10"),
    ("switch", "x", "--gpus", "2", "--command-id", "mine"),
    ("clean", "--list", "--apply"),
    ("clean", "--undo", "--keep", "3"),
    ("clean", "--only", "log", "--keep", "3"),
    ("clusters", "detect", "galvani"),
    ("generate", "--step", "train", "--force"),
    ("data", "shard", "experiments", "sharded", "--no-shuffle", "--seed", "0"),
    ("data", "shard", "experiments", "sharded", "--path-column", "file"),
    ("data", "advise", "--batches", "3", "--step-time", "1"),
    ("data", "advise", "--step-time", "1", "--", "python", "train.py"),
    ("data", "bench", "--", "--partition=gpu"),
    ("sandbox", "down", "--all", "--name", "x"),
    ("shell", "junk"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("idle"))
    made.write(SWEEP_FILE, SWEEP)
    made.script("002_b/000_train_0.sh", "train --time=5")
    return made


@pytest.mark.parametrize("words", IDLE, ids=" ".join)
def test_a_flag_without_effect_is_refused(project: Project, words: tuple[str, ...]) -> None:
    before = sorted(project.root.rglob("*"))
    done = project.shoal(*words, code=None)
    assert_clear_error(done, 2)
    assert any(word in done.err for word in ("no effect", "not allowed with", "applies to packs only", "takes no"))
    assert [path for path in sorted(project.root.rglob("*")) if ".shoal" not in path.parts] == [
        path for path in before if ".shoal" not in path.parts
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", SWEEP_FILE, "--layouts", "--startup", "8m"),
        ("plan", SWEEP_FILE, "--layout", "pack", "--slots", "2", "--retries", "0"),
        ("submit", SWEEP_FILE, "--on", "local", "--dry-run", "--yes", "--command-id", "mine", "--prune"),
        ("logs", "--errors", "-q"),
        ("status", "--json", "--all", "--tasks"),
        ("clean", "--only", "checkpoint", "--keep", "2"),
        ("clusters", "list", "local"),
    ],
    ids=" ".join,
)
def test_a_flag_with_effect_is_not_refused(project: Project, words: tuple[str, ...]) -> None:
    assert "no effect" not in project.shoal(*words).err


def parsed(name: str, *words: str) -> argparse.Namespace:
    module = import_module(f"shoal.cli.{name}")
    parser = CommandParser(f"shoal {name}", module.__doc__)
    module.configure(parser)
    return parser.parse_args(list(words))  # type: ignore[no-any-return]


def test_a_flag_that_is_given_with_its_default_is_known_as_given() -> None:
    assert parsed("logs", "-n200", "--raw", "-fq", "x").given >= {"--lines", "--raw"}
    assert parsed("clean", "--keep=3").given == {"--keep"} and parsed("clean").given == frozenset()
    assert parsed("data", "shard", "a", "b", "--seed", "0").given == {"--seed"}
    assert parsed("pack", "--slots", "2", "--", "python", "x.py", "--csv").given == {"--slots"}
    assert parsed("resume", "x", "--on", "local", "--", "--json").given == {"--on"}


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_every_flag_is_read_somewhere(name: str) -> None:
    """A flag whose value nothing in the package reads cannot have an effect."""
    module = import_module(f"shoal.cli.{name}")
    parser = CommandParser(f"shoal {name}")
    module.configure(parser)
    parsers, source = (
        [parser],
        "".join(path.read_text() for path in Path(module.__file__ or "").parents[1].rglob("*.py")),
    )
    while parsers:
        for action in parsers.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif action.option_strings and action.dest != "help":
                spelt = (f"args.{action.dest}", f"options.{action.dest}", f'"{action.dest}"')
                assert any(one in source for one in spelt), action.option_strings
