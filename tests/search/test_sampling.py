"""Samplers are functions of results: any point is in the space, and equal results give equal points; stop rules."""

from __future__ import annotations

import importlib.util
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.describe import is_inside
from shoal.errors import InputError
from shoal.kernel import Trial
from shoal.kernel.trials import BoundTrial, RunOutcome, bind_trial, fold_runs, read_bound, why_over
from shoal.search import best_so_far, importances, sampling
from shoal.search.sampling import sample_point

SPACE: dict[str, dict[str, Any]] = {
    "lr": {"log_uniform": [1e-5, 1.0]},
    "depth": {"integers": [1, 12]},
    "drop": {"uniform": [0.0, 0.5]},
    "model": {"choice": ["a", "b", True, 3]},
}


def search(sampler: str, trial: int, **more: Any) -> dict[str, Any]:
    return {
        "trial": trial, "sampler": sampler, "seed": 1, "space": SPACE, "direction": "min", "metric": "loss", **more
    }  # fmt: skip


def trial(number: int, state: str = "completed", value: float | None = 0.5, **params: Any) -> Trial:
    source = random.Random(number)
    drawn = {
        "lr": 10 ** source.uniform(-5, 0),
        "depth": source.randint(1, 12),
        "drop": source.uniform(0, 0.5),
        "model": source.choice(SPACE["model"]["choice"]),
    }
    bound = BoundTrial(number, {**drawn, **params}, {}, [None], "tpe", 0, float(number))
    return Trial(f"000_train_t{number:03d}", bound, state, value, 3.0, float(number))


KNOWN = [
    *(trial(k, value=k / 10) for k in range(12)),
    trial(12, "running", None),
    trial(13, "stopped", 0.4),
    trial(14, "stopped", None),
    trial(15, "failed", None),
    trial(16, "completed", math.nan),
    trial(17, lr=7.0),
]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc"])
def test_a_point_is_in_the_space_and_depends_on_results_and_number_alone(sampler: str) -> None:
    points = [sample_point(search(sampler, 20 + k), {}, KNOWN) for k in range(6)]
    for point in points:
        assert point is not None and all(is_inside(value, SPACE[name]) for name, value in point["params"].items())
    assert points == [sample_point(search(sampler, 20 + k), {}, KNOWN) for k in range(6)]
    assert len({repr(point) for point in points}) == 6


@pytest.mark.slow
def test_gp_chooses_a_point_in_the_space() -> None:
    point = sample_point(search("gp", 20), {}, KNOWN)
    assert point is not None and all(is_inside(value, SPACE[name]) for name, value in point["params"].items())


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc"])
def test_rules_hold_for_the_points_of_a_sampler_and_impossible_ones_end(sampler: str) -> None:
    rules = {
        "derived": {"size": {"expression": "depth * width"}},
        "exclude": [{"model": "a"}],
        "require": [{"expression": "size >= 20"}],
        "tables": {},
    }
    for k in range(10):
        point = sample_point(search(sampler, k, rules=rules), {"width": 4}, KNOWN)
        assert point is not None and point["derived"] == {"size": point["params"]["depth"] * 4}
        assert point["params"]["depth"] >= 5 and point["params"]["model"] != "a"
    rules["require"] = [{"expression": "size >= 20 / (depth - depth)"}]
    assert sample_point(search(sampler, 0, rules=rules), {"width": 4}, KNOWN) is None


def test_a_sampler_without_its_libraries_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="'gp' needs optuna and torch and scipy") as caught:
        sampling.check_sampler("gp")
    assert caught.value.hint == "pip install 'shoal[search]' torch"
    sampling.check_sampler("random")


def test_seeds_are_averaged_and_one_that_is_under_way_keeps_the_trial_open() -> None:
    done, other = RunOutcome("completed", 1.0, None, 5.0), RunOutcome("completed", 2.0, None, 7.0)
    assert fold_runs([done, other]) == RunOutcome("completed", 1.5, None, 7.0)
    assert fold_runs([done, RunOutcome("running")]).state == "running"
    assert fold_runs([done, RunOutcome("failed", ended=9.0)]) == RunOutcome("failed", ended=9.0)
    assert fold_runs([done, RunOutcome("stopped", 4.0, 3.0, 8.0)]) == RunOutcome("stopped", 2.5, None, 8.0)
    assert fold_runs([RunOutcome("stopped", None, None, 8.0)]) == RunOutcome("stopped", ended=8.0)


def test_stop_rules() -> None:
    found = [trial(0, value=0.5), trial(1, value=0.2), trial(2, value=0.4), trial(3, "failed", None)]
    rule = {"metric": "loss", "direction": "min"}
    assert why_over(found, rule) is None and why_over([], {**rule, "patience": 1}) is None
    assert "t001 has loss 0.2" in (why_over(found, {**rule, "until": ["<", 0.3]}) or "")
    assert why_over(found, {**rule, "until": ["<", 0.2]}) is None
    assert "2 trials have ended since 000_train_t001" in (why_over(found, {**rule, "patience": 2}) or "")
    assert why_over(found, {**rule, "patience": 3}) is None
    assert "t000" in (why_over(found, {**rule, "direction": "max", "until": [">=", 0.5]}) or "")


def test_a_trial_is_bound_once_whoever_comes_later(tmp_path: Path) -> None:
    home = str(tmp_path)
    first, second = (BoundTrial(0, {"lr": lr}, {}, [0], "tpe", 3, time.time()) for lr in (0.1, 0.2))
    assert read_bound(home, "001_a", "000_train_t000") is None
    assert bind_trial(home, "001_a", "000_train_t000", first) == first
    assert bind_trial(home, "001_a", "000_train_t000", second) == first
    (tmp_path / "search/001_a/000_train_t001.json").write_text('{"trial": 1}')
    with pytest.raises(ValueError, match="damaged"):
        read_bound(home, "001_a", "000_train_t001")


def test_importance_is_high_for_what_decides_and_low_for_what_does_not() -> None:
    source = random.Random(3)
    found = [trial(k, lr=source.random(), value=0.0) for k in range(80)]
    found = [one._replace(value=abs(one.bound.params["lr"] - 0.5)) for one in found]
    shares = importances(found, "min")
    assert next(iter(shares)) == "lr" and shares["lr"] > 0.3 and max(shares[n] for n in ("depth", "drop")) < 0.15
    assert importances(found[:7], "min") == {}
    values = [value for _, value in best_so_far(found, "min")]
    assert values == sorted(values, reverse=True) and values[-1] == min(one.value or 0 for one in found)
