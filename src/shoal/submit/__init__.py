"""Submission is a transaction: claim on disk, send with a token in the job's name, write down the answer.

decide.py       (what is asked for, what is there) -> start, leave alone, or refuse; pure
redaction.py      what must not leave this machine in a script, an argument or a record
transaction.py  what a command adds to the one transaction (shoal.kernel.submission): specs, folders, scripts
here.py         the same for this machine: the run is a process, started and followed to its end
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.submit import cancel, decide, idempotency, retry
    from shoal.submit.budget import admit_waiting, set_limits
    from shoal.submit.cancel import CancelResult, cancel_own_jobs, removed_runs
    from shoal.submit.compare_layouts import compare_layouts_of, expected_start
    from shoal.submit.decide import CheckpointDecision, unknown_resume_reason
    from shoal.submit.execute import execute_plan
    from shoal.submit.pending_follow_ups import observe_and_follow_up
    from shoal.submit.prepare import SubmissionPlan, SubmitOptions, SubmitResult, prepare_submission
    from shoal.submit.submit import (
        PackResult,
        cluster_of_scripts,
        read_scripts,
        report_secrets,
        submit_call,
        submit_pack,
        submit_runs,
        submit_scripts,
    )
else:
    __getattr__ = lazy_exports(__name__)
