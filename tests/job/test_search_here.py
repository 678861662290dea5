"""Searches on this machine: packs, single runs, killed engines, samplers that are missing, slow or dead."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from project import Project, assert_clear_error, end_process, processes_with, project_here
from shoal.kernel import layout
from waiting import wait_until

#: Writes its loss; with `slow` it first waits for a file, with `weak` its first attempt fails.
PROGRAM = """\
import json, math, os, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:])
out = os.environ["SHOAL_OUTPUT_DIR"]
with open(os.path.join(ROOT, "marks", os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    file.write(json.dumps({"what": "start", "args": sys.argv[1:], "attempt": os.environ["SHOAL_ATTEMPT"]}) + "\\n")
if words.get("weak") == os.environ["SHOAL_ATTEMPT"]:
    sys.exit(3)
while "wait" in words and not os.path.exists(os.path.join(ROOT, words["wait"])):
    time.sleep(0.02)
if "steps" in words:
    with open(os.path.join(out, "metrics.jsonl"), "a") as file:
        for step in range(1, int(words["steps"]) + 1):
            file.write(json.dumps({"step": step, "loss": float(words["lr"]) + 1 / step}) + "\\n")
    while not os.path.exists(os.path.join(ROOT, "go")):
        time.sleep(0.02)
loss = abs(math.log10(float(words["lr"])) + 2) + float(words.get("seed", 0))
with open(os.path.join(out, "metrics.json"), "w") as file:
    json.dump({words.get("metric", "loss"): loss}, file)
"""
#: A busy machine takes longer than jobs wait for a sampler by themselves.
PATIENT = {"SHOAL_SAMPLER_S": "120"}
FILE = """\
command = [{python}, "-S", {program}, "lr={{lr}}", {words}]
{top}
[search]
metric = "loss"
trials = {trials}
{search}
[sweep]
lr = {{ log_uniform = [1e-5, 1] }}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = project_here(tmp_path)
    made.write("learn.py", f"ROOT = {str(made.root)!r}\n{PROGRAM}")
    return made


def search_file(project: Project, trials: int, *words: str, search: str = "", top: str = "") -> Path:
    text = FILE.format(
        python=json.dumps(sys.executable),
        program=json.dumps(str(project.root / "learn.py")),
        words=", ".join(map(json.dumps, words)),
        trials=trials,
        search=search,
        top=top,
    )
    return project.write("experiments/001_s/000_train.toml", text)


def bound(project: Project) -> list[dict[str, Any]]:
    paths = sorted(Path(layout.trial_file(str(project.home), "001_s", "x")).parent.glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def assert_each_ran_with_its_parameters(project: Project, trials: int, times: int = 1) -> None:
    """Every trial is bound once, and each of its attempts got just these parameters."""
    found, runs = bound(project), project.status()
    assert [one["trial"] for one in found] == list(range(trials))
    for one in found:
        name = f"001_s/000_train_t{one['trial']:03d}"
        marks = project.marks(name)
        assert {mark["args"][0] for mark in marks} == {f"lr={one['params']['lr']!r}"}
        assert len(marks) <= times and runs[name]["state"] == "completed"


def assert_sampled(found: list[dict[str, Any]]) -> None:
    """The sampler was asked for every trial after the first ten, which PATIENT jobs have waited for; where it knew
    fewer than ten results, it drew at random, and the trial says so."""
    assert {one["sampler"] for one in found[:10]} == {"random"}
    few = "fewer than 10 results were known"
    words = [(one["sampler"], one["note"]) for one in found[10:]]
    assert {*words} <= {("tpe", None), ("random", few)} and words[-1] == ("tpe", None), words
    assert all(one["known"] < 10 for one in found[10:] if one["sampler"] == "random")
    assert {one["note"] for one in found[:10]} == {None}


@pytest.mark.slow
def test_a_pack_binds_each_trial_once_and_the_sampler_learns(project: Project) -> None:
    path = search_file(project, 24)
    project.shoal("submit", path, "--layout", "pack", "--slots", 3, environ=PATIENT)
    assert_each_ran_with_its_parameters(project, 24)
    found = bound(project)
    assert_sampled(found)
    assert found[-1]["known"] >= 20
    again = project.shoal("submit", path, "--layout", "pack", "--slots", 3, "--json")
    assert {run["did"] for run in again.json["runs"]} == {"left alone"}
    grown = search_file(project, 26)
    project.shoal("submit", grown, "--layout", "pack", "--slots", 3)
    assert_each_ran_with_its_parameters(project, 26)
    table = project.shoal("results", "001_s", "--sort", "loss", "--json").json
    assert table["params"] == ["lr"] and table["groups"][0]["params"]["lr"] == min(
        (one["params"]["lr"] for one in bound(project)), key=lambda lr: abs(math.log10(lr) + 2)
    )
    _look_at_views(project)
    assert not processes_with("OMP_NUM_THREADS=1", f"HOME={project.env['HOME']}"), "no sampler is left"


def _look_at_views(project: Project) -> None:
    """Every view of a search of 26 trials."""
    said = project.shoal("search", "show", "001_s").out
    count = sum(one["sampler"] == "tpe" for one in bound(project))
    assert f"chosen by tpe: {count} trials (" in said and f"chosen by random: {26 - count} trials (t000-t0" in said
    assert "26 trials, 26 completed" in said and "best: 000_train_t" in said and " lr" in said
    page = project.shoal("report", "001_s", "--html", "-").out
    assert page.count("<polyline") == 27 and "parallel coordinates" in page
    assert "## Search" in project.shoal("report", "001_s", "--md").out
    project.shoal("search", "export", "001_s", "-o", "s.journal")
    journal = JournalStorage(JournalFileBackend(str(project.root / "s.journal")))
    study = optuna.load_study(study_name="001_s/000_train", storage=journal)
    best = project.shoal("search", "show", "001_s", "--json").json["searches"][0]["best"]
    assert len(study.trials) == 26 and study.best_trial.user_attrs["trial"] == best
    assert_clear_error(project.shoal("search", "export", "001_s", "-o", "s.journal", code=2), 2, "exists already")


@pytest.mark.slow
def test_single_runs_ask_once_at_their_start(project: Project) -> None:
    project.shoal("submit", search_file(project, 12, search="seed = 3"), environ=PATIENT)
    assert_each_ran_with_its_parameters(project, 12)
    assert_sampled(bound(project))
    assert [one["known"] for one in bound(project)[10:]] == [10, 11]


@pytest.mark.slow
def test_a_killed_engine_and_a_failed_attempt_keep_the_parameters(project: Project) -> None:
    path = search_file(project, 6, "wait=go", search='sampler = "qmc"')
    begun = project.start("submit", path, "--layout", "pack", "--slots", 2)
    try:
        wait_until(lambda: len(bound(project)) == 2, 60, "two trials are bound")
        wait_until(lambda: project.marks("001_s/000_train_t001"), 60, "it runs")
        before = bound(project)
        (engine,) = {one["pid"] for one in before}
        os.kill(engine, signal.SIGKILL)
    finally:
        end_process(begun)
    project.write("go", "")
    project.shoal("submit", path, "--layout", "pack", "--slots", 2)
    assert bound(project)[:2] == before
    assert_each_ran_with_its_parameters(project, 6, times=2)
    weak = search_file(project, 7, "wait=go", "weak=1", search='sampler = "qmc"')
    project.shoal("submit", weak, "--layout", "pack", "--slots", 1, "--rerun", code=None)
    project.shoal("retry", "001_s", code=None)
    assert bound(project)[:2] == before
    assert_each_ran_with_its_parameters(project, 7, times=4)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexit 1\n", "the sampler has ended"),
        ('#!/bin/sh\necho \'{"failed": "the sampler cannot be loaded: no optuna"}\'\n', "no optuna"),
        ("#!/bin/sh\necho hello\nsleep 60\n", "wrote b'hello'"),
        ("#!/bin/sh\necho '{\"loaded\": []}'\nexec sleep 600\n", "took longer than 5 s"),
        ("", "cannot start"),
    ],
)
@pytest.mark.slow
def test_no_run_waits_for_a_sampler_that_is_missing_dead_or_slow(project: Project, script: str, said: str) -> None:
    fake = project.write("python", script)
    fake.chmod(0o755 if script else 0o644)
    path = search_file(project, 4, search='sampler = "qmc"')
    wait_s = "5" if "longer" in said else "120"  # time enough for a shell to start
    words = ("--layout", "pack", "--slots", 1)
    project.shoal("submit", path, *words, SHOAL_SEARCH_PYTHON=str(fake), SHOAL_SAMPLER_S=wait_s)
    assert_each_ran_with_its_parameters(project, 4)
    found = bound(project)
    assert {one["sampler"] for one in found} == {"random"} and said in found[0]["note"]
    if "longer" in said:
        assert all("still busy with trial 0" in one["note"] for one in found[1:]), "the second one does not wait"


@pytest.mark.slow
def test_seeds_share_a_point_and_their_mean_is_the_value(project: Project) -> None:
    path = search_file(
        project, 3, "seed={seed}", top='seeds = "0-2"', search='until = "loss < 100"\nsampler = "random"'
    )
    project.shoal("submit", path, "--layout", "pack", "--slots", 1)
    assert len(bound(project)) == 1, "the second trial was not needed"
    states = {name: run["state"] for name, run in project.status().items()}
    assert [states[f"001_s/000_train_t000_{seed}"] for seed in range(3)] == ["completed"] * 3
    stopped = project.status()["001_s/000_train_t001_0"]
    assert stopped["state"] == "stopped" and "until is loss < 100" in stopped["reason"]
    assert project.status()["001_s/000_train_t002_2"]["state"] == "stopped"
    assert len({str(project.marks(f"001_s/000_train_t000_{seed}")[0]["args"][0]) for seed in range(3)}) == 1


@pytest.mark.slow
def test_a_trial_that_early_stopping_ended_counts_with_the_value_it_had(project: Project) -> None:
    rule = 'sampler = "random"\n[early_stopping]\nmetric = "loss"\nfirst = 5'
    begun = project.start("submit", search_file(project, 12, "steps=5", search=rule), "--layout", "pack", "--slots", 12)

    def stopped() -> list[dict[str, Any]]:
        done = project.shoal("search", "show", "001_s", "--json", code=None)
        found = done.json["searches"][0]["trials"] if done.code == 0 else []
        return [trial for trial in found if trial["state"] == "stopped"]

    try:
        wait_until(lambda: len(stopped()) >= 1, 60, "a loser was stopped", poll_s=0.5)
        project.write("go", "")
        begun.communicate(timeout=300)
    finally:
        end_process(begun)
    for trial in stopped():
        assert trial["value"] == pytest.approx(trial["params"]["lr"] + 0.2)
    assert "stopped early at step 5" in str(project.status()[f"001_s/{stopped()[0]['name']}"]["reason"])


@pytest.mark.slow
def test_a_metric_that_no_run_writes_is_told(project: Project) -> None:
    project.shoal("submit", search_file(project, 2, "metric=val_loss", search='sampler = "random"'))
    said = project.shoal("report", "001_s").out
    assert "no trial wrote the metric loss" in said and "val_loss" in said
