"""The records of runs and one look at Slurm's queue, as run views: what each run is doing, and why."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.observe import records, writing
    from shoal.observe.files import as_disk_error, create_exclusive, full_disk_hint, replace
    from shoal.observe.listing import run_names
    from shoal.observe.output import find_output, output_of, words_of
    from shoal.observe.pace import START_UP, Pace, left_s, pace_of, since
    from shoal.observe.reading import Reader, RunFiles
    from shoal.observe.records import (
        Asked,
        Claim,
        DamagedRecord,
        End,
        Held,
        Outcome,
        Start,
        Submission,
        Verdict,
        read_start,
    )
    from shoal.observe.results import Group, Results, RunResult, Statistic, tabulate
    from shoal.observe.run_state import CANCEL_REQUESTED, RunView, fold_attempt
    from shoal.observe.run_views import Ask, Observation, observe
    from shoal.observe.sharing import share
    from shoal.observe.writing import in_parallel, open_home
else:
    __getattr__ = lazy_exports(__name__)
