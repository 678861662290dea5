"""From settings and experiment files to run specs. Nothing is submitted and nothing is changed here.

Settings
    locate.py project.py       where shoal.toml is; the project, its steps and cluster profiles
    columns.py                 the columns of `status`, read without the other settings
    document.py tables.py      TOML with line numbers; its tables as declared types
    cluster.py steps.py        cluster profiles; steps
    launches.py                `launch` and `container` of a step, an experiment or a cluster
    scaffold.py                the files that `shoal init` writes
Experiment files
    experiment_files.py        a bash script, sweep file or Python file, with flags, as requested runs
    script_text.py             what the text of a script tells before it is executed
    shell_functions.py         the functions that scripts source; execute a script and collect its calls
    command_file.py            commands of `shoal pack`
    run_lookup.py              a run, a checkpoint or an output directory by what a person typed
Sweeps
    sweep_file.py parameters.py   the typed description of a sweep; its parameters and their values
    expressions.py expand.py   derived values and conditions; all points of a sweep
    run_names.py               names of runs that stay the same when a sweep grows
Run specs
    run_specs.py sweep_runs.py   a call of a step function, a recorded run, or a point of a sweep, as a RunSpec
    dependencies.py            the order of runs that depend on each other
    argument_checks.py program_source.py   values that the program does not read; what its source shows
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe.argument_checks import (
        bool_parameters_as_text,
        ignored_directives,
        refuse_braces_in_values,
        refuse_dropped_arguments,
        unused_checkpoints,
        unused_parameters,
        unused_seeds,
    )
    from shoal.describe.cluster import CLUSTER_KEYS, LOCAL, NETWORKS, UNNAMED, Cluster
    from shoal.describe.columns import ColumnSetting, saved_columns
    from shoal.describe.command_file import command_sweep, read_command_file
    from shoal.describe.dependencies import BlockedRun, check_dependencies, order_runs, parents_of
    from shoal.describe.document import Document, Given
    from shoal.describe.experiment_files import (
        FILE_SUFFIXES,
        BlockRecord,
        SweepNames,
        SweepOptions,
        append_block,
        group_sweeps,
        read_experiment_file,
        read_sweeps,
        run_file_name,
        save_sweep_names,
    )
    from shoal.describe.launches import ARGUMENT_SETS, change_mode, over, parse_word
    from shoal.describe.locate import TOML_NAME, find_root, home_here, home_of
    from shoal.describe.program_source import (
        RESUME_VARIABLE,
        ResumeDetector,
        empty_argument_note,
        unknown_resume_note,
        with_current_step,
    )
    from shoal.describe.project import Project, find_project, project_or_bare
    from shoal.describe.run_lookup import find_run, output_directories
    from shoal.describe.run_names import read_naming
    from shoal.describe.run_specs import (
        PlannedRun,
        RequestedRun,
        refuse_duplicate_runs,
        requested_run,
        resumed_run,
        seeds_in,
        with_training_step,
    )
    from shoal.describe.scaffold import EXAMPLE, EXAMPLE_PATH, IGNORED, draft_profile, node_text, toml_text
    from shoal.describe.shell_functions import (
        BASE_VARIABLE,
        COLLECT_VARIABLE,
        StepCall,
        append_call,
        exported_settings,
        function_definitions,
        refuse_while_collecting,
    )
    from shoal.describe.steps import STEP_RETRY_CAUSES, Smoke, Step
    from shoal.describe.sweep_file import common_early_stopping, parse_early_stop_flag, parse_sweep, with_flags
    from shoal.describe.sweep_runs import REPLICA_PLACEHOLDERS
else:
    __getattr__ = lazy_exports(__name__)
