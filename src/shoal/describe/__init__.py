"""From settings and experiment files to run specs. Nothing is submitted and nothing is changed here.

Settings
    locate.py project.py       where shoal.toml is; the project, its steps and cluster profiles
    columns.py                 the settings of `status`, read without the others
    document.py tables.py      TOML with line numbers; its tables as declared types
    cluster.py steps.py        cluster profiles; steps
    launches.py                `launch` and `container` of a step, an experiment or a cluster
    scaffold.py scaffold_from.py   the files that `shoal init` writes; those for a batch script or a command
Experiment files
    sources.py                 what a command line names: files, directories, a command, a pack; as requested runs
    experiment_files.py        a bash script, sweep file or Python file, with flags, as requested runs
    script_text.py             what the text of a script tells before it is executed
    script_source.py script_runs.py   a batch script on disk; as runs
    script_checks.py           what a batch script cannot do without Slurm
    shell_functions.py         the functions that scripts source; execute a script and collect its calls
    call_recorder.py           answers a script that is read, in place of `shoal shell`
    command_file.py            runs of a command line, of a file of commands, and of given arguments (Hydra)
    run_lookup.py              a run, a checkpoint or an output directory by what a person typed
    run_selection.py           runs by what a person typed: experiments, patterns, states, causes
Sweeps
    sweep_file.py parameters.py   the typed description of a sweep; its parameters and their values
    search.py trials.py        [search]; its trials as points
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
    from shoal.describe.argument_checks import check_arguments
    from shoal.describe.cluster import CLUSTER_KEYS, LOCAL, NETWORKS, UNNAMED, Cluster, PriceTable
    from shoal.describe.columns import ColumnSetting, read_status_settings
    from shoal.describe.command_file import CommandPoint, read_command_points
    from shoal.describe.dependencies import (
        BlockedRun,
        check_dependencies,
        expand_parent_patterns,
        order_runs,
    )
    from shoal.describe.document import Given
    from shoal.describe.expand import SweepPoint
    from shoal.describe.experiment_files import (
        BlockRecord,
        SweepNames,
        SweepOptions,
        append_block,
        group_sweeps,
        read_sweeps,
        run_file_name,
        save_sweep_names,
    )
    from shoal.describe.launches import ARGUMENT_SETS, change_mode, over, parse_word
    from shoal.describe.locate import TOML_NAME, code_path, delivered_root, find_home, find_root, home_of
    from shoal.describe.parameters import parse_seeds, round_drawn
    from shoal.describe.program_source import (
        RESUME_VARIABLE,
        empty_argument_note,
        resume_method,
        unknown_resume_note,
        with_current_step,
    )
    from shoal.describe.project import Project, find_project, load_project, project_or_bare, project_prices
    from shoal.describe.run_lookup import find_run, output_directories
    from shoal.describe.run_names import SweepNaming, read_naming, run_stems
    from shoal.describe.run_selection import (
        active_since,
        parse_causes,
        parse_states,
        select_runs,
        unselected_sentence,
    )
    from shoal.describe.run_specs import (
        PlannedRun,
        RequestedRun,
        refuse_duplicate_runs,
        resumed_run,
        with_training_step,
    )
    from shoal.describe.scaffold import EXAMPLE_PATH, draft_settings, node_text, project_files
    from shoal.describe.scaffold_from import describe_command, describe_script, profile_comments
    from shoal.describe.script_checks import check_scripts
    from shoal.describe.script_source import find_batch_scripts
    from shoal.describe.search import MAX_REFUSED, PYTHON_VARIABLE, SAMPLER_MODULES, is_inside
    from shoal.describe.shell_functions import (
        COLLECT_VARIABLE,
        StepCall,
        append_call,
        function_definitions,
        refuse_while_collecting,
        step_call,
    )
    from shoal.describe.sources import SweepFlags, is_experiment_source, read_calls, read_pack, read_scripts
    from shoal.describe.steps import Smoke, Step
    from shoal.describe.sweep_file import common_early_stopping, parse_early_stop_flag, parse_sweep
    from shoal.describe.sweep_runs import REPLICA_PLACEHOLDERS
    from shoal.describe.trials import TrialRules, read_rules
else:
    __getattr__ = lazy_exports(__name__)
