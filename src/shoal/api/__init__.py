"""The public Python API: what commands do, as functions of plain values that never print and never exit.

projects.py     which project a call is about
submitting.py   start runs: plan, submit, pack, resume, retry
acting.py       change what is there: cancel, adopt, budgets
looking.py      look at runs: status, why, logs, results, report, searches
checking.py     doctor, switch, clean
generating.py   write a batch script for plain sbatch
step_calls.py   step functions in bash scripts
over_ssh.py     commands that are executed on a cluster, from a laptop
experiment.py   `shoal.Experiment`: runs of steps, described in Python

The command line is these functions and views/. Errors are ShoalError (errors.py).
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.actions import (
        HELD_KINDS,
        SCOPE_KINDS,
        CancelReport,
        CommandOptions,
        PackCommand,
        RetryChange,
        SubmitOptions,
        SubmitResult,
        attach_command,
        forward_port,
        is_job_id,
        observe_and_follow_up,
        run_with_generator,
    )
    from shoal.api.acting import AdoptedRun, BudgetChange, BudgetReport, adopt, budget, cancel, set_budget
    from shoal.api.checking import (
        DoctorOptions,
        DoctorReport,
        backups,
        clean,
        delete_backup,
        doctor,
        explain_launch,
        restore_backup,
        switch,
        write_baseline,
    )
    from shoal.api.experiment import Experiment
    from shoal.api.generating import GenerateReport, generate
    from shoal.api.looking import (
        check_hours,
        errors,
        export_search,
        find_run,
        has_runs,
        logs,
        open_logs,
        report,
        report_html,
        results,
        run_names,
        run_or_job,
        running_attempt,
        searches,
        status,
        why,
    )
    from shoal.api.over_ssh import (
        PullReport,
        RemoteTarget,
        connect,
        disconnect,
        execute_there,
        output_files,
        profile_there,
        pull,
        remote_target,
    )
    from shoal.api.projects import state_directory
    from shoal.api.step_calls import note_step_call, read_step_call, step_functions, submit_step_call
    from shoal.api.submitting import compare_layouts, pack, pack_target, plan, resume, retry, runs_here, submit
    from shoal.batch import known_options
    from shoal.describe import SweepOptions, is_experiment_source, refuse_while_collecting
    from shoal.doctor import TrainingInputs
    from shoal.observe import RunView, as_disk_error
    from shoal.plan import GenerateOptions, PackOptions
    from shoal.remote import parse_listing
    from shoal.switch import SwitchComparison, SwitchOptions
    from shoal.views import LogChoice, StatusFilter
else:
    __getattr__ = lazy_exports(__name__)
