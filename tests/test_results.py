"""From output folders to a table: every source of numbers, statistics over seeds, the missing named, every format."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project
from shoal.errors import InputError
from shoal.kernel.progress import Output, read_metrics
from shoal.kernel.progress.trackers import fields, tensorboard_numbers, wandb_numbers
from shoal.results.table import RunResult, statistic, tabulate


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def text_field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event_file(*scalars: tuple[str, float]) -> bytes:
    found = b""
    for tag, value in scalars:
        one = text_field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
        event = varint(2 << 3) + varint(7) + text_field(5, text_field(1, one))
        found += struct.pack("<Q", len(event)) + b"crc." + event + b"crc."
    return found


def wandb_file(*logged: dict[str, object]) -> bytes:
    """Frames as LevelDB has them: a record that does not fit into its block of 32 KiB is split."""
    data = b":W&B\xe1\xbe\x00"
    for row in logged:
        items = b"".join(
            text_field(1, text_field(2, key.encode()) + text_field(16, json.dumps(value).encode()))
            for key, value in row.items()
        )
        rest, first = text_field(2, items), True
        while rest or first:
            left = 32768 - len(data) % 32768
            if left < 7:
                data += b"\0" * left
                left = 32768
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            data += b"crc." + struct.pack("<HB", len(part), kind) + part
            first = False
    return data


def test_the_last_value_of_metrics_jsonl_wins_and_a_half_written_line_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 2, "eval": {"acc": 0.5}}\nnot json\n{"loss": 1.5}\n{"loss": 0.')
    assert read_metrics(Output(str(tmp_path))) == {"loss": 1.5, "eval.acc": 0.5}


def test_numbers_come_from_every_source_and_those_written_on_purpose_win(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(event_file(("loss", 3.0), ("tb/only", 1.0), ("loss", 2.0)))
    run = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    run.mkdir(parents=True)
    (run / "run-abc.wandb").write_bytes(wandb_file({"loss": 9, "_step": 0, "w": "text"}, {"loss": 8, "only": 4}))
    (tmp_path / "metrics.json").write_text('{"loss": 1, "ok": true, "name": "x", "list": [1]}')
    assert read_metrics(Output(str(tmp_path))) == {"loss": 1.0, "ok": 1.0, "tb/only": 1.0, "only": 4.0}


def test_records_over_block_borders_and_broken_ends_are_read_as_far_as_they_are_whole() -> None:
    rows = [{"loss": index, "note": "x" * 9000} for index in range(12)]
    data = wandb_file(*rows)
    assert dict(wandb_numbers(data))["loss"] == 11
    assert len(data) > 3 * 32768
    for cut in (0, 5, 7, 20, 32768, 40000, len(data) - 1):
        dict(wandb_numbers(data[:cut]))
    events = event_file(("a", 1.0), ("b", 2.0))
    assert dict(tensorboard_numbers(events[:-3])) == {"a": 1.0}


@given(st.binary(max_size=300))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    list(fields(data))
    dict(wandb_numbers(b":W&B\xe1\xbe\x00" + data))
    dict(tensorboard_numbers(data))


def test_a_real_offline_run_of_wandb_is_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = (
        "import wandb; run = wandb.init(project='p', mode='offline')\n"
        "for i in range(5): wandb.log({'loss': 1 / (i + 1), 'eval/acc': i / 10})\n"
        "run.finish()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert read_metrics(Output(str(tmp_path))) == {"loss": 0.2, "eval/acc": 0.4}


def result(lr: float, seed: int, state: str = "done", **numbers: float) -> RunResult:
    return RunResult(f"e/000_train_lr{lr}_{seed}", "train", seed, {"lr": lr, "n": lr * 2}, ["n"], state, numbers)


def test_groups_over_seeds_have_mean_deviation_count_and_name_the_missing() -> None:
    runs = [result(0.1, 0, acc=0.5), result(0.1, 1, acc=0.7), result(0.1, 2, "failed"), result(0.2, 0, acc=0.9)]
    table = tabulate(runs, sort="acc", descending=True)
    assert table.params == ["lr"] and table.metrics == ["acc"]
    best, other = table.groups
    assert (best.name, best.metrics["acc"].std) == ("e/000_train_lr0.2", None)
    one = other.metrics["acc"]
    assert (one.size, one.mean) == (2, pytest.approx(0.6)) and one.std == pytest.approx(statistics.stdev([0.5, 0.7]))
    assert [(run.seed, run.state) for run in other.missing] == [(2, "failed")]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_the_statistics_are_those_of_the_library(numbers: list[float]) -> None:
    found = statistic({str(index): value for index, value in enumerate(numbers)})
    assert found.mean == pytest.approx(statistics.fmean(numbers), abs=1e-6)
    assert found.std == pytest.approx(statistics.stdev(numbers), abs=1e-6)


def test_what_is_not_finite_is_not_hidden() -> None:
    assert math.isnan(statistic({"0": 1.0, "1": float("nan")}).mean)


def test_an_unknown_metric_is_guessed() -> None:
    with pytest.raises(InputError, match="did you mean accuracy"):
        tabulate([result(0.1, 0, accuracy=1)], metrics=["acuracy"])


def test_a_parameter_may_be_averaged_over_like_a_seed() -> None:
    runs = [
        RunResult(f"e/eval_ckpt{ckpt}_route{route}", "eval", None, {"ckpt": ckpt, "route": route}, [], state, numbers)
        for ckpt, route, state, numbers in [
            ("a", 1, "done", {"score": 1.0}),
            ("a", 2, "done", {"score": 0.0}),
            ("b", 1, "failed", {}),
            ("b", 2, "done", {"score": 1.0}),
        ]
    ]
    table = tabulate(runs, over=["route"])
    assert table.params == ["ckpt"]
    assert [(one.name, one.metrics["score"].mean, len(one.missing)) for one in table.groups] == [
        ("e/eval_ckpta", 0.5, 0),
        ("e/eval_ckptb", 1.0, 1),
    ]
    with pytest.raises(InputError, match="no run has a parameter"):
        tabulate(runs, over=["town"])


PROGRAM = """\
import json, os, sys
lr, seed = float(sys.argv[1]), int(sys.argv[2])
if seed == 2 and lr == 0.2: sys.exit(3)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    json.dump({"acc": lr + seed / 10, "a_b": 1}, file)
"""
PAGE = """\
step = "train"
command = ["python3", "program.py", "{lr}", "{seed}"]
seeds = "0-2"
[sweep]
lr = [0.1, 0.2]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("program.py", PROGRAM)
    page = project.write("experiments/002_depth/000_train.toml", PAGE)
    project.shoal("submit", page, "--on", "local", "-q", code=4)
    return project


