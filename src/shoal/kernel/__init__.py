"""What commands and jobs share: file names, records, leases, claims, calls of Slurm, progress and metrics.

    layout.py        every file name in the state directory
    files.py         small files that are written whole, exactly once, without locks
    records.py       the typed records of submissions and attempts
    allocations.py   what each allocation was granted, its begin and its end
    submission.py    the submission transaction, and follow-ups that are owed
    lease.py         the state of an attempt as the name of one file; leases of further nodes
    adopted.py       attempts of jobs that shoal did not start
    fence.py         whether a job may work on its run
    guard.py         the outer process of a job, and the thread that renews its leases
    processes.py     process trees: start, find, stop and kill them as a whole
    slurm.py slurm_text.py slurm_job.py   call Slurm's programs; parse what they print
    progress.py progress_lines.py metric_files.py   progress and metrics of a program, from its logs and files
    metric_summary.py   the last value and the range of each metric
    checkpoints.py   the newest complete checkpoint; whether an attempt continued from it
    trials.py        trials of a search: their parameters and, from run records, their results
    causes.py        why a run failed, from the end of its log; log_lines.py: its lines and exceptions
    lazy.py          exports of a package that are imported on first use
    safe_output.py   output errors that do not end the command

Standard library only and Python 3.8 or newer. It is shipped into jobs together with job/ (job/zipapp.py), and the
commands on the login node use the same modules.
"""

from .lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import (
        adopted,
        checkpoints,
        fence,
        files,
        guard,
        layout,
        lease,
        processes,
        progress,
        records,
        slurm,
        slurm_job,
        slurm_text,
        submission,
        trials,
    )
    from .adopted import FORGOTTEN
    from .allocations import (
        ALLOCATION_VARIABLE,
        AllocationLog,
        AllocationRecord,
        Grant,
        JobAccount,
        Resize,
        account_path,
        accounts_of,
        begin_lines,
        by_job,
        find_account,
        keep_account,
        read_allocations,
        remembered_accounts,
    )
    from .causes import (
        KIND_OF_STATE,
        KIND_TEXTS,
        SELF_EXPLAINING_KINDS,
        Cause,
        describe_exit_code,
        find_cause,
        is_consequence,
    )
    from .fence import INTERRUPTING_STOPS, Claim
    from .files import (
        DISK_ERRNOS,
        TEMP_MARK,
        create_exclusive,
        is_shared,
        list_names,
        make_dir,
        read_json,
        refuse_untrusted,
        replace,
        to_json,
    )
    from .guard import LeaseRenewer
    from .layout import TOKEN_LENGTH, TOKEN_LETTERS
    from .lazy import regex
    from .lease import LeaseTiming
    from .log_lines import clean_log_line, error_signature, last_line, strip_escapes
    from .metric_files import MetricRow, find_metric_files, metric_row
    from .metric_summary import MetricRange, MetricSummary, summarize_metrics
    from .processes import agent_path, node_name
    from .progress import (
        NewMetrics,
        Progress,
        RunOutput,
        metric_sources,
        read_metrics,
        read_progress,
        read_series,
        totals_of_command,
        value_of,
    )
    from .records import (
        Allocation,
        AssignedResources,
        ClaimRecord,
        CommandRecord,
        End,
        FollowUp,
        Outcome,
        Provenance,
        RequestedResources,
        SendRecord,
        Start,
        Submission,
        non_default_fields,
        user_name,
    )
    from .safe_output import failsafe_output, ignoring_hangup
    from .slurm import QUERY_TIMEOUT_S, USER_VARIABLES, clean_environ
    from .slurm_job import JobDescription
    from .slurm_text import (
        SLURM_ACTIVE_STATES,
        SLURM_ENDED_STATES,
        JobRow,
        is_controller_silent,
        parse_time,
        replace_job,
    )
    from .submission import accept_locally, failpoint, new_token
    from .trials import Trial, TrialReader, best_trial, read_bound, signed
else:
    __getattr__ = lazy_exports(__name__)
