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
from shoal.kernel.metric_files import protobuf_fields, tensorboard_points, wandb_rows
from shoal.kernel.progress import RunOutput, read_metrics
from shoal.model import RunSpec
from shoal.observe.results import RunMetrics, statistic, tabulate
from shoal.views.results import show_results


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
    assert read_metrics(RunOutput(str(tmp_path))) == {"loss": 1.5, "eval.acc": 0.5}


def test_numbers_come_from_every_source_and_those_written_on_purpose_win(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(event_file(("loss", 3.0), ("tb/only", 1.0), ("loss", 2.0)))
    run = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    run.mkdir(parents=True)
    (run / "run-abc.wandb").write_bytes(wandb_file({"loss": 9, "_step": 0, "w": "text"}, {"loss": 8, "only": 4}))
    (tmp_path / "metrics.json").write_text('{"loss": 1, "ok": true, "name": "x", "list": [1]}')
    assert read_metrics(RunOutput(str(tmp_path))) == {"loss": 1.0, "ok": 1.0, "tb/only": 1.0, "only": 4.0}


def test_records_over_block_borders_and_broken_ends_are_read_as_far_as_they_are_whole() -> None:
    rows = [{"loss": index, "note": "x" * 9000} for index in range(12)]
    data = wandb_file(*rows)
    assert [row["loss"] for _, row in wandb_rows(data)] == list(range(12))
    assert len(data) > 3 * 32768
    for cut in (0, 5, 7, 20, 32768, 40000, len(data) - 1):
        list(wandb_rows(data[:cut]))
    events = event_file(("a", 1.0), ("b", 2.0))
    assert [(tag, value) for tag, _, value, _ in tensorboard_points(events[:-3])] == [("a", 1.0)]


@given(st.binary(max_size=300))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    list(protobuf_fields(data))
    list(wandb_rows(b":W&B\xe1\xbe\x00" + data))
    list(tensorboard_points(data))


@pytest.mark.slow
def test_a_real_offline_run_of_wandb_is_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = (
        "import wandb; run = wandb.init(project='p', mode='offline')\n"
        "for i in range(5): wandb.log({'loss': 1 / (i + 1), 'eval/acc': i / 10})\n"
        "run.finish()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert read_metrics(RunOutput(str(tmp_path))) == {"loss": 0.2, "eval/acc": 0.4}


def result(lr: float, seed: int, state: str = "completed", **numbers: float) -> RunMetrics:
    return RunMetrics(f"e/000_train_lr{lr}_{seed}", "train", seed, {"lr": lr, "n": lr * 2}, ["n"], state, numbers)


def test_groups_over_seeds_have_mean_deviation_count_and_name_the_missing() -> None:
    runs = [result(0.1, 0, acc=0.5), result(0.1, 1, acc=0.7), result(0.1, 2, "failed"), result(0.2, 0, acc=0.9)]
    table = tabulate(runs, sort="acc", descending=True)
    assert table.params == ["lr"] and table.metrics == ["acc"]
    best, other = table.groups
    assert (best.name, best.metrics["acc"].std) == ("e/000_train_lr0.2", None)
    one = other.metrics["acc"]
    assert one.size == 2 and one.mean == pytest.approx(0.6) and one.std == pytest.approx(statistics.stdev([0.5, 0.7]))
    assert [(run.seed, run.state) for run in other.missing] == [(2, "failed")]


def test_a_run_without_a_seed_is_a_row_beside_the_seeds_of_its_name() -> None:
    alone = RunMetrics("train/lr0.1", "train", None, {}, [], "completed", {"acc": 0.9})
    seeds = [RunMetrics(f"train/lr0.1_{n}", "train", n, {"lr": 0.1}, [], "completed", {"acc": 0.5}) for n in (0, 1)]
    rows = {group.name: group.metrics["acc"] for group in tabulate([alone, *seeds]).groups}
    assert {name: (one.mean, one.size) for name, one in rows.items()} == {
        "train/lr0.1": (0.9, 1),
        "train/lr0.1_*": (0.5, 2),
    }


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_the_statistics_are_those_of_the_library(numbers: list[float]) -> None:
    found = statistic({str(index): value for index, value in enumerate(numbers)})
    assert found.mean == pytest.approx(statistics.fmean(numbers), abs=1e-6)
    assert found.std == pytest.approx(statistics.stdev(numbers), abs=1e-6)


def test_what_is_not_finite_is_not_hidden() -> None:
    assert math.isnan(statistic({"0": 1.0, "1": float("nan")}).mean)


@pytest.mark.parametrize("size", [1e200, 1e308, 1.7e308])
def test_large_numbers_do_not_break_the_table(size: float) -> None:
    (group,) = tabulate([result(0.1, 0, acc=size), result(0.1, 1, acc=-size), result(0.1, 2, acc=-size)]).groups
    assert group.metrics["acc"].mean == pytest.approx(-size / 3) and (group.metrics["acc"].std or 0) > size
    (group,) = tabulate([result(0.1, 0, acc=size), result(0.1, 1, acc=size)]).groups
    assert (group.metrics["acc"].mean, group.metrics["acc"].std) == (size, 0)


def test_rows_without_a_number_come_last_however_they_are_sorted() -> None:
    runs = [result(0.1, 0, acc=math.nan), result(0.2, 0, acc=1.0), result(0.3, 0), result(0.4, 0, acc=2.0)]
    for descending, order in ((False, [0.2, 0.4, 0.1, 0.3]), (True, [0.4, 0.2, 0.1, 0.3])):
        table = tabulate(runs, sort="acc", descending=descending)
        assert [group.params["lr"] for group in table.groups] == order


def test_an_unknown_metric_is_guessed() -> None:
    with pytest.raises(InputError, match="did you mean accuracy"):
        tabulate([result(0.1, 0, accuracy=1)], metrics=["acuracy"])


def test_a_metric_that_is_a_parameter_is_shown_once_unless_it_is_asked_for() -> None:
    """As timm's summary.csv has the learning rate."""
    runs = [result(lr, 0, acc=1.0)._replace(numbers={"acc": 1.0, "lr": lr}) for lr in (0.1, 0.2)]
    assert tabulate(runs).metrics == ["acc"] and tabulate(runs).params == ["lr"]
    assert tabulate(runs, metrics=["lr"]).metrics == ["lr"]


def test_a_parameter_may_be_averaged_over_like_a_seed() -> None:
    runs = [
        RunMetrics(f"e/eval_ckpt{ckpt}_route{route}", "eval", None, {"ckpt": ckpt, "route": route}, [], state, numbers)
        for ckpt, route, state, numbers in [
            ("a", 1, "completed", {"score": 1.0}),
            ("a", 2, "completed", {"score": 0.0}),
            ("b", 1, "failed", {}),
            ("b", 2, "completed", {"score": 1.0}),
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


def route(script: str, seed: int, number: int, value: float | None, state: str = "completed") -> RunMetrics:
    name = f"e/{script}_route{number}_{seed}"
    numbers = {} if value is None else {"score": value, "time_s": seed + number / 10}
    return RunMetrics(name, "eval", seed, {"route": number}, [], state, numbers, script=f"e/{script}")


def test_over_a_parameter_the_runs_of_a_seed_are_averaged_first() -> None:
    """Routes differ by 40 points, seeds by two: the deviation is that of the seeds."""
    bases = enumerate((54, 56, 58))
    runs = [route("000_eval", seed, number, base + 20 * number) for seed, base in bases for number in (0, 1, 2)]
    (group,) = tabulate(runs, over=["route"]).groups
    one = group.metrics["score"]
    assert (one.mean, one.std, one.size) == (76.0, 2.0, 3) and one.values == {"0": 74.0, "1": 76.0, "2": 78.0}


def test_a_seed_that_lacks_a_route_is_noted_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    """Its mean is over other routes than that of the others."""
    runs = [route("000_eval", seed, number, 20.0 * number + seed) for seed in (0, 1, 2) for number in (0, 1, 2)]
    assert tabulate(runs, over=["route"]).notes == []
    runs[5] = route("000_eval", 1, 2, None, "failed")
    table = tabulate(runs, over=["route"])
    assert table.notes == ["e/000_eval: seed 1 has 2 of 3 values of route"]
    assert tabulate(runs, over=["route"], missing_value=0).notes == []
    assert tabulate([*runs[:5], *runs[6:]], over=["route"]).notes == table.notes, "also if it was never submitted"
    for kind in ("text", "csv", "markdown", "latex"):
        show_results(table, kind)
        shown = capsys.readouterr()
        assert "note: e/000_eval: seed 1 has 2 of 3 values of route" in shown.err, kind
        assert ("% note: e/000_eval: seed 1 has 2 of 3" in shown.out) == (kind == "latex")
    runs[5] = runs[5]._replace(state="completed", numbers={"time_s": 1.0})
    assert tabulate(runs, over=["route"]).notes == ["e/000_eval: score: seed 1 has 2 of 3 values of route"]


def test_different_scripts_never_share_a_row() -> None:
    scripts = (("000_eval", 1.0), ("001_eval", 3.0))
    runs = [route(script, 0, number, value) for script, value in scripts for number in (0, 1)]
    assert [(one.name, one.metrics["score"].mean) for one in tabulate(runs, over=["route"]).groups] == [
        ("e/000_eval", 1.0),
        ("e/001_eval", 3.0),
    ]


def test_missing_runs_count_as_zero_where_that_is_asked_for_and_waiting_ones_do_not() -> None:
    runs = [
        route("000_eval", 0, 0, 10.0),
        route("000_eval", 0, 1, None, "failed"),
        route("000_eval", 1, 0, 20.0),
        route("000_eval", 1, 1, None, "pending"),
        route("000_eval", 2, 0, None, "failed"),
    ]
    (group,) = tabulate(runs, over=["route"], missing_value=0.0).groups
    assert group.metrics["score"].values == {"0": 5.0, "1": 20.0, "2": 0.0} and len(group.missing) == 3
    (group,) = tabulate(runs, over=["route"]).groups
    assert group.metrics["score"].values == {"0": 10.0, "1": 20.0}


def numbered(order: int, seed: int, work: str = "lr 1", **numbers: float) -> RunMetrics:
    name = f"e/{order:03}_x_{seed}"
    return RunMetrics(name, "x", seed, {}, [], "completed", numbers, script=name[:-2], number=order, work=work)


def test_a_number_that_grows_with_the_seed_is_one_row() -> None:
    lead = [numbered(10 + seed, seed, loss=float(seed)) for seed in range(3)]
    other = [numbered(20, 0, work="lr 2", loss=7.0), numbered(21, 1, work="lr 3", loss=8.0)]
    twice = [numbered(30, 0, loss=1.5), numbered(31, 0, loss=1.5)]
    groups = tabulate([*lead, *other, *twice]).groups
    assert [(one.name, len(one.runs)) for one in groups] == [
        ("e/010-012_x", 3),
        ("e/020_x", 1),
        ("e/021_x", 1),
        ("e/030_x", 1),
        ("e/031_x", 1),
    ]
    assert groups[0].metrics["loss"].std == 1.0


def started(order: int, seed: int, start: str) -> RunSpec:
    return RunSpec(
        experiment="e", stem=f"{order:03}_x_{seed}", number=order, step="x", step_kind="x", seed=seed, command=["x"],
        cwd="/", output="x", start_parent=start,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("starts", "is_one_row"),
    [
        (["e/000_pretrain_0"] * 3, True),
        (["e/000_pretrain_0", "e/001_pretrain_1", "e/002_pretrain_2"], True),
        (["e/000_pretrain_0", "e/001_other_1", "e/002_pretrain_2"], False),
        (["e/000_pretrain_0", "e/005_pretrain_1", "e/002_pretrain_2"], False),
    ],
)
def test_seeds_may_start_from_the_same_run_or_each_from_its_own(starts: list[str], is_one_row: bool) -> None:
    specs = [started(10 + seed, seed, start) for seed, start in enumerate(starts)]
    runs = [
        numbered(10 + seed, seed, spec.work(), loss=1.0 + seed)._replace(starts=spec.starts())
        for seed, spec in enumerate(specs)
    ]
    assert (len(tabulate(runs).groups) == 1) == is_one_row


def test_a_seed_that_changes_nothing_and_a_metric_that_is_no_number_are_noted() -> None:
    same = [result(0.1, seed, acc=0.25, loss=1 / 3, train_time_s=seed) for seed in range(3)]
    fine = [result(0.2, seed, acc=0.25, loss=seed / 3) for seed in range(3)]
    bad = [result(0.3, 0, acc=float("nan"), loss=1.0)]
    lost = [result(0.4, seed, acc=math.nan) for seed in range(2)]
    assert tabulate(lost).notes == [f"e/000_train_lr0.4_{seed} completed with acc = nan" for seed in range(2)]
    assert tabulate([*same, *fine, *bad]).notes == [
        "e/000_train_lr0.1: seeds 0, 1, 2 have the same metrics to the last digit; does the program use its seed?",
        "e/000_train_lr0.3_0 completed with acc = nan",
    ]


PROGRAM = """\
import json, os, sys
lr, seed = float(sys.argv[1]), int(sys.argv[2])
if seed == 2 and lr == 0.2: sys.exit(3)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    json.dump({"acc": lr + seed / 10, "a_b": 1}, file)
"""
SWEEP_FILE = """\
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
    sweep_file = project.write("experiments/002_depth/000_train.toml", SWEEP_FILE)
    project.shoal("submit", sweep_file, "--on", "local", "-q", code=4)
    return project


@pytest.mark.slow
def test_results_of_a_sweep_in_every_format(project: Project) -> None:
    document = project.shoal("results", "002_depth", "--json").json
    groups = {group["params"]["lr"]: group for group in document["groups"]}
    assert groups[0.1]["metrics"]["acc"]["mean"] == pytest.approx(0.2) and groups[0.1]["missing"] == []
    assert [(one["seed"], one["state"]) for one in groups[0.2]["missing"]] == [(2, "failed")]
    assert len(document["runs"]) == 6
    text = project.shoal("results", "002_depth", "--metric", "acc", "--sort", "acc", "--descending").out
    assert text.splitlines()[1].split("\t")[1:] == ["0.2", "0.25 ± 0.071", "2", "2/3", "seed 2 failed"]
    rows = list(csv.DictReader(io.StringIO(project.shoal("results", "--format", "csv").out)))
    assert float(rows[0]["acc"]) == pytest.approx(0.2) and rows[1]["missing"] == "seed 2 failed"
    assert project.shoal("results", "--format", "markdown").out.startswith(
        "| group | lr | acc | a_b | n | runs | missing |\n| --- |"
    )
    latex = project.shoal("results", "--format", "latex").out
    assert r"lr & acc & a\_b & n \\" in latex and r"0.2 & $0.25 \pm 0.071$ & $1 \pm 0$ & 2 \\" in latex
    zero = project.shoal("results", "--missing", "0", "--metric", "acc")
    assert "missing runs that have ended count as 0" in zero.out and "0.1667 ± 0.15\t3\t2/3\tseed 2 failed" in zero.out
    assert "count as 0" in project.shoal("results", "--missing", "0", "--format", "latex").out
    assert project.shoal("results", "--missing", "0", "--json").json["missing_value"] == 0
    part = project.shoal("results", "002_depth/000_train_lr0.1_*", "--metric", "acc")
    assert "note: 3 of 6 runs of 002_depth not selected" in part.err and "not selected" not in zero.err
    assert project.shoal("results", "--metric", "ac", code=2).err.startswith("error: no run has a metric 'ac'")


@pytest.mark.slow
def test_retry_names_the_runs_that_a_filter_leaves_out(project: Project) -> None:
    dry = project.shoal("retry", "002_depth", "--state", "timeout", "--dry-run")
    assert "note: left out: 1 failed; --state failed starts them" in dry.err
    chosen = project.shoal("retry", "002_depth/000_train_lr0.2_2", "--dry-run")
    assert "left out" not in chosen.err and "5 of 6 runs of 002_depth not selected" in chosen.err


@pytest.mark.slow
def test_a_parameter_that_older_runs_lack_shows_its_default(project: Project) -> None:
    grown = SWEEP_FILE.replace('"{seed}"]', '"{seed}", "--wd", "{wd}"]') + "wd = [0, 1]\n[defaults]\nwd = 0\n"
    sweep_file = project.write("experiments/002_depth/000_train.toml", grown)
    project.shoal("submit", sweep_file, "--on", "local", "-q", code=4)
    groups = project.shoal("results", "--json").json["groups"]
    assert sorted((group["params"]["lr"], group["params"]["wd"]) for group in groups) == [
        (0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_tables_are_in_the_order_of_their_numbers(project: Project) -> None:
    sweep_file = project.root / "experiments/002_depth/000_train.toml"
    project.shoal("submit", sweep_file, "--on", "local", "-q", "--set", "lr=12,4", "--seeds", "0")
    assert [group["params"]["lr"] for group in project.shoal("results", "--json").json["groups"]] == [0.1, 0.2, 4, 12]
    assert [name.split("_")[-2] for name in project.status()][-2:] == ["lr4", "lr12"]


@pytest.mark.slow
def test_scripts_numbered_with_their_seed_are_one_row_of_three_seeds(tmp_path: Path) -> None:
    """LEAD's way: 010_train_0.sh, 011_train_1.sh, 012_train_2.sh; and one like them with another setting."""
    project = Project(tmp_path)
    project.write("seeded.py", PROGRAM.replace("int(sys.argv[2])", "int(os.environ['SHOAL_SEED'])"))
    project.write("shoal.toml", '[steps.train]\ncommand = ["python3", "seeded.py"]\n')
    for order, seed, lr in ((10, 0, "0.1"), (11, 1, "0.1"), (12, 2, "0.1"), (13, 3, "0.3")):
        project.script(f"001_lead/{order:03}_train_{seed}.sh", f'export CONFIG="x=1 seed={seed}"\ntrain -- {lr}')
    project.shoal("submit", "experiments/001_lead", "--on", "local", "-q")
    document = project.shoal("results", "--json").json
    assert [(group["name"], group["count"]) for group in document["groups"]] == [
        ("001_lead/010-012_train", 3),
        ("001_lead/013_train", 1),
    ]
    latex = project.shoal("results", "--format", "latex").out
    assert "001\\_lead/010-012\\_train & $0.2 \\pm 0.1$" in latex and "001\\_lead/013\\_train" in latex


@pytest.mark.slow
def test_latex_keeps_what_tells_rows_apart(tmp_path: Path) -> None:
    """Two sweeps of one experiment with the same parameters."""
    project = Project(tmp_path)
    project.write("program.py", PROGRAM)
    for name in ("000_train", "001_train"):
        sweep_file = project.write(f"experiments/002_depth/{name}.toml", SWEEP_FILE.replace('"0-2"', '"0-1"'))
        project.shoal("submit", sweep_file, "--on", "local", "-q")
    rows = [line for line in project.shoal("results", "--format", "latex").out.splitlines() if "$" in line]
    assert len(rows) == len(set(rows)) == 4 and "001\\_train" in rows[-1] and "& 0.2 &" in rows[-1]
