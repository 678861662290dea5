"""Submit an experiment script, or every script of a folder in order; on this machine they run here, one after another.

  shoal submit experiments/001_example/000_pretrain_0.sh
  shoal submit experiments/001_example --on local
  shoal submit experiments/001_example/000_pretrain.sh --seeds 0-2
  shoal submit experiments/002_depth/000_train.toml --set lr=0.1,0.01 --set depth=4:80:4
  shoal submit experiments/003_muon/sweep.py --smoke

A run that is queued, running or done is left alone: submitting twice is safe. One that failed is started again: from
its newest checkpoint if its program is known to continue from one, else from the beginning in a new folder; --resume
and --fresh choose, and a terminal is asked. On a terminal, several runs that would go to a cluster are counted first
and sent after a yes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.options import (
    add_how,
    add_output,
    add_request,
    add_sweep,
    add_where,
    cluster_for,
    how_of,
    project_here,
    wish_of,
)
from shoal.errors import InterruptError

if TYPE_CHECKING:
    from shoal.describe.calls import Call
    from shoal.describe.cluster import Cluster
    from shoal.observe.run_state import RunView
    from shoal.submit.continuing import Continuation
    from shoal.submit.orders import Order, Result

#: A sweep of a thousand runs is a number, not a thousand lines.
_MOST_LINES = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="an experiment (.sh, .toml, .py), or a folder of them")
    add_where(parser)
    add_sweep(parser)
    add_how(parser)
    parser.add_argument(
        "--budget",
        metavar="jobs=20,gpus=32",
        help="what this project may hold on the cluster from now on; the rest waits",
    )
    parser.add_argument("--prune", action="store_true", help="cancel live runs that a sweep no longer describes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted, and stop")
    parser.add_argument(
        "--yes", action="store_true", help="Skip all questions; resume even if the program is not known to continue"
    )
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        from shoal.cli.plan import show_plan

        return show_plan(args)
    with teller(args, ask=not args.yes) as say:
        return exit_code(submit_files(args, say))


def submit_files(args: argparse.Namespace, say: Teller) -> list[Result]:
    """What `submit` and `run` do with their files."""
    from shoal.observe.writing import open_home
    from shoal.submit.budget import set_limits
    from shoal.submit.scripts import submit_scripts

    project = project_here()
    cluster = cluster_for(project, args.on)
    if args.budget:
        set_limits(open_home(project.home, project.shared_by), cluster, args.budget)
    return submit_scripts(
        args.file,
        project,
        cluster,
        os.environ,
        tell=say,
        follow=not args.quiet,
        wish=wish_of(args),
        how=how_of(args),
        prune=args.prune,
        on=args.on,
        request_id=args.request,
    )


def submit_calls(calls: Sequence[Call], *, secret: Sequence[str] = ()) -> int:
    """One call of a step function in a script that a person runs with bash."""
    from shoal.describe.project import find_project
    from shoal.submit.scripts import submit_described

    project = find_project(Path(calls[0].script).parent, os.environ)
    with teller(argparse.Namespace(json=False, quiet=False)) as say:
        results = submit_described(calls, project, os.environ, secret=secret, tell=say)
    return exit_code(results)


def submit_added(added: Sequence[dict[str, Any]], *, on: str | None, quiet: bool, smoke: bool) -> list[Result]:
    """What `Experiment.submit` does in a file that a person runs with python."""
    from shoal.describe.experiment_files import read_sweeps
    from shoal.describe.project import find_project
    from shoal.describe.python_file import sweeps_of
    from shoal.submit.orders import How
    from shoal.submit.scripts import submit_asked, tell_secrets

    project = find_project(Path(added[0]["place"].rpartition(":")[0]).absolute().parent, os.environ)
    cluster = cluster_for(project, on)
    asked, grown = read_sweeps(sweeps_of(added), project)
    with teller(argparse.Namespace(json=False, quiet=quiet)) as say:
        tell_secrets(os.environ, cluster, say)
        how = How(smoke="there" if smoke else None)
        return submit_asked(asked, project, cluster, os.environ, tell=say, follow=not quiet, how=how, grown=grown)


def exit_code(results: Sequence[Result]) -> int:
    """A single run on this machine lends its exit code; several are 0, or 4 if one failed, or 130 if interrupted. A run
    that is held because of its parent counts as failed."""
    from shoal.model import AS_MEANT

    ran = [result for result in results if result.did == "ran"]
    if any(result.state == "cancelled" for result in ran):
        return 130
    if any(result.did == "held" for result in results):
        return 4
    if len(ran) == 1:
        return ran[0].exit_code or (0 if ran[0].state == "done" else 4)
    return 4 if any(result.state not in AS_MEANT for result in ran) else 0


def teller(args: argparse.Namespace, *, next_steps: bool = True, ask: bool = False) -> Teller:
    ask = ask and not args.json and not args.quiet and sys.stdin.isatty() and sys.stdout.isatty()
    return Teller(as_json=args.json, quiet=args.quiet, next_steps=next_steps, ask=ask)


class Teller:
    """Prints each result as it comes; with --json, all of them at the end. A context, so that an error loses none, and
    an output that nobody reads any more does not end the order."""

    def __init__(self, *, as_json: bool, quiet: bool, next_steps: bool, ask: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.next_steps = next_steps
        self.ask = ask
        self.results: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._guard = contextlib.ExitStack()

    def __enter__(self) -> Teller:
        from shoal.kernel.output import unbroken
        from shoal.views.progress import Bar

        self._guard.enter_context(unbroken())
        self._bar = Bar("runs so far", off=self.as_json or self.quiet)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._guard:
            self._finish(kind)

    def order_is_whole(self) -> None:
        """From here on it is only told what becomes of the runs: a reader that leaves ends that."""
        self._bar.clear()
        self._guard.close()

    def _finish(self, kind: type[BaseException] | None) -> None:
        self._bar.clear()
        if kind is None:
            self._tell_a_person()
        if self.as_json and kind is None:
            from shoal.views.render import print_json

            print_json({"runs": list(self.results.values()), "notes": self.notes})
        elif self.results and not self.quiet and not self.as_json:
            self._summary()
            self._failures()

    def __call__(self, result: Result) -> None:
        self.results[result.name] = result._asdict()
        if self.as_json:
            return
        if self.quiet:
            print(result.name, flush=True)
        elif len(self.results) <= _MOST_LINES:
            print(_line(result), flush=True)
        else:
            self._bar(len(self.results))

    def note(self, text: str) -> None:
        self.notes.append(text)
        if not self.quiet and not self.as_json:
            sys.stderr.write(f"note: {text}\n")

    def agrees(self, order: Order, cluster: Cluster) -> bool:
        """On a terminal, before several runs go to a cluster: what they are, what they cost, and a question."""
        runs = sum(len(planned.runs) for planned in order.submissions)
        if not self.ask or cluster.is_local or runs < 2:
            return True
        from shoal.units import plural
        from shoal.views.plan import cost_words
        from shoal.views.question import agreed

        jobs = plural(len(order.submissions), "job")
        cost = cost_words(order.submissions, here=False)
        print(f"{plural(runs, 'run')} as {jobs} on cluster {cluster.name}" + (f": {cost}" if cost else ""))
        if agreed("submit them?"):
            return True
        print("nothing was submitted; shoal plan shows the runs and their scripts")
        return False

    def chooses(self, found: Sequence[Continuation]) -> bool | None:
        """On a terminal: whether runs that did not end well continue from their checkpoints."""
        if not self.ask:
            return None
        from shoal.submit import continuing
        from shoal.views.question import chosen

        for note in continuing.notes(found):
            print(note)
        word = chosen("continue from the checkpoint, or start over?", ("resume", "fresh", "cancel"))
        if word == "cancel":
            raise InterruptError("nothing was submitted")
        return word == "resume"

    def is_sure(self, found: Sequence[Continuation]) -> bool:
        """On a terminal: whether a program that may start over is given its checkpoint all the same."""
        if not self.ask:
            return False
        from shoal.submit.continuing import why_unknown
        from shoal.views.question import agreed

        print(f"{found[0].name} may start over: {why_unknown(found[0])}")
        if not agreed("resume it anyway? A copy of the checkpoint is kept."):
            raise InterruptError("nothing was submitted")
        return True

    def update(self, view: RunView) -> None:
        """What a followed run came to, for --json."""
        from shoal.views.status import as_record

        self.results[view.name] = {**self.results.get(view.name, {}), **as_record(view)}

    def _tell_a_person(self) -> None:
        """Runs on this machine are through: [notify] may want to know; jobs on Slurm tell by themselves."""
        ran = {name.split("/")[0]: name for name, result in self.results.items() if result["did"] == "ran"}
        if ran:
            from shoal.cli.options import home_here
            from shoal.job import notices
            from shoal.job.environment import read_secrets

            for name in ran.values():
                notices.after_end(home_here(), name, {**os.environ, **read_secrets(os.environ)})

    def _failures(self) -> None:
        """Why runs on this machine failed; the output of a single one has just been shown."""
        ran = [name for name, result in self.results.items() if result["did"] == "ran"]
        bad = [name for name in ran if self.results[name]["state"] not in ("done", "cancelled")]
        if bad:
            from shoal.cli.options import home_here
            from shoal.observe.run_views import observe
            from shoal.views import faults

            views = list(observe(home_here(), bad).views.values())
            told = faults.endings(home_here(), views, lines=0 if len(ran) == 1 else faults.LAST_LINES)
            sys.stderr.write("".join(f"{line}\n" for line in told))

    def _summary(self) -> None:
        sent = [name for name, result in self.results.items() if result["did"] == "submitted"]
        if len(self.results) > 3:
            kinds = Counter(result["did"] for result in self.results.values())
            print(f"{len(self.results)} runs: {', '.join(f'{count} {did}' for did, count in kinds.items())}")
        if len(self.results) > _MOST_LINES:
            experiment = next(iter(self.results)).split("/")[0]
            left = len(self.results) - _MOST_LINES
            print(f"{left:,} of them are not listed above; shoal status {experiment} --all --tasks lists them")
        if sent and self.next_steps:
            experiment = sent[0].split("/")[0]
            print(f"next: shoal status {experiment}   shoal watch {experiment}   shoal logs {sent[0]} -f")


def _line(result: Result) -> str:
    from shoal.views.render import shorter

    output = f"\n  output {shorter(result.output_dir)}" if result.output_dir else ""
    if result.did == "submitted":
        return f"submitted {result.name} as job {result.job_id}{output}"
    if result.did == "ran":
        cause = f" ({result.reason})" if result.reason else ""
        return f"{result.state} {result.name}{cause}{output}"
    return f"{result.did}: {result.name}: {result.reason}"