def test_results_of_a_sweep_in_every_format(project: Project) -> None:
    document = project.shoal("results", "002_depth", "--json").json
    groups = {group["params"]["lr"]: group for group in document["groups"]}
    assert groups[0.1]["metrics"]["acc"]["mean"] == pytest.approx(0.2) and groups[0.1]["missing"] == []
    assert [(one["seed"], one["state"]) for one in groups[0.2]["missing"]] == [(2, "failed")]
    assert len(document["runs"]) == 6
    text = project.shoal("results", "002_depth", "--metric", "acc", "--sort", "acc", "--descending").out
    assert text.splitlines()[1].split("\t")[1:] == ["0.2", "0.25 ± 0.071", "2/3", "seed 2 failed"]
    rows = list(csv.DictReader(io.StringIO(project.shoal("results", "--format", "csv").out)))
    assert float(rows[0]["acc"]) == pytest.approx(0.2) and rows[1]["missing"] == "seed 2 failed"
    assert project.shoal("results", "--format", "markdown").out.startswith(
        "| group | lr | acc | a_b | runs | missing |\n| --- |"
    )
    latex = project.shoal("results", "--format", "latex").out
    assert r"lr & acc & a\_b & n \\" in latex and r"0.2 & $0.25 \pm 0.071$ & $1 \pm 0$ & 2/3 \\" in latex
    assert project.shoal("results", "--metric", "ac", code=2).err.startswith("error: no run has a metric 'ac'")


def test_a_parameter_that_older_runs_lack_shows_its_default(project: Project) -> None:
    grown = PAGE.replace('"{seed}"]', '"{seed}", "--wd", "{wd}"]') + "wd = [0, 1]\n[defaults]\nwd = 0\n"
    page = project.write("experiments/002_depth/000_train.toml", grown)
    project.shoal("submit", page, "--on", "local", "-q", code=4)
    groups = project.shoal("results", "--json").json["groups"]
    assert sorted((group["params"]["lr"], group["params"]["wd"]) for group in groups) == [
        (0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1),
    ]  # fmt: skip


def test_tables_are_in_the_order_of_their_numbers(project: Project) -> None:
    page = project.root / "experiments/002_depth/000_train.toml"
    project.shoal("submit", page, "--on", "local", "-q", "--set", "lr=12,4", "--seeds", "0")
    assert [group["params"]["lr"] for group in project.shoal("results", "--json").json["groups"]] == [0.1, 0.2, 4, 12]
    assert [name.split("_")[-2] for name in project.status()][-2:] == ["lr4", "lr12"]
