"""Submission is a transaction: claim on disk, send with a token in the job's name, write down the answer.

decide.py       (what is asked for, what is there) -> start, leave alone, or refuse; pure
secrecy.py      what must not leave this machine in a script, an argument or a record
transaction.py  what a command adds to the one transaction (shoal.kernel.submission): specs, folders, scripts
here.py         the same for this machine: the run is a process, started and followed to its end
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.submit import cancelling, continuing, retrying, standing
    from shoal.submit.budget import admit_waiting, set_limits
    from shoal.submit.cancelling import CancelResult, cancel_own_jobs
    from shoal.submit.carrying import execute_plan
    from shoal.submit.comparing import compare_layouts_of
    from shoal.submit.continuing import CheckpointDecision, unknown_resume_reason
    from shoal.submit.finishing import observe_and_follow_up
    from shoal.submit.orders import SubmissionPlan, SubmitOptions, SubmitResult, prepare_submission
    from shoal.submit.packing import PackResult, submit_pack
    from shoal.submit.pruning import removed_runs
    from shoal.submit.scripts import (
        cluster_of_scripts,
        read_scripts,
        report_secrets,
        submit_call,
        submit_runs,
        submit_scripts,
    )
    from shoal.submit.starts import expected_start
else:
    __getattr__ = lazy_exports(__name__)
