"""Submit runs: decide what to start, write it down, send it to Slurm or run it locally, and cancel or retry it.

submit.py          `shoal submit` and `shoal pack`: from files or commands to results
prepare.py         requested runs, checked and laid out as an order; changes nothing
decide.py          (requested run, existing run) -> start, skip or refuse (pure); resuming; smoke tests
execute.py         carry an order out, on Slurm or on this machine
transaction.py     what a command adds to the submission transaction (kernel/submission.py)
idempotency.py     a repeated command continues its first execution
budget.py          the project's limit of jobs, nodes and GPUs on a cluster
snapshot.py        the code at submission; missing_files.py: files that runs will not see
compare_layouts.py `shoal plan --shapes`
retry.py           failed runs, to be started again
cancel.py          stop runs; runs that a sweep no longer has
pending_follow_ups.py   send what earlier jobs could not send
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
