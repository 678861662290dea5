"""Early stopping by asynchronous successive halving: a run that reaches a rung continues if it is among the best there.

It is compared with the runs that have reached the rung so far, and waits for no other. Rungs are amounts of work
(first, first * eta, first * eta², ...), and 1/eta of the runs passes each. Metrics are the lines of metrics.jsonl in a
run's output directory. The value of a run at a rung is noted in a file of its engine, so that engines on other nodes
and in other jobs see it: one writer for each file, no lock, no socket.
"""

import json
import math
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...kernel import files, layout, progress

if TYPE_CHECKING:  # The tool reads rules, and needs no engine for that.
    from .attempts import PackAttempt

#: How often the reports of running runs are read.
_CHECK_EVERY_S = 1.0
#: Under these names a program usually counts its work.
_COUNTERS = ("step", "epoch")


class HalvingRule(NamedTuple):
    """`metric` is to become small (`mode` min) or large (max); `resource` names what counts the work.

    From `last` on there is no rung: a run that has nearly finished is not stopped.
    """

    metric: str
    mode: str = "min"
    first: float = 1.0
    eta: int = 3
    last: Optional[float] = None
    resource: Optional[str] = None

    def rungs(self, amount: float) -> Iterator[float]:
        """The rungs that so much work has reached."""
        rung = self.first
        while rung <= amount and (self.last is None or rung < self.last):
            yield rung
            rung *= self.eta

    def sort_value(self, value: float) -> float:
        """Small is good; what is no number is worst."""
        return math.inf if math.isnan(value) else (-value if self.mode == "max" else value)


def rank_of_value(rule: HalvingRule, value: float, all_values: "List[float]") -> int:
    """The place of a value among all, its own included; equal ones share the better place."""
    return 1 + sum(1 for other in all_values if rule.sort_value(other) < rule.sort_value(value))


def is_stopped_at(rule: HalvingRule, place: int, of: int) -> bool:
    """Whether the one in this place of so many is stopped. Fewer than eta are too few to tell."""
    return of >= rule.eta and place > math.ceil(of / rule.eta)


class RungResult(NamedTuple):
    """What a run had when it reached a rung; `amount` is the work that it counted in `counter` by then."""

    rung: float
    value: float
    amount: float
    counter: str


class RungReader:
    """The rungs that a run reaches, as its metrics.jsonl grows."""

    def __init__(self, rule: HalvingRule, output_dir: str) -> None:
        self.rule = rule
        self._metrics = progress.NewMetrics(output_dir)
        self._lines = 0
        self._reached = 0.0

    def new(self) -> List[RungResult]:
        """What is new since the last call."""
        records = self._metrics.read()
        if self._metrics.is_anew:
            self._lines = 0
        return [report for record in records for report in self._rungs(record)]

    def _rungs(self, given: Mapping[str, Any]) -> Iterator[RungResult]:
        # null may also be a value that was not measured yet: it stops nobody.
        record = progress.flatten_numbers({name: value for name, value in given.items() if value is not None})
        value = record.get(self.rule.metric)
        if value is None:
            return
        self._lines += 1
        names = (self.rule.resource,) if self.rule.resource else _COUNTERS
        counter = next((name for name in names if math.isfinite(record.get(name, math.nan))), None)
        if counter is None and self.rule.resource:
            return
        amount = float(self._lines) if counter is None else record[counter]
        for rung in self.rule.rungs(amount):
            if rung > self._reached:
                self._reached = rung
                yield RungResult(rung, value, amount, counter or "report")


