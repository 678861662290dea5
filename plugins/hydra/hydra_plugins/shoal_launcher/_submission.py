"""Submit the points of a sweep, wait for them where the sweeper needs results, and give it those, by name."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.shoal_launcher import _points
from hydra_plugins.shoal_launcher.return_value import FILE_NAME
from shoal.actions import (
    CommandOptions,
    SubmitOptions,
    SubmitResult,
    SubmitTarget,
    UnattendedListener,
    observe_and_follow_up,
    report_secrets,
    submit_runs,
)
from shoal.describe import Cluster, CommandPoint, Project, project_or_bare, read_command_points
from shoal.errors import InputError, InterruptError, ShoalError
from shoal.model import ACTIVE_STATES, SUCCESSFUL_STATES, state_verb
from shoal.observe import QueueCache, RunView
from shoal.plan import PackOptions, choose_cluster
from shoal.views import error_groups

log = logging.getLogger(__name__)
_PLACE = "hydra.launcher"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
#: Settings that may differ between points; as in a sweep file.
_POINT_SETTINGS = ("request", "requests", "launch", "env", "cost", "container")
_LAYOUTS = ("auto", "job", "array", "pack", "pilots")
#: Flags of `shoal submit` as settings.
_SETTINGS = {
    "--rerun": "hydra.launcher.rerun=true",
    "--resume": "hydra.launcher.resume=true",
    "--fresh": "hydra.launcher.resume=false",
    "--no-snapshot": "hydra.launcher.snapshot=false",
    "--layout pack": "hydra.launcher.layout=pack",
    "--slots": "hydra.launcher.pack.slots",
    "--on": "hydra.launcher.on",
}
_FLAG = re.compile("|".join(rf"(?<![\w-]){flag}(?![\w-])" for flag in _SETTINGS))
_MAX_LINES = 20
_MIN_POLL_S, _MAX_POLL_S = 0.1, 2.0


def launch_points(
    config: DictConfig,
    context: HydraContext,
    settings: Mapping[str, Any],
    job_overrides: Sequence[Sequence[str]],
    first_number: int,
) -> list[JobReturn]:
    """A result for each point, in their order. A mistake ends the program with its sentence and a hint; Ctrl-C ends
    the waiting alone."""
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    try:
        sweep = _SubmittedSweep(config, context, settings)
        return sweep.launch([list(words) for words in job_overrides], first_number)
    except InterruptError as error:
        log.error("%s", error.message)
        raise SystemExit(error.exit_code) from None
    except ShoalError as error:
        raise CompactHydraException(_sentence(error)) from None


def _sentence(error: ShoalError) -> str:
    """The error with the settings that have the meaning of the flags in its hint."""
    text = f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else "")
    return _FLAG.sub(lambda match: _SETTINGS[match[0]], text)


class _SubmittedSweep:
    """One call of `launch`: what it needs to know of Hydra, and where its runs go."""

    def __init__(self, config: DictConfig, context: HydraContext, settings: Mapping[str, Any]) -> None:
        self.config, self.context, self.settings = config, context, settings
        self.project: Project = project_or_bare(Path.cwd(), os.environ)
        self.cluster: Cluster = choose_cluster(
            self.project, settings["on"], os.environ, inside_job="SLURM_JOB_ID" in os.environ
        )
        self.home = str(self.project.home)
        if not settings["wait"] and not self.cluster.is_local and config.hydra.sweeper._target_ != _BASIC_SWEEPER:
            raise InputError(
                f"{config.hydra.sweeper._target_.rpartition('.')[2]} needs the results of its points, "
                "but the launcher returns when they are submitted",
                hint="add hydra.launcher.wait=true",
            )

    def launch(self, job_overrides: Sequence[list[str]], first_number: int) -> list[JobReturn]:
        command, common = self._command()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)  # sweepers write there
        if _points.sets_sweep_dir(self.config.hydra.overrides.hydra):
            log.info("hydra.sweep.dir has multirun.yaml only; each point writes to its run's output directory")
        different = list(dict.fromkeys(map(tuple, job_overrides)))
        numbers = {words: first_number + list(map(tuple, job_overrides)).index(words) for words in different}
        points = [self._point(words, numbers[words], common) for words in different]
        asked, grown = read_command_points(
            command,
            points,
            self.project,
            experiment=self.settings["experiment"] or self.config.hydra.job.name,
            place=_PLACE,
            cwd=os.getcwd(),
        )
        target, listener = SubmitTarget(self.project, self.cluster, os.environ), _LogListener()
        report_secrets(os.environ, self.cluster, listener)
        results = submit_runs(
            asked, target, tell=listener, options=self._options(), command=CommandOptions(), grown=grown
        )
        if any(result.did == "ran" and result.state == "cancelled" for result in results):
            raise InterruptError("interrupted; the same command again starts what has not completed")
        names = {words: one.run.spec.name for words, one in zip(different, asked, strict=True)}
        views = self._observe(list(names.values()), wait=self.settings["wait"])
        counts = Counter(view.state for view in views.values())
        told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        log.info("%s: %s; shoal status shows them", asked[0].run.spec.experiment, told)
        return [_job_return(words, views[names[tuple(words)]], self.home) for words in job_overrides]

    def _command(self) -> tuple[list[str], list[str]]:
        """The words of the program, and the arguments that all points share."""
        command = _points.program_command(sys.orig_argv, sys.argv, sys.executable, os.getcwd(), str(self.project.root))
        args = get_args_parser().parse_args(sys.argv[1:])
        flags = _points.hydra_flags(args.config_path, args.config_name, args.config_dir)
        kept = _points.kept_hydra_overrides(self.config.hydra.overrides.hydra)
        return command, [*flags, *kept, *_points.POINT_ARGS]

    def _point(self, words: tuple[str, ...], number: int, common: Sequence[str]) -> CommandPoint:
        meaning = _points.read_overrides(words)
        return CommandPoint(
            (*words, *common), meaning.params, meaning.seed, number, self._point_settings(list(words), number)
        )

    def _point_settings(self, words: list[str], number: int) -> dict[str, Any]:
        """What the point's own configuration says about its request and the like."""
        composed = self.context.config_loader.load_sweep_config(self.config, words)
        with open_dict(composed):
            composed.hydra.job.num, composed.hydra.job.id = number, str(number)
        found: dict[str, Any] = {}
        for key in _POINT_SETTINGS:
            value = composed.hydra.launcher[key]
            found[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        found["request"] = {key: value for key, value in found["request"].items() if value is not None}
        return {key: value for key, value in found.items() if value not in (None, {}, [])}

    def _options(self) -> SubmitOptions:
        settings = self.settings
        if settings["layout"] not in _LAYOUTS:
            raise InputError(
                f"invalid layout {settings['layout']!r}: expected {', '.join(_LAYOUTS)}", place=f"{_PLACE}.layout"
            )
        given = {str(key): value for key, value in settings["pack"].items() if value is not None}
        is_packed = settings["layout"] in ("pack", "pilots") or "pilots" in given
        if given and not is_packed:
            raise InputError(
                "hydra.launcher.pack has no effect without layout=pack", hint="add hydra.launcher.layout=pack"
            )
        given["preload"] = tuple(given.get("preload", ()))
        return SubmitOptions(
            settings["layout"],
            settings["rerun"],
            settings["max_parallel"],
            pack=PackOptions(**given).validate() if is_packed else None,
            snapshot=settings["snapshot"],
            smoke="there" if settings["smoke"] else None,
            resume=settings["resume"],
        )

    def _observe(self, names: Sequence[str], *, wait: bool) -> dict[str, RunView]:
        """The runs as they are; with `wait`, as soon as none of them is active."""
        ask, pause_s = QueueCache(self.home), _MIN_POLL_S
        told = False
        try:
            while True:
                views = observe_and_follow_up(self.home, names, environ=os.environ, ask=ask).views
                active = [view for view in views.values() if view.state in ACTIVE_STATES]
                if not wait or not active:
                    return views
                if not told:
                    log.info("waiting for %d of %d runs; Ctrl-C stops waiting and leaves them", len(active), len(names))
                told = True
                time.sleep(pause_s)
                pause_s = min(_MAX_POLL_S, pause_s * 1.5)
        except KeyboardInterrupt:
            raise InterruptError("stopped waiting; the runs continue: shoal status shows them") from None


def _job_return(words: Sequence[str], view: RunView, home: str) -> JobReturn:
    """What a sweeper gets for a point: the value of a completed run, an exception for a failed one, None for others."""
    found = JobReturn(overrides=list(words), task_name=view.name, working_dir=view.output_dir)
    if view.state in ACTIVE_STATES or view.state in SUCCESSFUL_STATES:
        found.status = JobStatus.COMPLETED
        found.return_value = _returned_value(view) if view.state == "completed" else None
    else:
        reason = error_groups.error_sentence(view, error_groups.find_error(home, view))
        found.status = JobStatus.FAILED
        found.return_value = CompactHydraException(
            f"error: {view.name} {state_verb(view.state)}: {reason}\nhint: shoal why {view.name}"
        )
    return found


def _returned_value(view: RunView) -> Any:
    try:
        record = json.loads(Path(view.output_dir or "", FILE_NAME).read_text())
    except (OSError, ValueError):
        return None  # a program that ends without returning writes none
    if "type" in record:
        log.warning("%s returned %s; sweepers get numbers, text and lists of them only", view.name, record["type"])
    return record.get("value")


class _LogListener(UnattendedListener):
    """Results and remarks as lines of Hydra's log. Nobody is asked anything."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, result: SubmitResult) -> None:
        self.count += 1
        if self.count <= _MAX_LINES:
            job = f" as job {result.job_id}" if result.job_id and result.did == "submitted" else ""
            reason = f" ({result.reason})" if result.reason else ""
            did = result.did if result.did == "submitted" else result.state
            log.info("%s %s%s%s", did, result.name, job, reason)

    def note(self, text: str) -> None:
        log.info("note: %s", text)
