"""Trials of a search: their parameters, bound once for all time, and their results, read from the records of runs.

A trial is one or more runs (its seeds), named before its parameters are known. Whoever starts the first of them creates
search/<experiment>/<trial>.json, exclusively; from then on every attempt of every run of the trial has these
parameters. Results are told to no study: `TrialReader` derives them from run records whenever they are needed.
"""

import math
import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import files, layout, lease, progress
from .fence import INTERRUPTING_STOPS

#: Trials of tpe and gp below this number are drawn at random, as these samplers do until they know some results.
STARTUP_TRIALS = 10
#: A sampler that takes longer for an answer is not waited for.
ANSWER_S = 2.0


class BoundTrial(NamedTuple):
    """The file of a trial. `known` results were known when it was bound; `note` says why it was drawn at random.

    `params` are the searched parameters, `derived` those that follow from them. `seeds` are those of its runs.
    """

    trial: int
    params: Dict[str, Any]
    derived: Dict[str, Any]
    seeds: Sequence[Optional[int]]
    sampler: str
    known: int
    t: float
    host: Optional[str] = None
    pid: Optional[int] = None
    job_id: Optional[str] = None
    note: Optional[str] = None


class RunOutcome(NamedTuple):
    """What a run of a trial tells: `state` running, completed, stopped or failed. `step` is that of its last value."""

    state: str
    value: Optional[float] = None
    step: Optional[float] = None
    ended: Optional[float] = None


class Trial(NamedTuple):
    """A bound trial with what is known of it. `value` is the mean over its seeds, there when all of them have ended."""

    name: str
    bound: BoundTrial
    state: str
    value: Optional[float] = None
    step: Optional[float] = None
    ended: Optional[float] = None

    @property
    def number(self) -> int:
        return self.bound.trial


def run_stem(trial: str, seed: Optional[int]) -> str:
    """000_train_t007 with seed 0 -> 000_train_t007_0."""
    return trial if seed is None else "%s_%d" % (trial, seed)


def read_bound(home: str, experiment: str, trial: str) -> Optional[BoundTrial]:
    """The trial's parameters, or None while they are not bound. ValueError names a damaged file."""
    path = layout.trial_file(home, experiment, trial)
    record = files.read_json(path)
    if record is None:
        return None
    try:
        return BoundTrial(**{name: record[name] for name in BoundTrial._fields if name in record})
    except TypeError:
        raise ValueError("%s is damaged: it lacks parameters of the trial" % path) from None


def bind_trial(home: str, experiment: str, trial: str, bound: BoundTrial) -> BoundTrial:
    """Bind a trial, once: of several that do so at a time all get what the first has written. It is on disk together
    with the start of the attempt (job/record_writer.py)."""
    path = layout.trial_file(home, experiment, trial)
    files.make_dir(os.path.dirname(path))
    if files.create_exclusive(path, files.to_json(dict(schema=1, **bound._asdict())), sync=False):
        return bound
    found = read_bound(home, experiment, trial)
    if found is None:
        raise ValueError("%s was there and is gone" % path)
    return found


class TrialReader:
    """The trials of one search. What has ended is read once, unless the run is started again."""

    def __init__(self, home: str, experiment: str, base: str, metric: str, printed: Sequence[str] = ()) -> None:
        self._home, self._experiment, self._prefix = home, experiment, base + "_t"
        self._metric, self._printed = metric, tuple(printed)
        self._bound: Dict[str, BoundTrial] = {}
        self._outcomes: Dict[str, Tuple[Tuple[Any, ...], RunOutcome]] = {}

    def read(self) -> List[Trial]:
        """All bound trials in order."""
        folder = os.path.dirname(layout.trial_file(self._home, self._experiment, ""))
        for file_name in files.list_names(folder):
            name, suffix = os.path.splitext(file_name)
            is_ours = suffix == ".json" and name.startswith(self._prefix) and name[len(self._prefix) :].isdigit()
            if is_ours and name not in self._bound:
                found = read_bound(self._home, self._experiment, name)
                if found is not None:
                    self._bound[name] = found
        trials = [self._trial(name, bound) for name, bound in self._bound.items()]
        return sorted(trials, key=lambda trial: trial.number)

    def _trial(self, name: str, bound: BoundTrial) -> Trial:
        runs = [self._outcome("%s/%s" % (self._experiment, run_stem(name, seed))) for seed in bound.seeds]
        return Trial(name, bound, *fold_runs(runs))

    def _outcome(self, run: str) -> RunOutcome:
        run_dir = layout.run_dir(self._home, run)
        names = layout.parse_names(files.list_names(run_dir))
        key = (names.revision, names.attempt, names.may_run(names.attempt))
        known = self._outcomes.get(run)
        if known is None or known[0] != key:
            known = key, read_outcome(run_dir, names, self._metric, self._printed)
            if known[1].state != "running":
                self._outcomes[run] = known
        return known[1]


