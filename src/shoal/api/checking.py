"""Check scripts, compare a running job with a larger one, and find what can go."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from shoal.api.projects import ProjectPath, read_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shoal.actions import SubmitResult
    from shoal.cleanup import BackupResult, CleanupItem
    from shoal.clusters import ClusterFacts
    from shoal.describe import Project
    from shoal.doctor import FixedScript, LaunchNumbers, ScriptCheck, SmokeResult, TrainingInputs
    from shoal.switch import SwitchComparison, SwitchOptions


class DoctorOptions(NamedTuple):
    """`select` and `ignore` are codes of rules; `baseline` a file of known findings; `smoke` tries corrected copies."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    baseline: Path | None = None
    asks_slurm: bool = True
    explain: bool = False
    fix: bool = False
    smoke: bool = False


class DoctorReport(NamedTuple):
    """Scripts with their findings, and what Slurm told about the cluster, if it was asked and answered. With `explain`
    the launches of each script in numbers; with `fix` the corrected copies, each with what its smoke test showed."""

    checked: list[ScriptCheck]
    cluster: ClusterFacts | None
    explained: list[tuple[str, LaunchNumbers]]
    fixed: list[tuple[FixedScript, SmokeResult | None]]

    def is_bad(self, *, strict: bool = False) -> bool:
        """Whether there are errors (`strict`: or warnings), or a corrected copy failed its smoke test."""
        bad = ("error", "warning") if strict else ("error",)
        failed = any(smoke is not None and not smoke.passed for _, smoke in self.fixed)
        return failed or any(finding.severity in bad for one in self.checked for finding in one.findings)


def doctor(
    files: Sequence[Path],
    options: DoctorOptions | None = None,
    inputs: TrainingInputs | None = None,
    *,
    project: ProjectPath = None,
) -> DoctorReport:
    """Check batch scripts, experiment scripts, or directories of them. With `fix`, write corrected copies."""
    import getpass

    from shoal.doctor import (
        TrainingInputs,
        check_scripts,
        explain_facts,
        find_files,
        parse_code_choice,
        read_baseline,
        take_out,
    )

    options, inputs = options or DoctorOptions(), inputs or TrainingInputs()
    choice = parse_code_choice(options.select, options.ignore)
    baseline = read_baseline(options.baseline) if options.baseline is not None else None
    steps = _step_names(project)
    found, cluster = check_scripts(
        find_files(files), os.environ, user=getpass.getuser(), ask=options.asks_slurm, inputs=inputs, steps=steps
    )
    checked = [take_out(one, choice, baseline) for one in found]
    explained = [(one.script.path, launch) for one in checked if options.explain for launch in explain_facts(one.facts)]
    fixed = _fix_scripts(checked, cluster, inputs, steps, smoke=options.smoke) if options.fix else []
    return DoctorReport(checked, cluster, explained, fixed)


def _fix_scripts(
    checked: Sequence[ScriptCheck],
    cluster: ClusterFacts | None,
    inputs: TrainingInputs,
    steps: frozenset[str],
    *,
    smoke: bool,
) -> list[tuple[FixedScript, SmokeResult | None]]:
    """A corrected copy of each script that has something mechanical, tried for a few steps with `smoke`."""
    from shoal.doctor import run_smoke, write_fixed
    from shoal.errors import InputError

    if smoke and cluster is None:
        raise InputError("cannot run --smoke: no Slurm answers here", hint="shoal doctor --fix train.sh")
    found: list[tuple[FixedScript, SmokeResult | None]] = []
    for one in checked:
        fixed = write_fixed(one, cluster, os.environ, inputs=inputs, steps=steps)
        if fixed is not None:
            runs = smoke and fixed.answer is not None and bool(fixed.answer.accepted)
            found.append((fixed, run_smoke(fixed, os.environ) if runs else None))
    return found


def _step_names(project: ProjectPath) -> frozenset[str]:
    """The step functions of the project around us, if any; its mistakes are not the doctor's business here."""
    from shoal.errors import ShoalError

    try:
        return frozenset(read_project(project).steps)
    except ShoalError:
        return frozenset()


def write_baseline(path: Path, found: DoctorReport) -> int:
    """Write all findings to a file as known; how many."""
    from shoal.doctor import write_baseline

    return write_baseline(path, ((finding, one.script) for one in found.checked for finding in one.findings))


def explain_launch(
    framework: str, *, nodes: int = 1, gpus: int, cpus: int | None = None, inputs: TrainingInputs | None = None
) -> LaunchNumbers:
    """The processes that a framework starts on nodes of so many GPUs and CPUs, in numbers; no script is needed."""
    from shoal.doctor import TrainingInputs, construct_launch, facts_without_script

    return construct_launch(framework, nodes, gpus, facts_without_script(inputs or TrainingInputs()), cpus)


