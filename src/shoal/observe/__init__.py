"""The records of runs and one look at Slurm's queue, as run views: what each run is doing, and why."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.observe import records, writing
    from shoal.observe.files import as_disk_error, create_exclusive, full_disk_hint, replace
    from shoal.observe.listing import run_names
    from shoal.observe.output import command_words, find_output, run_output
    from shoal.observe.pace import ProgressRate, known_pace, progress_rate, remaining_s
    from shoal.observe.reading import RunFiles, RunReader
    from shoal.observe.records import (
        AssignedResources,
        ClaimRecord,
        DamagedRecord,
        End,
        Outcome,
        RequestedResources,
        Start,
        Submission,
        Verdict,
        read_start,
    )
    from shoal.observe.results import ResultGroup, ResultTable, RunMetrics, Statistic, tabulate
    from shoal.observe.run_state import CANCEL_REQUESTED, RunView, derive_attempt_state
    from shoal.observe.run_views import AskQueue, Observation, observe
    from shoal.observe.sharing import share_project
    from shoal.observe.writing import map_in_threads, open_state_dir
else:
    __getattr__ = lazy_exports(__name__)
