"""What machines read: every document validates against the published schema, errors included; and completion."""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest

from made_up import MadeUp, picture
from project import Project
from published import SCHEMAS, complaints
from shoal.cli import COMMANDS
from shoal.cli.completion import SHELL_SCRIPTS, candidates
from shoal.model import CAUSES, RUN_STATES
from shoal.observe import run_names
from waiting import wait_until

SHOAL = Path(sys.executable).with_name("shoal")


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return picture(tmp_path / "project")


def shoal(made: MadeUp, *words: str) -> str:
    env = {**os.environ, "PATH": f"{SHOAL.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([SHOAL, *words], cwd=made.root, env=env, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("status", ["status"]),
        ("status", ["status", "--state", "failed", "--tasks"]),
        ("why", ["why", "001_lr/000_train_3"]),
        ("why", ["why", "001_lr/000_train_0"]),
        ("why", ["why", "002_new/000_train_0"]),
        ("logs", ["logs", "001_lr/000_train_3"]),
        ("logs", ["logs", "001_lr", "-n", "1"]),
        ("logs", ["logs", "--errors"]),
        ("report", ["report", "001_lr"]),
        ("report", ["report"]),
        ("error", ["why", "nothing"]),
        ("error", ["status", "--state", "broken"]),
    ],
)
def test_json_is_as_published(made: MadeUp, schema: str, words: list[str]) -> None:
    document = json.loads(shoal(made, *words, "--json"))
    assert complaints(schema, document) == []


#: Every command that has --json, as it is called in a project of two runs: (schema, words, exit code). In this order.
COMMAND_LINES = [
    ("init", ["init", "--dry-run"], 0),
    ("submit", ["submit", "experiments/002_s"], 0),
    ("plan", ["plan", "experiments/001_a"], 0),
    ("doctor", ["doctor", "experiments/001_a"], 0),
    ("plan", ["submit", "experiments/001_a", "--dry-run"], 0),
    ("submit", ["submit", "experiments/001_a"], 4),
    ("submit", ["run", "experiments/001_a/000_train_0.sh"], 0),
    ("submit", ["retry", "001_a", "--dry-run"], 0),
    ("submit", ["resume", "001_a/000_train_1"], 3),
    ("layouts", ["plan", "experiments/001_a", "--layouts"], 0),
    ("pack", ["pack", "--set", "k=1,2", "--slots", "2"], 0),
    ("cancel", ["cancel", "001_a"], 0),
    ("status", ["status"], 0),
    ("why", ["why", "001_a/000_train_1"], 0),
    ("logs", ["logs", "001_a/000_train_1"], 0),
    ("logs", ["logs", "--errors"], 0),
    ("watch", ["watch", "001_a/000_train_1"], 0),
    ("results", ["results", "001_a"], 0),
    ("report", ["report"], 0),
    ("search", ["search", "show"], 0),
    ("search", ["search", "export", "002_s"], 0),
    ("ui", ["ui", "--export", "copy"], 0),
    ("generate", ["generate", "--command", "true", "--config-file", "x.toml", "--on", "slurm"], 0),
    ("clusters", ["clusters", "list"], 0),
    ("clusters", ["clusters", "show", "local"], 0),
    ("budget", ["budget", "jobs=2", "--on", "slurm"], 0),
    ("clean", ["clean"], 0),
    ("data", ["data", "shard", "experiments", "sharded"], 0),
    ("data", ["data", "verify", "sharded"], 0),
    ("data", ["data", "info", "sharded"], 0),
    ("data", ["data", "unpack", "sharded", "unpacked"], 0),
    ("sandbox", ["sandbox", "status"], 0),
    ("error", ["switch", "001_a/000_train_1", "--gpus", "2"], None),
    ("error", ["adopt", "265438"], 5),
    ("error", ["connect", "elsewhere"], 2),
    ("error", ["resume", "nothing"], 2),
    ("error", ["pull", "001_a/000_train_1"], 2),
    ("error", ["status", "--state", "broken"], 2),
]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("all"))
    project.env["SHOAL_ON"] = "local"
    project.script("001_a/000_train_0.sh", "train")
    project.script("001_a/000_train_1.sh", "train -- save=1 exit=3")
    search = '[search]\nmetric = "loss"\ntrials = 2\nsampler = "random"\n[sweep]\nlr = { uniform = [0, 1] }\n'
    project.write("experiments/002_s/000_train.toml", search)
    return project


@pytest.mark.slow
def test_what_every_command_says_to_machines_is_published(two_runs: Project) -> None:
    """One test, because each command finds what those before it have left."""
    for schema, words, code in COMMAND_LINES:
        tail = ["--", sys.executable, "-S", "train.py", "{k}"] if words[0] == "pack" else []
        done = two_runs.shoal(*words, "--json", *tail, code=code)
        documents = done.out.splitlines() if words[0] == "watch" else [done.out]
        for document in documents:
            assert complaints(schema, json.loads(document)) == [], words


def test_no_command_with_json_is_left_out() -> None:
    called = {words[0] for _, words, _ in COMMAND_LINES}
    for command in (name for group in COMMANDS.values() for name in group):
        parser = argparse.ArgumentParser()
        import_module(f"shoal.cli.{command}").configure(parser)
        assert ("--json" not in parser.format_help()) or command in called, f"no schema for {command} --json"


