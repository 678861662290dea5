"""The launcher and its settings, `hydra.launcher.*`."""

# Without `from __future__ import annotations`: Hydra loads this file in a way that dataclasses cannot look them up.
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

_MIN_HYDRA = (1, 3)


@dataclass
class RequestConf:
    """Resources of a point, as in a sweep file."""

    nodes: Any = None
    gpus: Any = None
    gpu_type: Any = None
    cpus: Any = None
    memory: Any = None
    time: Any = None


@dataclass
class PackConf:
    """The queue of `layout=pack` and `layout=pilots`; what is not set here follows from its runs. Times are in seconds,
    but `time`, which is text as in a request."""

    slots: int | None = None
    engine: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    pilots: int | None = None
    gpus_per_run: float | None = None
    cpus_per_run: int | None = None
    run_limit_s: float | None = None
    time: str | None = None
    memory: str | None = None
    retries: int | None = None
    grace_s: float | None = None
    warn_s: float | None = None
    max_follow_ups: int | None = None
    bind: bool | None = None
    preload: list[str] | None = None
    probe_s: float | None = None
    shrink: bool | None = None
    mps: bool | None = None
    dashboard: bool | None = None
    early_stopping: str | None = None


@dataclass
class ShoalLauncherConf:
    """`request`, `requests`, `launch`, `env`, `cost` and `container` are as in a sweep file. They are read for each
    point: with `request.gpus=${model.gpus}` each has its own."""

    _target_: str = "hydra_plugins.shoal_launcher.launcher.ShoalLauncher"
    experiment: str | None = None  # default: hydra.job.name
    on: str | None = None
    request: RequestConf = field(default_factory=RequestConf)
    requests: list[Any] = field(default_factory=list)
    launch: Any = None
    env: dict[str, Any] = field(default_factory=dict)
    cost: str | None = None
    container: dict[str, Any] = field(default_factory=dict)
    layout: str = "auto"
    pack: PackConf = field(default_factory=PackConf)
    max_parallel: int | None = None
    rerun: bool = False
    resume: bool | None = None
    snapshot: bool = True
    smoke: bool = False
    wait: bool = False


ConfigStore.instance().store(group="hydra/launcher", name="shoal", node=ShoalLauncherConf, provider="shoal")


class ShoalLauncher(Launcher):
    """Submits points; see `_submission.py` for what a call of `launch` does."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        import hydra

        _refuse_old_hydra(hydra.__version__)
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra_plugins.shoal_launcher._submission import launch_points

        assert self.config is not None and self.hydra_context is not None  # noqa: S101 (Hydra calls setup first)
        return launch_points(self.config, self.hydra_context, self.settings, job_overrides, initial_job_idx)


def _refuse_old_hydra(version: str) -> None:
    from hydra.errors import CompactHydraException

    found = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if found < _MIN_HYDRA:
        raise CompactHydraException(
            f"error: hydra/launcher=shoal needs Hydra 1.3 or later (found {version})\n"
            "hint: pip install --upgrade 'hydra-core>=1.3'"
        )
