"""Python functions as runs: submit and map them, wait for them, find them and their results. Never prints.

call_runs.py    `shoal.submit`, `shoal.map`: calls of a function as runs, each submitted once
calls.py        a function and its bound arguments; how the function reaches the job
digests.py      digests of values and code that are the same in every process (pure)
project_code.py the code of a project that a function reaches, read from its files
objects.py      pickles of functions and arguments in the state directory
delivery.py     send runs to Slurm, or start a process for them on this machine
run_handle.py   `shoal.Run`, `shoal.Runs`, `shoal.runs`, `shoal.result`, `shoal.as_completed`
results.py      the result of a run that has ended, or its error
watcher.py      one thread that waits for all runs
actions.py      start a run again
executor.py     `shoal.Executor`; joblib_backend.py is the same for joblib
run_context.py  `shoal.context`, inside a run
notebook.py     runs as HTML, live progress

The program of such a run is job/function_call.py.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.functions.call_runs import Call, CallOptions, map, submit, submit_calls
    from shoal.functions.delivery import SubmitLog
    from shoal.functions.executor import Executor
    from shoal.functions.joblib_backend import register_joblib
    from shoal.functions.notebook import progress
    from shoal.functions.run_context import RunContext, context
    from shoal.functions.run_handle import Run, Runs, as_completed, result, runs
else:
    __getattr__ = lazy_exports(__name__)
