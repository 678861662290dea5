"""The sampler as a process: `python -m shoal.search tpe`, started inside jobs (job/sampler.py).

Its first line says that it is loaded, or why that failed. Then each line of standard input is a question, and each
line of standard output its answer; it ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.describe import SAMPLER_MODULES
from shoal.errors import ShoalError
from shoal.kernel import TrialReader
from shoal.search.sampling import check_sampler, count_results, sample_point, why_random


class Answers:
    """Answers questions; of a search that was asked about before, only new records are read."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str, str], TrialReader] = {}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        search, home, experiment = question["search"], question["home"], question["experiment"]
        key = (home, experiment, search["base"])
        if key not in self._readers:
            self._readers[key] = TrialReader(*key, search["metric"], question.get("metrics") or ())
        try:
            known = self._readers[key].read()
            point = sample_point(search, question["params"], known)
        except Exception as error:  # whatever a library raises: the trial is drawn at random, and its file says why
            return {"trial": search["trial"], "why": f"the sampler failed: {type(error).__name__}: {error}"}
        if point is None:
            return {"trial": search["trial"], "why": "exclude and require refuse 20 points of the sampler"}
        answer = {"trial": search["trial"], "point": point, "known": count_results(known)}
        why = why_random(search, known)
        return answer if why is None else {**answer, "why": why}


def serve(lines: Iterable[str]) -> None:
    answers = Answers()
    for line in lines:
        _write(answers.answer(json.loads(line)))


def _write(record: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    try:
        for name in argv:
            check_sampler(name)
            for module in SAMPLER_MODULES[name]:
                importlib.import_module(module)
        _write({"loaded": list(argv)})
    except (ImportError, ShoalError) as error:
        _write({"failed": f"the sampler cannot be loaded: {error}"})
        return 1
    try:
        serve(sys.stdin)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
