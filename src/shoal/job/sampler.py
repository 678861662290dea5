"""The parameters of a trial when it starts: bound before, the user's point, the sampler's answer or a random draw.

The sampler (shoal/search/) needs Optuna and runs as a child process with the interpreter that submitted the search: one
child per engine, and one per job outside a pack. Question and answer are one line of JSON each. A child that is
missing, dead or slow is not waited for: the trial gets the random draw in its spec, and its file says why.
"""

import json
import os
import select
import subprocess
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..kernel import Allocation, trials

#: How long a job of one run waits for the sampler to be loaded; an engine does not wait for that.
LOAD_S = 10.0
#: A person's value for both waits, where a Python loads slowly from a shared disk.
WAIT_VARIABLE = "SHOAL_SAMPLER_S"
_DRAWN, _POINT = "random", "points"
#: The child is no process of a run, uses no GPU and one CPU, and has the packages of its own interpreter.
_DROPPED = ("SHOAL_RUN", "SHOAL_ATTEMPT", "PYTHONPATH", "PYTHONHOME")
_ADDED = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class SamplerAnswer(NamedTuple):
    """A point, or why there is none. `known` results were known when it was computed. A point with a `why` was drawn at
    random by the sampler."""

    point: Optional[Dict[str, Any]] = None
    known: int = 0
    why: Optional[str] = None


class _Question(NamedTuple):
    """(experiment, base name) of a search, and the number of a trial."""

    search: Tuple[str, str]
    trial: int


