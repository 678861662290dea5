"""[search]: trials are named before they have parameters, rules hold for every draw, and mistakes are told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from project import Project, assert_clear_error, project_here
from shoal.describe import read_rules
from shoal.describe.document import Given
from shoal.describe.expand import SweepPoint
from shoal.describe.sweep_file import SweepBlock, parse_sweep, with_flags
from shoal.describe.trials import expand_trials
from shoal.errors import InputError

SPACE = {"lr": {"log_uniform": [1e-5, 1.0]}, "depth": {"integers": [1, 12]}, "model": ["a", "b"]}


def block(trials: int = 5, **more: Any) -> SweepBlock:
    search = {"metric": "loss", "trials": trials, **more.pop("search", {})}
    return parse_sweep(Given("sweep", {"search": search, "sweep": SPACE, **more}))


def trials_of(described: SweepBlock) -> list[SweepPoint]:
    return expand_trials(described, "000_train", "python")


def test_more_trials_keep_the_first_ones_and_a_trial_has_one_point_for_all_its_seeds() -> None:
    few, many = trials_of(block(3, seeds="0-1")), trials_of(block(9, seeds="0-1"))
    assert [point.search["name"] for point in few] == [f"000_train_t{k:03d}" for k in (0, 0, 1, 1, 2, 2)]
    assert [point.search["drawn"] for point in many[:6]] == [point.search["drawn"] for point in few]
    assert few[0].search["drawn"] == few[1].search["drawn"] != few[2].search["drawn"]
    assert all(point.search["seeds"] == [0, 1] and "lr" not in point.params for point in few)


def test_draws_satisfy_the_rules_and_carry_what_follows_from_them() -> None:
    described = block(
        40,
        params={"width": 8},
        derived={"_double": "width * 2", "size": "depth * _double"},
        require=["size <= 128"],
        exclude=[{"model": "b", "depth": 1}, "depth == 2"],
    )
    for point in trials_of(described):
        drawn = point.search["drawn"]
        params, derived = drawn["params"], drawn["derived"]
        assert derived == {"size": params["depth"] * 16} and params["depth"] in (1, *range(3, 9))
        assert (params["model"], params["depth"]) != ("b", 1)
        rules = read_rules(json.loads(json.dumps(point.search["rules"])))
        assert rules.derive(point.params, params) == derived
        assert rules.derive(point.params, {**params, "depth": 12}) is None


def test_points_of_the_user_come_first_and_the_rest_of_them_is_drawn() -> None:
    first, second, third = trials_of(block(3, points=[{"lr": 0.1, "depth": 4, "model": "b"}, {"lr": 0.01}]))
    assert first.search["point"]["params"] == {"lr": 0.1, "depth": 4, "model": "b"}
    assert second.search["point"]["params"]["lr"] == 0.01 and "depth" in second.search["point"]["params"]
    assert "point" not in third.search


def test_set_fixes_a_searched_parameter_or_makes_it_a_choice() -> None:
    changed = with_flags(block(), ["lr=0.1", "depth=4,8"])
    assert changed.search is not None and changed.params == {"lr": 0.1}
    assert changed.search.space == {"model": {"choice": ["a", "b"]}, "depth": {"choice": [4, 8]}}
    with pytest.raises(InputError, match="no parameter to choose"):
        with_flags(block(), ["lr=0.1", "depth=4", "model=a"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"search": {"sampler": "best"}}, "expected one of random, tpe, gp, cmaes, qmc"),
        ({"search": {"trials": 0}}, "a whole number of at least 1"),
        ({"search": {"direction": "down"}}, "expected one of min, max"),
        ({"search": {"until": "accuracy > 3"}}, "until is a condition on loss"),
        ({"search": {"until": "loss is small"}}, "until is a condition on loss"),
        ({"search": {"patience": 0}}, "a whole number of at least 1"),
        ({"sweep": {}}, "no parameters to choose"),
        ({"sweep": {"lr": {"loguniform": [1e-5, 1]}}}, "unknown draw 'loguniform'; did you mean log_uniform"),
        ({"sweep": {"lr": {"uniform": [0, 1]}}, "search": {"sampler": "cmaes"}}, "2 or more drawn numbers"),
        ({"num_samples": 3}, "num_samples cannot be used with"),
        ({"zip": {"a": [1, 2], "b": [1, 2]}}, "zip cannot be used with"),
        ({"points": [{"lr": 5.0}]}, "outside log_uniform"),
        ({"points": [{"momentum": 5.0}]}, "momentum is not a parameter"),
        ({"request": {"gpus": "=depth"}}, "reads depth, which .search. chooses when the trial starts"),
        ({"cost": "depth * 2"}, "cost reads depth"),
        ({"require": ["depth > 20"]}, "refuse 20 random draws for trial t000"),
        ({"require": ["depht > 2"]}, "did you mean depth"),
        ({"derived": {"x": "depth + seed"}, "seeds": "0-1"}, "reads seed and a searched parameter"),
        ({"early_stopping": {"metric": "loss", "first": 3, "mode": "max"}}, "mode = 'max'"),
    ],
)
def test_a_mistake_is_one_sentence(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        trials_of(block(**more))


def test_the_metric_is_needed() -> None:
    with pytest.raises(InputError, match=r"missing key 'search\.metric'") as caught:
        parse_sweep(Given("sweep", {"search": {"trials": 3}, "sweep": SPACE}))
    assert caught.value.hint == 'metric = "loss"'


FILE = """\
command = ["python", "train.py", "--lr={{lr}}", "{{depth}}"]
{top}
[search]
{search}
[sweep]
{sweep}
"""
DRAWS = "lr = { log_uniform = [1e-5, 1] }\ndepth = { integers = [1, 9] }"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_here(tmp_path)


@pytest.mark.parametrize(
    ("search", "sweep", "said"),
    [
        ('metric = "loss"\ntrials = 5\nsampler = "best"', DRAWS, "sampler = 'best'"),
        ("trials = 5", DRAWS, "missing key 'search.metric'"),
        ('metric = "loss"\ntrials = 0', DRAWS, "trials = 0"),
        ('metric = "loss"\ntrials = 5', "", "no parameters to choose"),
    ],
)
def test_a_mistaken_file_starts_nothing(project: Project, search: str, sweep: str, said: str) -> None:
    path = project.write("experiments/001_s/000_train.toml", FILE.format(search=search, sweep=sweep, top=""))
    assert_clear_error(project.shoal("submit", path, code=2), 2, said)
    assert not (project.home / "runs").exists()


def test_the_plan_has_trials_as_runs(project: Project) -> None:
    search = 'metric = "loss"\ntrials = 2\nsampler = "random"'
    path = project.write(
        "experiments/001_s/000_train.toml", FILE.format(search=search, sweep=DRAWS, top='seeds = "0-1"')
    )
    runs = project.shoal("plan", path, "--json").json["runs"]
    assert [run["name"] for run in runs] == [f"001_s/000_train_t00{k}_{seed}" for k in (0, 1) for seed in (0, 1)]
    assert all(run["params"] == {} for run in runs)