class RungBoard:
    """What every run of an experiment had at each rung: one file for each engine, read by all."""

    def __init__(self, home: str, engine: str, rule: HalvingRule) -> None:
        kind = "%s|%s|%s" % (rule.metric, rule.mode, rule.resource or "")
        self._home, self._engine = home, engine
        import hashlib  # here: the first run of a pack without early stopping should not wait for it

        self._prefix = hashlib.sha256(kind.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        self._read_to: Dict[str, int] = {}
        self._known: Dict[Tuple[str, float], Dict[str, Tuple[int, float]]] = {}
        self._revisions: Dict[str, int] = {}

    def note(self, name: str, revision: int, report: RungResult) -> None:
        """Not synced: after a power cut the run's own metrics.jsonl still tells."""
        folder = layout.early_stopping_dir(self._home, name)
        files.make_dir(folder)
        line = {"run": name, "revision": revision, "rung": report.rung, "value": report.value}
        with open(os.path.join(folder, "%s.%s.jsonl" % (self._prefix, self._engine)), "ab") as file:
            file.write(files.to_json(line))

    def values(self, name: str, rung: float) -> Dict[str, float]:
        """Run -> what it had at this rung, over the experiment of the named run; older settings do not count."""
        self._read(layout.early_stopping_dir(self._home, name))
        found = self._known.get((name.split("/")[0], rung), {})
        return {run: value for run, (revision, value) in found.items() if revision == self._revision(run, revision)}

    def _read(self, folder: str) -> None:
        for name in sorted(files.list_names(folder)):
            if not name.startswith(self._prefix + "."):
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    file.seek(self._read_to.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read_to[path] = self._read_to.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))

    def _take(self, line: Mapping[str, Any]) -> None:
        at_rung = self._known.setdefault((line["run"].split("/")[0], line["rung"]), {})
        old = at_rung.get(line["run"])
        if old is None or old[0] <= line["revision"]:
            at_rung[line["run"]] = (line["revision"], line["value"])

    def _revision(self, run: str, noted: int) -> int:
        """The newest revision of a run, looked up once: started over, it is another run."""
        if self._revisions.get(run, -1) < noted:
            self._revisions[run] = layout.parse_names(files.list_names(layout.run_dir(self._home, run))).revision
        return self._revisions[run]


class EarlyStopping:
    """Watches the running runs of one engine and stops those that lose; without a rule it stops nobody."""

    def __init__(self, rule: Optional[HalvingRule], home: str, engine: str) -> None:
        self.rule = rule or HalvingRule("")
        self.board = RungBoard(home, engine, self.rule)
        self.due_at = 0.0 if rule else math.inf
        self._reports: Dict[Tuple[str, int], RungReader] = {}

    def stop_losers(self, now: float, running: "Sequence[PackAttempt]") -> None:
        if now < self.due_at:
            return
        self.due_at = now + _CHECK_EVERY_S
        for one in running:
            words = self.look(one.item.name, one.number, one.claim.revision, one.claim.output_dir)
            if words is not None:
                one.ask_to_stop("early_stopping", words)

    def look(self, name: str, attempt: int, revision: int, output_dir: str) -> Optional[str]:
        """Why this attempt should stop, in words, or None. A disk that does not answer stops nothing."""
        reports = self._reports.setdefault((name, attempt), RungReader(self.rule, output_dir))
        for report in reports.new():
            try:
                if name in self.board.values(name, report.rung):
                    continue  # an earlier attempt was here, and went on
                # Noted first, then read: of several that arrive together, the last one sees all of them.
                self.board.note(name, revision, report)
                values = self.board.values(name, report.rung)
            except (OSError, ValueError):
                continue
            place = rank_of_value(self.rule, report.value, list(values.values()))
            if is_stopped_at(self.rule, place, len(values)):
                return self._words(report, place, len(values))
        return None

    def _words(self, report: RungResult, place: int, of: int) -> str:
        return "stopped early at %s %g: %s %.4g, rank %d of %d" % (
            report.counter,
            report.amount,
            self.rule.metric,
            report.value,
            place,
            of,
        )


def read_rule(record: Optional[Mapping[str, Any]]) -> Optional[HalvingRule]:
    """The rule in a queue's settings, or None where nothing is stopped."""
    if not record:
        return None
    return HalvingRule(**{name: value for name, value in record.items() if name in HalvingRule._fields})
