"""(results so far, trial) -> its parameters. Pure: the same results give the same point.

Every call makes its own study from the trials: nothing is kept between calls, so there is nothing that a crash can
damage. Trials that have ended are told with their value, those that were stopped early with the value they had, those
under way as running. A completed trial whose value is NaN counts as stopped without a value, which is worse than all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.describe import MAX_REFUSED, SAMPLER_MODULES, TrialRules, is_inside, read_rules, round_drawn
from shoal.errors import InputError
from shoal.kernel import Trial, trials
from shoal.model import SUCCESSFUL_STATES

if TYPE_CHECKING:
    import optuna

    from shoal.search.analysis import Search

Space = Mapping[str, Mapping[str, Any]]
_STEP_OF_UNKNOWN_WORK = 1
_INSTALL = dict.fromkeys(SAMPLER_MODULES, "pip install 'shoal[search]'")
_INSTALL["gp"] = "pip install 'shoal[search]' torch"


def check_sampler(name: str) -> None:
    """Refuse a sampler whose libraries are missing."""
    missing = [module for module in SAMPLER_MODULES[name] if importlib.util.find_spec(module) is None]
    if missing:
        raise InputError(
            f"sampler {name!r} needs {' and '.join(missing)}, which cannot be imported", hint=_INSTALL[name]
        )


def sample_point(
    search: Mapping[str, Any], fixed: Mapping[str, Any], known: Sequence[Trial]
) -> dict[str, dict[str, Any]] | None:
    """A point that satisfies the rules of the search, with what follows from it; None if 20 in a row do not."""
    rules = read_rules(search.get("rules", {}))
    earlier = [trial for trial in known if trial.number != search["trial"] and is_point(trial, search["space"])]
    propose = {"cmaes": _cmaes, "qmc": _qmc}.get(search["sampler"], _optuna)(search, earlier)
    for _ in range(MAX_REFUSED):
        params = {name: _as_drawn(value, search["space"][name]) for name, value in propose().items()}
        derived = _derive(rules, fixed, params)
        if derived is not None:
            return {"params": params, "derived": derived}
    return None


def why_random(search: Mapping[str, Any], known: Sequence[Trial]) -> str | None:
    """Why tpe or gp draws this point at random, as Optuna's samplers do until they know enough; else None."""
    earlier = [trial for trial in known if trial.number != search["trial"] and is_point(trial, search["space"])]
    if search["sampler"] == "gp":
        used = [one for one in earlier if one.state == "completed" and math.isfinite(one.value or 0.0)]
    else:
        used = [one for one in earlier if one.state in SUCCESSFUL_STATES]
    if search["sampler"] not in ("tpe", "gp") or len(used) >= trials.STARTUP_TRIALS:
        return None
    return f"fewer than {trials.STARTUP_TRIALS} results were known"


def count_results(known: Sequence[Trial]) -> int:
    return sum(1 for trial in known if trial.state in SUCCESSFUL_STATES)