class SamplerProcess:
    """The child, started by the first question or by `start`. No method raises."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._wait_s = _seconds(environ.get(WAIT_VARIABLE))
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self._data = b""
        self._is_loaded = self._has_waited = False
        #: The search and the trial of a question that has no answer yet.
        self._open: Optional[_Question] = None
        #: Search -> an answer that came too late for its own trial: the next one takes it.
        self._answers: Dict[Tuple[str, str], SamplerAnswer] = {}
        self._problem: Optional[str] = None
        self._readers: Dict[Tuple[str, str], trials.TrialReader] = {}

    def start(self, command: Sequence[str]) -> None:
        """Let the child load while something else happens."""
        if self._child is not None or self._problem is not None:
            return
        env = {name: value for name, value in self._environ.items() if name not in _DROPPED}
        env.update(_ADDED)
        try:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._problem = "cannot start %s: %s" % (command[0], error.strerror)

    def ask(self, home: str, spec: Mapping[str, Any], load_s: float = trials.ANSWER_S) -> SamplerAnswer:
        """The point for a trial; waits `load_s`, once, for a child to load, and `ANSWER_S` for the answer."""
        search = spec["search"]
        load_s, answer_s = self._wait_s or load_s, self._wait_s or trials.ANSWER_S
        self.start(search["command"])
        if not self._is_loaded:
            self._receive(time.monotonic() + (0.0 if self._has_waited else load_s), lambda: self._is_loaded)
            self._has_waited = True
        if self._problem is not None:
            return SamplerAnswer(why=self._problem)
        if not self._is_loaded:
            return SamplerAnswer(why="the sampler was not loaded within %g s" % load_s)
        key = (spec["experiment"], search["base"])
        if self._open is not None:
            self._receive(time.monotonic(), lambda: self._open is None)
        late = self._answers.pop(key, None)
        if late is not None and late.point is not None:
            return late
        if self._open is not None:
            return SamplerAnswer(why="the sampler is still busy with trial %d" % self._open.trial)
        question = {"home": home, "experiment": spec["experiment"], "metrics": list(spec.get("metrics") or ())}
        self._send(_Question(key, int(search["trial"])), dict(question, params=spec.get("params") or {}, search=search))
        self._receive(time.monotonic() + answer_s, lambda: self._open is None)
        late_why = self._problem or "the sampler took longer than %g s" % answer_s
        return self._answers.pop(key, SamplerAnswer(why=late_why))

    def trials_of(self, home: str, spec: Mapping[str, Any]) -> List[trials.Trial]:
        """All bound trials of the search that a run belongs to; what has ended is read once."""
        search = spec["search"]
        key = (spec["experiment"], search["base"])
        if key not in self._readers:
            self._readers[key] = trials.TrialReader(home, *key, search["metric"], spec.get("metrics") or ())
        return self._readers[key].read()

    def close(self) -> None:
        if self._child is None:
            return
        self._problem = self._problem or "the sampler was closed"
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            pass

    def _send(self, question: "_Question", record: Dict[str, Any]) -> None:
        if self._child is None or self._child.stdin is None:
            return
        try:
            self._child.stdin.write(json.dumps(record).encode("utf-8", "surrogateescape") + b"\n")
            self._child.stdin.flush()
            self._open = question
        except (OSError, ValueError):
            self._problem = "the sampler has ended"

    def _receive(self, until: float, is_done: Any) -> None:
        """Read lines of the child until `is_done`, it has ended, or it is too late; at least what is there now."""
        if self._child is None or self._child.stdout is None:
            return
        fd = self._child.stdout.fileno()
        while self._problem is None and not is_done():
            ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return
            data = os.read(fd, 1 << 16)
            if not data:
                self._problem = "the sampler has ended"
                return
            self._data += data
            *lines, self._data = self._data.split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            if "loaded" in record:
                self._is_loaded = True
            elif "failed" in record:
                self._problem = str(record["failed"])
            elif self._open is not None and self._open.trial == record["trial"]:
                answer = SamplerAnswer(record.get("point"), int(record.get("known", 0)), record.get("why"))
                self._answers[self._open.search], self._open = answer, None
        except (ValueError, KeyError, TypeError, AttributeError):
            self._problem = "the sampler wrote %r" % line[:80]


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


def with_parameters(
    home: str, spec: Dict[str, Any], sampler: SamplerProcess, me: Allocation, load_s: float = trials.ANSWER_S
) -> Dict[str, Any]:
    """The spec with the parameters of its trial, which are bound from now on; other runs stay as they are. If a stop
    rule of the search holds and the trial is not bound, the spec says that it is `not_needed`."""
    if not spec.get("search"):
        return spec
    try:
        return _bind(home, spec, sampler, me, load_s)
    except ValueError as damage:
        return dict(spec, cannot_start=str(damage))


def _bind(home: str, spec: Dict[str, Any], sampler: SamplerProcess, me: Allocation, load_s: float) -> Dict[str, Any]:
    search = spec["search"]
    bound = trials.read_bound(home, spec["experiment"], search["name"])
    if bound is None:
        if search.get("until") or search.get("patience"):
            over = trials.why_over(sampler.trials_of(home, spec), search)
            if over is not None:
                return dict(spec, not_needed=over)
        point, word, known, note = _choose(home, spec, sampler, load_s)
        who = {"host": me.host, "pid": me.pid, "job_id": me.job_id, "note": note}
        chosen = trials.new_bound(search, point, word, known, **who)
        bound = trials.bind_trial(home, spec["experiment"], search["name"], chosen)
    return dict(spec, params=dict(spec.get("params") or {}, **dict(bound.params, **bound.derived)))


def _choose(
    home: str, spec: Mapping[str, Any], sampler: SamplerProcess, load_s: float
) -> Tuple[Mapping[str, Any], str, int, Optional[str]]:
    """A point, where it comes from, how many results were known for it, and why it is not the sampler's."""
    search = spec["search"]
    if search.get("point"):
        return search["point"], _POINT, 0, None
    if needs_no_sampler(search):
        return search["drawn"], _DRAWN, 0, None
    answer = sampler.ask(home, spec, load_s)
    if answer.point is None:
        return search["drawn"], _DRAWN, 0, answer.why or "the sampler has no answer"
    return answer.point, _DRAWN if answer.why else search["sampler"], answer.known, answer.why


def needs_no_sampler(search: Mapping[str, Any]) -> bool:
    """Whether the trial is a random draw whatever is known: all of `random`, and the first ones of tpe and gp."""
    is_startup = search["sampler"] in ("tpe", "gp") and int(search["trial"]) < trials.STARTUP_TRIALS
    return search["sampler"] == "random" or is_startup
