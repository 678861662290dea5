"""The records of runs and one look at Slurm's queue, as run views: the state of each run, and the reason.

run_views.py     read the directories of runs and one squeue, and derive the state of each run
adopted_runs.py  write down what Slurm says about jobs that shoal did not start
run_state.py     the state of a run from its files and Slurm's answer (pure)
run_files.py     read the files of a run
run_writer.py    write the files of a run; how long this host has seen a lease silent
run_progress.py  the speed of a running run; how long earlier attempts took
run_code.py      which code a run executed; metrics that a step names now
run_summaries.py parameters, progress and metrics of many runs, kept from look to look
settled_runs.py  ended runs, kept from look to look
cache_file.py    the files in which that is kept
queue_cache.py   Slurm's last answer, shared by all who watch
results.py       metrics over seeds (pure)
allocations.py   the allocations of runs: jobs' own records, completed by what Slurm knows
usage.py         resource use that jobs sampled
state_dir.py     the state directory: which runs there are, shared projects, errors of files
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.observe import run_files, run_writer, usage
    from shoal.observe.allocations import AllocationView, allocated_gpus, full_size_s, read_allocation_views
    from shoal.observe.cache_file import read_cache, write_cache
    from shoal.observe.queue_cache import QueueCache
    from shoal.observe.results import ResultGroup, ResultTable, RunMetrics, Statistic, tabulate
    from shoal.observe.run_code import RunCode, other_code_notes, read_code
    from shoal.observe.run_files import (
        AssignedResources,
        ClaimRecord,
        DamagedRecord,
        End,
        Outcome,
        RequestedResources,
        RunFiles,
        RunReader,
        Start,
        Submission,
        Verdict,
        read_start,
    )
    from shoal.observe.run_progress import (
        ProgressRate,
        command_words,
        find_output,
        known_pace,
        past_durations,
        progress_rate,
        remaining_s,
        run_output,
    )
    from shoal.observe.run_state import CANCEL_REQUESTED, RunView, derive_attempt_state
    from shoal.observe.run_summaries import RunSummaries, RunSummary
    from shoal.observe.run_views import AskQueue, Observation, ObserveRuns, observe
    from shoal.observe.run_writer import map_in_threads, open_state_dir
    from shoal.observe.settled_runs import OUTPUT_AGE_S, SettledRuns
    from shoal.observe.state_dir import (
        as_disk_error,
        create_exclusive,
        full_disk_hint,
        has_runs,
        replace,
        run_names,
        share_project,
    )
    from shoal.observe.usage import AttemptUsage, NodeUsage
else:
    __getattr__ = lazy_exports(__name__)