def _derive(rules: TrialRules, fixed: Mapping[str, Any], params: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return rules.derive(fixed, params)
    except InputError:  # a formula without a value here, such as a division by zero
        return None


def is_point(trial: Trial, space: Space) -> bool:
    """Whether a trial is a point of this space: one from before the file was changed may not be."""
    params = trial.bound.params
    return set(params) == set(space) and all(is_inside(value, space[name]) for name, value in params.items())


def _as_drawn(value: Any, draw: Mapping[str, Any]) -> Any:
    """A sampler's number, rounded as draws are, and not over a bound by that."""
    kind, given = next(iter(draw.items()))
    if kind == "choice":
        return value
    if kind == "integers":
        return int(min(max(round(float(value)), given[0]), given[1]))
    return float(min(max(round_drawn(float(value)), given[0]), given[1]))


def _seed(search: Mapping[str, Any], what: str = "") -> int:
    """A seed of 31 bits for this trial; the same on every machine."""
    text = f"{search['seed']}:{search['trial']}:{what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


# -- tpe and gp -------------------------------------------------------------------------------------------------------


def _optuna(search: Mapping[str, Any], earlier: Sequence[Trial]) -> Callable[[], dict[str, Any]]:
    import optuna

    study = make_study(search, earlier, _optuna_sampler(search))
    space = distributions(search["space"])
    values = [one.value for one in earlier if one.state == "completed" and one.value is not None]
    worst = max((one for one in values if math.isfinite(one)), key=lambda one: _signed(one, search), default=None)
    asked: list[Any] = []

    def propose() -> dict[str, Any]:
        if asked and worst is None:
            study.tell(asked[-1], state=optuna.trial.TrialState.FAIL)
        elif asked:  # rules have refused the last one: it counts as bad, or the next would be like it
            study.tell(asked[-1], worst)
        asked.append(study.ask(space))
        return dict(asked[-1].params)

    return propose


def _signed(value: float | None, search: Mapping[str, Any]) -> float:
    return trials.signed(value, search["direction"])


def _optuna_sampler(search: Mapping[str, Any]) -> Any:
    import optuna

    if search["sampler"] == "gp":
        return optuna.samplers.GPSampler(seed=_seed(search), n_startup_trials=trials.STARTUP_TRIALS)
    return optuna.samplers.TPESampler(
        seed=_seed(search), n_startup_trials=trials.STARTUP_TRIALS, multivariate=True, constant_liar=True
    )


def make_study(search: Mapping[str, Any], earlier: Sequence[Trial], sampler: Any = None, **where: Any) -> optuna.Study:
    """The trials as a study of Optuna; `where` names its storage, which is memory otherwise."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions = optuna.study.StudyDirection
    direction = directions.MAXIMIZE if search["direction"] == "max" else directions.MINIMIZE
    study = optuna.create_study(direction=direction, sampler=sampler, **where)
    space = distributions(search["space"])
    study.add_trials([_frozen(trial, space) for trial in earlier])
    return study


def _frozen(trial: Trial, space: Mapping[str, Any]) -> Any:
    import optuna

    states = optuna.trial.TrialState
    value, state = trial.value, {"running": states.RUNNING, "failed": states.FAIL}.get(trial.state, states.PRUNED)
    intermediate: dict[int, float] = {}
    if value is not None and math.isfinite(value) and trial.state == "completed":
        state = states.COMPLETE
    elif value is not None and math.isfinite(value) and trial.state == "stopped":
        intermediate[_STEP_OF_UNKNOWN_WORK if trial.step is None else int(trial.step)] = value
    return optuna.trial.create_trial(
        state=state,
        value=value if state == states.COMPLETE else None,
        params=dict(trial.bound.params),
        distributions=dict(space),
        intermediate_values=intermediate or None,
        user_attrs={"trial": trial.name, "sampler": trial.bound.sampler},
    )


def distributions(space: Space) -> dict[str, Any]:
    """The draws of a sweep file as Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, draw in space.items():
        kind, given = next(iter(draw.items()))
        if kind == "choice":
            found[name] = CategoricalDistribution(given)
        elif kind == "integers":
            found[name] = IntDistribution(given[0], given[1])
        else:
            found[name] = FloatDistribution(float(given[0]), float(given[1]), log=kind == "log_uniform")
    return found


# -- cmaes and qmc ----------------------------------------------------------------------------------------------------


def _cmaes(search: Mapping[str, Any], earlier: Sequence[Trial]) -> Callable[[], dict[str, Any]]:
    """CMA-ES over the numbers, scaled to 0..1: the completed trials in order of their end, a generation at a time.
    Choices are drawn at random."""
    import cmaes
    import numpy as np

    space = search["space"]
    names = [name for name, draw in space.items() if "choice" not in draw]
    bounds = np.array([[0.0, 1.0]] * len(names))
    optimizer = cmaes.CMA(mean=np.full(len(names), 0.5), sigma=0.25, bounds=bounds, seed=_seed(search))
    done = [one for one in earlier if one.state == "completed" and one.value is not None and math.isfinite(one.value)]
    done.sort(key=lambda one: (one.ended or 0.0, one.number))
    size = optimizer.population_size
    for start in range(0, len(done) - size + 1, size):
        optimizer.tell(
            [
                (
                    np.array([_to_unit(one.bound.params[name], space[name]) for name in names]),
                    _signed(one.value, search),
                )
                for one in done[start : start + size]
            ]
        )
    source = np.random.default_rng(_seed(search, "choices"))

    def propose() -> dict[str, Any]:
        units = dict(zip(names, optimizer.ask().tolist(), strict=True))
        return {name: _from_unit(units.get(name, float(source.random())), draw) for name, draw in space.items()}

    return propose


def _qmc(search: Mapping[str, Any], earlier: Sequence[Trial]) -> Callable[[], dict[str, Any]]:
    """The point of a scrambled Sobol sequence that has the trial's number; points that rules refuse are replaced by
    those after the last trial, which no other trial has."""
    from scipy.stats import qmc

    space = search["space"]
    seed = _seed({**search, "trial": "all"})
    used = 0

    def propose() -> dict[str, Any]:
        nonlocal used
        # A new index for each refused point: far behind every trial, and different for each trial.
        index = search["trial"] if used == 0 else (1 << 20) + search["trial"] * MAX_REFUSED + used
        used += 1
        sequence = qmc.Sobol(len(space), scramble=True, rng=seed)
        if index:
            sequence.fast_forward(index)
        return {
            name: _from_unit(float(unit), draw)
            for (name, draw), unit in zip(space.items(), sequence.random(1)[0], strict=True)
        }

    return propose


def _to_unit(value: Any, draw: Mapping[str, Any]) -> float:
    kind, (low, high) = next(iter(draw.items()))
    if kind == "log_uniform":
        return math.log(float(value) / low) / math.log(high / low)
    if kind == "integers":
        return float((value - low + 0.5) / (high - low + 1))
    return float((value - low) / (high - low))


def _from_unit(unit: float, draw: Mapping[str, Any]) -> Any:
    kind, given = next(iter(draw.items()))
    if kind == "choice":
        return given[min(int(unit * len(given)), len(given) - 1)]
    low, high = given
    if kind == "log_uniform":
        return low * math.exp(unit * math.log(high / low))
    if kind == "integers":
        return min(low + int(unit * (high - low + 1)), high)
    return low + unit * (high - low)


def export_journal(search: Search, path: Path) -> int:
    """Write the trials to an Optuna journal, which optuna-dashboard and Optuna's plots read, and return their number.
    A file that exists is refused; what is changed in the journal is not read again."""
    check_sampler("tpe")
    if path.exists():
        raise InputError(f"{path} exists already", hint=f"rm {path}   # or another name: -o FILE")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    known = [trial for trial in search.trials if is_point(trial, search.settings["space"])]
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        backend = JournalFileBackend(str(part), lock_obj=JournalFileOpenLock(str(part)))
        make_study(search.settings, known, storage=JournalStorage(backend), study_name=search.name)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return len(known)
