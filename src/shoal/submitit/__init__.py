"""submitit's surface over shoal: `import shoal.submitit as submitit`, and the rest of a program stays as it is.

    executor = submitit.AutoExecutor(folder="log_test")
    executor.update_parameters(timeout_min=4, slurm_partition="dev")
    job = executor.submit(add, 5, 7)
    print(job.job_id, job.result())

executor.py         `AutoExecutor`, `Job` and their errors
helpers.py          `Checkpointable`, `DelayedSubmission`, `FunctionSequence`, `CommandFunction`, `as_completed`
job_environment.py  `JobEnvironment`, inside a job

The folder's name is the experiment, each call is a new run in it, and all commands of shoal know it.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.submitit import helpers
    from shoal.submitit.executor import AutoExecutor, FailedJobError, Job, UncompletedJobError
    from shoal.submitit.job_environment import JobEnvironment
else:
    __getattr__ = lazy_exports(__name__)
