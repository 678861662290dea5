"""`shoal pack`: commands in, a queue worked through, and what came of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.describe import Cluster, PlannedRun, Project, RequestedRun, SweepNames, read_sweeps, with_flags
from shoal.errors import InputError
from shoal.model import FAILED_STATES, SUCCESSFUL_STATES, Request
from shoal.plan import PackOptions, PlannedSubmission, command_sweep, read_command_file
from shoal.submit import standing
from shoal.submit.carrying import execute_plan, save_names
from shoal.submit.orders import SubmitOptions, SubmitResult, prepare_submission

#: What a command line says about its parameters: --set, --zip, --seeds.
SweepFlags = tuple[Sequence[str], Sequence[str], str | None]


class PackResult(NamedTuple):
    """What became of a pack. `planned` is None when nothing was left to do; `local` when it ran here, to the end;
    `began` is when the command did: runs may have been tried before.
    """

    home: str
    names: list[str]
    results: list[SubmitResult]
    planned: PlannedSubmission | None
    local: bool
    dry_run: bool
    began: float

    @property
    def exit_code(self) -> int:
        """0 all done (or submitted), 4 some not; 130 or 143 if it was interrupted."""
        if self.dry_run or not self.local:
            return 0
        unfinished = [result for result in self.results if result.state not in SUCCESSFUL_STATES]
        codes = [result.exit_code for result in unfinished if result.exit_code and result.exit_code > 128]
        if codes and not any(result.state in FAILED_STATES for result in unfinished):
            return codes[0]
        return 4 if unfinished else 0


def submit_pack(
    words: Sequence[str],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    sweep: SweepFlags,
    options: PackOptions,
    cost: str | None,
    name: str | None,
    again: bool,
    dry_run: bool,
    follow: bool,
    note: Callable[[str], None],
    request_id: str | None = None,
) -> PackResult:
    """Read the commands, lay them out as one queue, and work through it or submit it."""
    began = time.time()
    request = Request()
    if not words:
        raise InputError("there is no command to run", hint="shoal pack --slots 4 -- python train.py")
    path = Path(words[0])
    if len(words) == 1 and cluster.is_local and not path.exists() and shutil.which(words[0]) is None:
        raise InputError(f"{path} is no file of commands, and no program", hint="shoal pack --slots 4 commands.txt")
    if len(words) == 1 and path.is_file() and not path.stat().st_mode & 0o111:
        if any(sweep) or cost:
            raise InputError("a file of commands has no parameters", hint="leave --set and --cost out", place=str(path))
        asked = [RequestedRun(PlannedRun(spec)) for spec in read_command_file(path, project, name, request)]
        grown: list[SweepNames] = []
    else:
        whole = command_sweep(words, name, cost, request)
        whole = whole._replace(blocks=tuple(with_flags(block, *sweep) for block in whole.blocks))
        asked, grown = read_sweeps([whole], project)
    names = [one.run.spec.name for one in asked]
    given = None
    before: list[SubmitResult] = []
    if (again or request_id) and not dry_run:
        meaning = (cluster.name, options, [(one.run.spec.name, one.run.spec.digest) for one in asked])
        given = standing.find_order(str(project.home), "pack", names, meaning, request_id, environ)
    if given is not None and given.record is not None:
        note(given.told())
        before = given.results()
        asked = [] if given.is_done else standing.remaining_runs(asked, given, again=again)
        again = False
    order = prepare_submission(asked, project, cluster, environ, SubmitOptions("pack", again, pack=options))
    for text in order.notes:
        note(text)
    planned = order.submissions[0] if order.submissions else None
    if dry_run:
        return PackResult(str(project.home), names, order.left_alone, planned, cluster.is_local, True, began)
    save_names(project, grown)
    results = before + execute_plan(order, project, cluster, environ, follow=follow, given=given, note=note)
    return PackResult(str(project.home), names, results, planned, cluster.is_local, False, began)
