"""What every part of shoal agrees on: file names, records, leases, claims, and how Slurm is called.

Standard library only and Python 3.8 or newer. It is shipped into jobs together with `job/` (job/shipping.py), and
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
        node_lease,
        owed,
        process,
        progress,
        records,
        resumed,
        slurm,
        slurm_text,
        submission,
        tree,
    )
    from .causes import (
        KIND_OF_STATE,
        SELF_EVIDENT,
        WORDS,
        Cause,
        clean,
        exit_words,
        find_cause,
        is_consequence,
        last_line,
        signature,
        strip_escapes,
    )
    from .failpoints import reach
    from .fence import INTERRUPTED
    from .files import (
        DISK_ERRNOS,
        TEMP_MARK,
        create_exclusive,
        is_shared,
        make_dir,
        names_in,
        read_json,
        refuse_foreign,
        replace,
        to_json,
    )
    from .keeper import Keeper
    from .layout import TOKEN_LENGTH, TOKEN_LETTERS
    from .lease import Timing
    from .output import hang_ups_ignored, unbroken
    from .patterns import regex
    from .process import node_name, own_program
    from .progress import Output, Progress, read, read_metrics, read_series, totals, value_of
    from .records import (
        Allocation,
        Asked,
        Claim,
        End,
        Held,
        Next,
        OrderRecord,
        Outcome,
        Provenance,
        Send,
        Start,
        Submission,
        fields_of,
        user,
    )
    from .slurm import OF_THE_USER, QUERY_TIMEOUT_S, clean_environ
    from .slurm_text import ENDED_WORDS, LIVE_WORDS, JobRow, is_no_answer, replace_job
    from .submission import accept_here, new_token
else:
    __getattr__ = lazy_exports(__name__)