def fold_runs(runs: Sequence[RunOutcome]) -> RunOutcome:
    """Several seeds as one: under way while one of them is, failed if one failed, and else the mean."""
    states = [run.state for run in runs]
    if not runs or "running" in states:
        return RunOutcome("running")
    ended = max(run.ended or 0.0 for run in runs)
    values = [run.value for run in runs if run.value is not None]
    if "failed" in states or len(values) < len(runs):
        return RunOutcome("stopped" if "failed" not in states else "failed", ended=ended)
    steps = [run.step for run in runs if run.step is not None]
    step = min(steps) if len(steps) == len(runs) else None
    return RunOutcome("stopped" if "stopped" in states else "completed", math.fsum(values) / len(values), step, ended)


def read_outcome(run_dir: str, names: layout.RunNames, metric: str, printed: Sequence[str]) -> RunOutcome:
    """What a run's records say. One that was interrupted goes on with the same parameters: it is under way."""
    ends = lease.read_ends(run_dir, names)
    good = next((end for end in reversed(ends) if end.success and end.revision == names.revision), None)
    if good is None and (not ends or names.may_run(names.attempt)):
        return RunOutcome("running")
    end = good or ends[-1]
    if good is None and end.stopped_by in (*INTERRUPTING_STOPS, "limit", "continue", "switched", "superseded"):
        return RunOutcome("running")
    if good is None and end.stopped_by != "early_stopping":
        return RunOutcome("failed", ended=end.ended)
    logs = layout.log_files(end.log_dir or end.output_dir, end.attempt)
    output = progress.RunOutput(end.output_dir, logs, printed)
    value = progress.read_metrics(output).get(metric)
    if good is not None:
        return RunOutcome("failed" if value is None else "completed", value, None, end.ended)
    points = progress.read_series(output).get(metric) or [[0.0, 0.0]]
    return RunOutcome("stopped", value, points[-1][0], end.ended)


def best_trial(trials: Sequence[Trial], direction: str) -> Optional[Trial]:
    """The completed trial with the best value; the first of equal ones."""
    done = [trial for trial in trials if trial.state == "completed" and _is_number(trial.value)]
    return min(done, key=lambda trial: signed(trial.value, direction), default=None)


def signed(value: Optional[float], direction: str) -> float:
    """The value as one to be made small; no number is worst."""
    if value is None or math.isnan(value):
        return math.inf
    return -value if direction == "max" else value


def why_over(trials: Sequence[Trial], search: Mapping[str, Any]) -> Optional[str]:
    """Why no further trial is needed, in words, or None. `until` is reached by one completed trial; `patience` is over
    when so many have ended after the best one."""
    direction, metric = search["direction"], search["metric"]
    best = best_trial(trials, direction)
    if best is None or best.value is None:
        return None
    until = search.get("until")
    if until is not None and _reaches(best.value, until[0], float(until[1])):
        return "the search ended before it: %s has %s %.4g, and until is %s %s %g" % (
            best.name,
            metric,
            best.value,
            metric,
            until[0],
            until[1],
        )
    patience = search.get("patience")
    later = [one for one in trials if one.state != "running" and (one.ended or 0) > (best.ended or 0)]
    if patience is not None and len(later) >= patience:
        return "the search ended before it: %d trials have ended since %s with %s %.4g, the best" % (
            len(later),
            best.name,
            metric,
            best.value,
        )
    return None


def _reaches(value: float, sign: str, bound: float) -> bool:
    return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[sign]


def _is_number(value: Optional[float]) -> bool:
    return value is not None and not math.isnan(value)


def new_bound(search: Mapping[str, Any], point: Mapping[str, Any], sampler: str, known: int, **more: Any) -> BoundTrial:
    """The record of a trial with this point; `more` says who binds it."""
    return BoundTrial(
        int(search["trial"]),
        dict(point["params"]),
        dict(point["derived"]),
        list(search["seeds"]),
        sampler,
        known,
        time.time(),
        **more,
    )
