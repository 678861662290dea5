"""What commands and jobs share: file names, records, leases, claims, calls of Slurm, progress and metrics.

    layout.py        every file name in the state directory
    files.py         small files that are written whole, exactly once, without locks
    records.py       the typed records of submissions and attempts
    submission.py    the submission transaction, and follow-ups that are owed
    lease.py         the state of an attempt as the name of one file; leases of further nodes
    fence.py         whether a job may work on its run
    guard.py         the outer process of a job, and the thread that renews its leases
    processes.py     process trees: start, find, stop and kill them as a whole
    slurm.py slurm_text.py   call Slurm's programs; parse what they print
    progress.py progress_lines.py metric_files.py   progress and metrics of a program, from its logs and files
    checkpoints.py   the newest complete checkpoint; whether an attempt continued from it
    causes.py        why a run failed, from the end of its log
    lazy.py          exports of a package that are imported on first use
    safe_output.py   output errors that do not end the command

Standard library only and Python 3.8 or newer. It is shipped into jobs together with job/ (job/zipapp.py), and the
commands on the login node use the same modules.
"""

from .lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import (
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
        slurm_text,
        submission,
    )
    from .causes import (
        KIND_OF_STATE,
        KIND_TEXTS,
        SELF_EXPLAINING_KINDS,
        Cause,
        clean_log_line,
        describe_exit_code,
        error_signature,
        find_cause,
        is_consequence,
        last_line,
        strip_escapes,
    )
    from .fence import INTERRUPTING_STOPS
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
    from .processes import agent_path, node_name
    from .progress import Progress, RunOutput, read_metrics, read_progress, read_series, totals_of_command, value_of
    from .records import (
        Allocation,
        AssignedResources,
        ClaimRecord,
        End,
        FollowUp,
        OrderRecord,
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
    from .slurm_text import (
        SLURM_ACTIVE_STATES,
        SLURM_ENDED_STATES,
        JobRow,
        is_controller_silent,
        parse_time,
        replace_job,
    )
    from .submission import accept_locally, failpoint, new_token
else:
    __getattr__ = lazy_exports(__name__)
