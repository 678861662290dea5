"""Any list of arguments arrives in the program unchanged: through bash, the record, sbatch, script and agent. Only what
looks like a placeholder is written with its braces doubled."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from project import Project
from shoal.job.environment import escape_placeholders
from shoal.sandbox import Sandbox

#: The words that broke other tools, each as it is and as a part of others.
NASTY = [
    "", " ", "-", "--", "-rf", "--help", "--json", "--debug", "a b", "'", '"', "''", '"$(reboot)"', "$(id)", "`id`",
    "${HOME}", "$0", "\\", "\\n", "\n", "a\nb", "\r\n", "\t", "*", "?", "[a-z]", "~", "~root", "!", "#x", "a;b", "a&&b",
    "|", ">x", "<x", "%j", "%A_%a", "100%", "{seed}", "{output_dir}", "{{x}}", "{", "=", "A=b", "ü", "日本語", "🐟",
    "\u202e", "\x01", "\x7f", "\x1b[31m", "#SBATCH --hold", "\n#SBATCH --hold\n", "EOF", "e\u0301", "x" * 4000,
]  # fmt: skip
#: Bytes that are no UTF-8, as Python hands them around; no NUL, which no program can receive.
_BYTES = st.binary(max_size=12).filter(lambda data: b"\0" not in data).map(os.fsdecode)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_WORD = st.one_of(_TEXT, _BYTES, st.sampled_from(NASTY), st.tuples(_TEXT, st.sampled_from(NASTY)).map("".join))
ARGUMENTS = st.lists(_WORD, max_size=8)

SAVE = (
    'import json, os, sys; json.dump(sys.argv[1:], open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "args"), "w"))\n'
)


@pytest.mark.slow
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(lists=st.lists(ARGUMENTS, min_size=6, max_size=6))
def test_arguments_arrive_unchanged_on_this_machine(
    lists: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = _project(tmp_path_factory.mktemp("local"), lists)
    project.shoal("submit", "experiments/001_a", "-q")
    assert _received(project, len(lists)) == lists


@pytest.mark.slurm
@settings(max_examples=1, suppress_health_check=list(HealthCheck))
@given(lists=st.lists(ARGUMENTS, min_size=12, max_size=12))
def test_arguments_arrive_unchanged_in_the_job(
    lists: list[list[str]], tmp_path_factory: pytest.TempPathFactory, cluster: Sandbox
) -> None:
    _submit_and_compare(tmp_path_factory.mktemp("slurm"), lists, cluster)


@pytest.mark.slurm
def test_every_nasty_word_arrives_unchanged_in_the_job(tmp_path: Path, cluster: Sandbox) -> None:
    bytes_that_are_no_text = [os.fsdecode(bytes([byte])) for byte in range(128, 256)]
    lists = [NASTY, list(reversed(NASTY)), bytes_that_are_no_text, [chr(code) for code in range(1, 128)]]
    _submit_and_compare(tmp_path, lists, cluster)


@pytest.mark.slow
def test_settings_of_the_script_arrive_unchanged(tmp_path: Path) -> None:
    project = Project(tmp_path)
    values = {f"TEST_{index}": value for index, value in enumerate(NASTY)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    project.shoal("submit", project.script("001_a/000_train_0.sh", *lines, "train"))
    (mark,) = project.marks("001_a/000_train_0")
    assert {name: mark["env"].get(name) for name in values} == values


def _submit_and_compare(folder: Path, lists: list[list[str]], cluster: Sandbox) -> None:
    project = _project(folder, lists, cluster)
    project.shoal("submit", "experiments/001_a", "-q")
    for index in range(len(lists)):
        project.wait(f"001_a/{index:03}_save_0", "completed")
    assert _received(project, len(lists)) == lists


def _project(folder: Path, lists: list[list[str]], cluster: Sandbox | None = None) -> Project:
    """One script for each list, all of one shape, so that on Slurm they are one array."""
    project = Project(folder, cluster)
    project.write("save.py", SAVE)
    command = json.dumps([sys.executable, "-S", str(project.root / "save.py")])
    with (project.root / "shoal.toml").open("a") as file:
        file.write(f"[steps.save]\ncommand = {command}\n")
    for index, words in enumerate(lists):
        quoted = " ".join(map(shlex.quote, escape_placeholders(words)))
        script = project.root / f"experiments/001_a/{index:03}_save_0.sh"
        script.parent.mkdir(exist_ok=True)
        script.write_bytes(os.fsencode(f'source "$(shoal shell)"\nsave --time=5 --mem=50 -- {quoted}\n'))
    return project


def _received(project: Project, count: int) -> list[list[str]]:
    found = []
    for index in range(count):
        (path,) = (project.root / "outputs/save/001_a" / f"{index:03}_save_0").glob("*/args")
        found.append(json.loads(path.read_text()))
    return found