class SwitchReport(NamedTuple):
    """A running job compared with its replacement at a moment, and what was submitted."""

    comparison: SwitchComparison
    applied: list[SubmitResult]
    now: float


def switch(
    run: str,
    options: SwitchOptions,
    *,
    apply: bool = False,
    agrees: Callable[[SwitchComparison], bool] | None = None,
    command_id: str | None = None,
    project: ProjectPath = None,
) -> SwitchReport:
    """Compare a running run with a job of another size; with `apply`, submit that, which takes the run over.

    `agrees` is asked before a job that shoal did not submit is replaced; without it, it is.
    """
    from shoal.describe import find_run
    from shoal.switch import apply as submit_replacement
    from shoal.switch import compare

    settings, now = read_project(project), time.time()
    comparison = compare(find_run(str(settings.home), run), options, settings, os.environ, now)
    if not apply or (agrees is not None and comparison.view.adopted and not agrees(comparison)):
        return SwitchReport(comparison, [], now)
    return SwitchReport(comparison, submit_replacement(comparison, options, settings, os.environ, command_id), now)


class CleanReport(NamedTuple):
    """What can go, below the project's `root`, and the backup that it was moved to, if it was."""

    root: Path
    items: list[CleanupItem]
    moved: BackupResult | None


def clean(
    scripts: Sequence[Path] = (),
    *,
    keep: int = 3,
    older_than_s: float = 30 * 86400.0,
    kinds: Sequence[str] | None = None,
    apply: bool = False,
    project: ProjectPath = None,
) -> CleanReport:
    """Find what runs left behind and, in the directories `scripts`, near-copies of scripts; with `apply`, move it to a
    backup. `keep` checkpoints of each run stay, and what was used since `older_than_s`."""
    from pathlib import Path

    from shoal.cleanup import ITEM_KINDS, list_near_duplicates, move_to_backup

    settings = read_project(project)
    kinds, root = kinds or ITEM_KINDS, Path(settings.root)
    items = _find_leftovers(settings, keep, older_than_s, kinds)
    items += list_near_duplicates(scripts, root, os.environ) if "script" in kinds else []
    stamp = time.strftime("%Y%m%d_%H%M%S")
    return CleanReport(root, items, move_to_backup(root, items, stamp) if apply and items else None)


def _find_leftovers(settings: Project, keep: int, older_than_s: float, kinds: Sequence[str]) -> list[CleanupItem]:
    from shoal.cleanup import (
        find_leftovers,
        read_run_directories,
        stale_snapshots,
        temporary_files,
        unused_objects,
        unused_staged_data,
    )
    from shoal.observe import observe

    home, now_s = str(settings.home), time.time()
    views = observe(home, environ=os.environ).views
    found = find_leftovers(
        read_run_directories(home, views), keep=keep, older_than_s=older_than_s, now_s=now_s, kinds=kinds
    )
    if "snapshot" in kinds:
        found += stale_snapshots(home, views, older_than_s=older_than_s, now_s=now_s)
    if "object" in kinds:
        found += unused_objects(home, views, older_than_s=older_than_s, now_s=now_s)
    if "temporary" in kinds:
        found += temporary_files(home, now_s=now_s)
    if "scratch" in kinds:
        bases = [os.environ.get("SHOAL_SCRATCH"), *(cluster.scratch for cluster in settings.clusters.values())]
        found += unused_staged_data(bases, older_than_s=older_than_s, now_s=now_s)
    return found


def backups(*, project: ProjectPath = None) -> list[Path]:
    """The backups of `clean`, the newest first."""
    from pathlib import Path

    from shoal.cleanup import list_backups

    return list_backups(Path(read_project(project).root))


class RestoredBackup(NamedTuple):
    """What came back from a backup, below the project's `root`."""

    root: Path
    moved: BackupResult


def restore_backup(name: str = "", *, project: ProjectPath = None) -> RestoredBackup:
    """Move a backup, or the newest, back to where it came from."""
    from pathlib import Path

    from shoal.cleanup import list_backups, restore_backup
    from shoal.errors import InputError

    root = Path(read_project(project).root)
    known = list_backups(root) if not name else [root / name]
    if not known:
        raise InputError("there is no backup to undo", hint="shoal clean --list")
    return RestoredBackup(root, restore_backup(root, known[0]))


def delete_backup(name: str, *, project: ProjectPath = None) -> int:
    """Delete a backup for good; how many things it held."""
    from pathlib import Path

    from shoal.cleanup import delete_backup

    return delete_backup(Path(read_project(project).root) / name)