def test_lines_of_a_watch_are_as_published(made: MadeUp) -> None:
    lines = shoal(made, "watch", "001_lr/000_train_3", "001_lr/000_train_0", "--all", "--json").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert complaints("watch", json.loads(line)) == []


def test_schemas_are_schemas_and_know_every_state() -> None:
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    run = json.loads((SCHEMAS / "run.json").read_text())
    assert set(run["properties"]["state"]["enum"]) == set(RUN_STATES)
    assert set(run["properties"]["cause"]["enum"]) == {*CAUSES, None}


def test_every_published_key_of_a_run_is_there_and_no_other(made: MadeUp) -> None:
    run = json.loads(shoal(made, "status", "--json"))["runs"][0]
    assert set(run) == set(json.loads((SCHEMAS / "run.json").read_text())["properties"])


def test_completion_knows_commands_flags_runs_and_states(made: MadeUp) -> None:
    def at_end(*words: str) -> list[str]:
        return candidates(["shoal", *words], len(words), lambda: run_names(made.home))

    assert at_end("sta") == ["status"] and set(at_end("")) >= {name for group in COMMANDS.values() for name in group}
    assert at_end("logs", "--err") == ["--errors"]
    assert "001_lr/000_train_3" in at_end("why", "001_lr/000_") and at_end("why", "002")[0] == "002_new"
    assert "000_train_0" in at_end("why", "000_train")
    assert at_end("status", "--state", "failed,o") == ["failed,oom"]
    assert at_end("status", "--columns", "+gp") == ["+gpus", "+gpu"]
    assert at_end("nonsense", "x") == [] and at_end("submit", "exp") == []
    assert candidates(["shoal", "why", ""], 2, lambda: None) == []


@pytest.fixture
def shells(made: MadeUp, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which asking Slurm is noticed, and a home folder of its own."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for program in ("squeue", "sacct", "scontrol", "sinfo"):
        (trap / program).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
        (trap / program).chmod(0o755)
    path = f"{trap}{os.pathsep}{SHOAL.parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    yield {**kept, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}
    assert not (tmp_path / "asked").exists(), "Slurm was asked"


def in_shell(argv: list[str], made: MadeUp, env: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=made.root, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash_completes(made: MadeUp, shells: dict[str, str]) -> None:
    words = "COMP_WORDS=(shoal why 001_lr/000_train_3); COMP_CWORD=2"
    line = f'eval "$(shoal completion bash)"; {words}; _shoal; echo "${{COMPREPLY[@]}}"'
    assert in_shell(["bash", "-c", line], made, shells).split() == ["001_lr/000_train_3"]
    assert set(SHELL_SCRIPTS) == {"bash", "zsh", "fish"}
    assert "which shell" in subprocess.run([SHOAL, "completion"], capture_output=True, text=True, timeout=300).stderr


def test_fish_completes(made: MadeUp, shells: dict[str, str]) -> None:
    lines = 'shoal completion fish | source; complete -C "shoal sta"; complete -C "shoal why 001_lr/000_train_"'
    found = in_shell(["fish", "--no-config", "-c", lines], made, shells).splitlines()
    assert found[0].split("\t")[0] == "status" and {"001_lr/000_train_3", "001_lr/000_train_7"} <= set(found)
    folder = made.root.parent / ".config/fish/completions"
    folder.mkdir(parents=True)
    (folder / "shoal.fish").write_text(SHELL_SCRIPTS["fish"])
    found = in_shell(["fish", "-c", 'complete -C "shoal status --state fail"'], made, shells).splitlines()
    assert found == ["failed"]


@pytest.mark.parametrize("way", ["a file of $fpath", "evaluated"])
def test_zsh_completes_what_is_typed(made: MadeUp, shells: dict[str, str], way: str) -> None:
    """On a terminal, with the tab key: what stands on the line when return is pressed is what the tab made of it."""
    home = made.root.parent
    (home / ".zfunc").mkdir()
    begin = "fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit -u -D; shoal-is() { print -r -- $@ > ~/typed }"
    if way == "evaluated":
        begin += '; eval "$(shoal completion zsh)"'
    else:
        (home / ".zfunc/_shoal").write_text(SHELL_SCRIPTS["zsh"])
    (home / ".zshrc").write_text(f"PS1='ready> '; {begin}; compdef _shoal shoal-is\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(made.root)
        os.execvpe("zsh", ["zsh", "-i", "-o", "NO_GLOBAL_RCS"], {**shells, "TERM": "vt100", "ZDOTDIR": str(home)})
    try:
        said = b""

        def heard(what: bytes) -> bool:
            nonlocal said
            if select.select([terminal], [], [], 0.2)[0]:
                said += os.read(terminal, 65536)
            return what in said

        wait_until(lambda: heard(b"ready> "), 60, "zsh is there")
        os.write(terminal, b"shoal-is why 002_new/0\t")
        wait_until(lambda: heard(b"002_new/000_train_0"), 60, "the tab has completed it")
        os.write(terminal, b"\n")
        typed = home / "typed"
        wait_until(lambda: heard(b"") and typed.is_file() and typed.read_text(), 60, "the line was taken")
        assert typed.read_text().split() == ["why", "002_new/000_train_0"]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
