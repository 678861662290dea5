"""What `submit`, `run`, `retry` and `resume` print: each run as it is sent or ends, questions, and a summary."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import InterruptError
from shoal.model import FAILED_STATES

if TYPE_CHECKING:
    from shoal.actions import CheckpointDecision, SubmissionPlan, SubmitResult
    from shoal.describe import Cluster
    from shoal.observe import RunView

#: A sweep of a thousand runs is a number, not a thousand lines.
_MAX_LINES = 20


class SubmitPrinter:
    """Prints each result as it comes; with --json, all of them at the end. A context, so that an error loses none, and
    an output that nobody reads any more does not end the command."""

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, next_steps: bool = True, ask: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.next_steps = next_steps
        self.ask = ask
        self.results: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._cost = ""
        self._guard = contextlib.ExitStack()

    def __enter__(self) -> SubmitPrinter:
        from shoal.kernel import failsafe_output
        from shoal.views.render import ProgressLine

        self._guard.enter_context(failsafe_output())
        self._bar = ProgressLine("runs so far", off=self.as_json or self.quiet)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._guard:
            self._finish(kind)

    def submission_is_complete(self) -> None:
        """From here on it is only told what becomes of the runs: a reader that leaves ends that."""
        self._bar.clear()
        self._guard.close()

    def _finish(self, kind: type[BaseException] | None) -> None:
        self._bar.clear()
        if self.as_json and kind is None:
            from shoal.views.render import print_json

            print_json({"runs": list(self.results.values()), "notes": self.notes})
        elif self.results and not self.quiet and not self.as_json:
            self._summary()
            self._failures()

    def __call__(self, result: SubmitResult) -> None:
        self.results[result.name] = result._asdict()
        if self.as_json:
            return
        if self.quiet:
            print(result.name, flush=True)
        elif len(self.results) <= _MAX_LINES:
            print(_result_line(result), flush=True)
        else:
            self._bar(len(self.results))

    def note(self, text: str) -> None:
        self.notes.append(text)
        if not self.quiet and not self.as_json:
            sys.stderr.write(f"note: {text}\n")

    def agrees(self, plan: SubmissionPlan, cluster: Cluster) -> bool:
        """On a terminal, before several runs go to a cluster: what they are, what they cost, and a question."""
        if cluster.is_local or not plan.submissions:
            return True
        from shoal.views.plan import cost_sentence

        cost = cost_sentence(plan.submissions, here=False)
        runs = sum(len(planned.runs) for planned in plan.submissions)
        if not self.ask or runs < 2:
            self._cost = cost
            return True
        from shoal.units import plural
        from shoal.views.terminal import confirm

        jobs = plural(len(plan.submissions), "job")
        print(f"{plural(runs, 'run')} as {jobs} on cluster {cluster.name}" + (f": {cost}" if cost else ""))
        if confirm("submit them?"):
            return True
        print("nothing was submitted; shoal plan shows the runs and their scripts")
        return False

    def chooses(self, found: Sequence[CheckpointDecision]) -> bool | None:
        """On a terminal: whether runs that have not completed continue from their checkpoints."""
        if not self.ask:
            return None
        from shoal.actions import decide
        from shoal.views.terminal import choose_word

        for note in decide.checkpoint_notes(found):
            print(note)
        word = choose_word("continue from the checkpoint, or start over?", ("resume", "fresh", "cancel"))
        if word == "cancel":
            raise InterruptError("nothing was submitted")
        return word == "resume"

    def is_sure(self, found: Sequence[CheckpointDecision]) -> bool:
        """On a terminal: whether a program that may start over is given its checkpoint all the same."""
        if not self.ask:
            return False
        from shoal.actions import unknown_resume_reason
        from shoal.views.terminal import confirm

        print(f"{found[0].name} may start over: {unknown_resume_reason(found[0])}")
        if not confirm("resume it anyway? A copy of the checkpoint is kept."):
            raise InterruptError("nothing was submitted")
        return True

    def update(self, view: RunView) -> None:
        """What a followed run came to, for --json."""
        from shoal.views.status import run_document

        earlier = self.results.get(view.name, {})
        reason = view.reason or earlier.get("reason", "")  # why it was left alone, where its end needs no words
        self.results[view.name] = {**earlier, **run_document(view), "reason": reason}

    def _failures(self) -> None:
        """Why runs on this machine failed; the output of a single one has just been shown."""
        ran = [name for name, result in self.results.items() if result["did"] == "ran"]
        bad = [name for name in ran if self.results[name]["state"] in FAILED_STATES]
        if bad:
            from shoal.describe import find_home
            from shoal.observe import observe
            from shoal.views import error_groups

            views = list(observe(find_home(), bad).views.values())
            summaries = error_groups.failure_summaries(
                find_home(), views, lines=0 if len(ran) == 1 else error_groups.LAST_LINES
            )
            sys.stderr.write("".join(f"{line}\n" for line in summaries))

    def _summary(self) -> None:
        sent = [name for name, result in self.results.items() if result["did"] == "submitted"]
        if len(self.results) > 3:
            kinds = Counter(result["did"] for result in self.results.values())
            print(f"{len(self.results)} runs: {', '.join(f'{count} {did}' for did, count in kinds.items())}")
        if len(self.results) > _MAX_LINES:
            experiment = next(iter(self.results)).split("/")[0]
            left = len(self.results) - _MAX_LINES
            print(f"{left:,} of them are not listed above; shoal status {experiment} --all --tasks lists them")
        if sent and self._cost:
            print(self._cost)
        if sent and self.next_steps:
            experiment = sent[0].split("/")[0]
            print(f"next: shoal status {experiment}   shoal watch {experiment}   shoal logs {sent[0]} -f")


def _result_line(result: SubmitResult) -> str:
    from shoal.views.render import short_path

    output = f"\n  output {short_path(result.output_dir)}" if result.output_dir else ""
    if result.did == "submitted":
        return f"submitted {result.name} as job {result.job_id}{output}"
    if result.did == "ran":
        reason = f" ({result.reason})" if result.reason else ""
        return f"{result.state} {result.name}{reason}{output}"
    return f"{result.did}: {result.name}: {result.reason}"
