"""What every part of shoal agrees on: file names, records, leases, claims, and how Slurm is called.

Standard library only and Python 3.8 or newer. It is shipped into jobs together with `job/` (job/zipapp.py), and
the commands on the login node use the same modules.
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
