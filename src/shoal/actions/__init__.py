"""What changes runs: decide what to start, write it down, send it to Slurm or run it locally, cancel, retry, adopt.

submit.py          `shoal submit` and `shoal pack`: from files or commands to results
prepare.py         requested runs, checked and laid out as a plan; changes nothing
decide.py          (requested run, existing run) -> start, skip or refuse (pure); resuming; smoke tests
execute.py         carry out a plan, on Slurm or on this machine
transaction.py     what a command adds to the submission transaction (kernel/submission.py)
idempotency.py     a repeated command continues its first execution
budget.py          the project's limit of jobs, nodes and GPUs on a cluster
snapshot.py        the code at submission; missing_files.py: files that runs will not see; both by git_index.py
compare_layouts.py `shoal plan`: what submit would do and cost, in one layout or in all
adopt.py           jobs that shoal did not submit, as runs; job_lookup.py: which jobs a person means
attach.py          a shell inside a running run's allocation; forward.py: a port of its node on this machine
retry.py           start failed runs again; resume one
cancel.py          stop runs; runs that a sweep no longer has
generator_shim.py  run a sweep script with `shoal generate` in place of MuLoCo's generator
pending_follow_ups.py   send what earlier jobs could not send
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.actions import decide, idempotency
    from shoal.actions.adopt import LookedUpJob, adopt_jobs, job_as_run
    from shoal.actions.attach import RunningAttempt, attach_command, choose_node, find_attempt
    from shoal.actions.budget import (
        HELD_KINDS,
        SCOPE_KINDS,
        admit_waiting,
        check_scope,
        limits_and_usage,
        set_limits,
        set_max_parallel,
    )
    from shoal.actions.cancel import CancelReport, cancel_active, cancel_own_jobs
    from shoal.actions.compare_layouts import (
        ExpectedCost,
        PlanReport,
        compare_script_layouts,
        expected_start,
        plan_scripts,
    )
    from shoal.actions.decide import CheckpointDecision, unknown_resume_reason
    from shoal.actions.execute import execute_plan
    from shoal.actions.forward import forward_port
    from shoal.actions.generator_shim import run_with_generator
    from shoal.actions.git_index import GitIndex
    from shoal.actions.job_lookup import find_jobs, is_job_id, own_jobs
    from shoal.actions.pending_follow_ups import observe_and_follow_up
    from shoal.actions.prepare import (
        SubmissionPlan,
        SubmitOptions,
        SubmitResult,
        SubmitTarget,
        missing_gpu_notes,
        prepare_submission,
    )
    from shoal.actions.retry import RetryChange, RetrySelection, resume_run, retried_runs, retry_runs
    from shoal.actions.snapshot import take_snapshot
    from shoal.actions.submit import (
        CommandOptions,
        PackCommand,
        PackResult,
        SubmitListener,
        UnattendedListener,
        report_secrets,
        submit_call,
        submit_pack,
        submit_runs,
        submit_scripts,
        submit_target,
    )
else:
    __getattr__ = lazy_exports(__name__)
