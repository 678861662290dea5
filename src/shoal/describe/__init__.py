"""From settings and experiment files to run specs. Nothing is submitted and nothing is changed here."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe.blocks import SweepBlock, parse_sweep, with_flags
    from shoal.describe.calls import (
        BASE_VARIABLE,
        COLLECT_VARIABLE,
        StepCall,
        append_call,
        exported_settings,
        refuse_while_collecting,
    )
    from shoal.describe.cluster import CLUSTER_KEYS, LOCAL, NETWORKS, UNNAMED, Cluster
    from shoal.describe.columns import Said, saved_columns
    from shoal.describe.document import Document, Given
    from shoal.describe.experiment_files import (
        FILE_SUFFIXES,
        SweepNames,
        SweepOptions,
        read_experiment_file,
        read_sweeps,
        save_sweep_names,
    )
    from shoal.describe.expressions import parse_expression
    from shoal.describe.inputs import find_run, output_directories
    from shoal.describe.launches import ARGUMENT_SETS, change_mode, over, parse_word
    from shoal.describe.locate import TOML_NAME, find_root, home_here, home_of
    from shoal.describe.placeholders import REPLICA_PLACEHOLDERS
    from shoal.describe.project import Project, find_project, project_or_bare
    from shoal.describe.python_file import BlockRecord, append_block, group_sweeps, run_file_name
    from shoal.describe.resuming import (
        RESUME_VARIABLE,
        ResumeDetector,
        empty_argument_note,
        unknown_resume_note,
        with_current_step,
    )
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
    from shoal.describe.runs import Sweep
    from shoal.describe.scaffold import EXAMPLE, EXAMPLE_PATH, IGNORED, draft_profile, node_text, toml_text
    from shoal.describe.search import common_early_stopping, parse_early_stop_flag
    from shoal.describe.shell_functions import function_definitions
    from shoal.describe.stages import BlockedRun, check_dependencies, order_runs, parents_of
    from shoal.describe.steps import STEP_RETRY_CAUSES, Smoke, Step, check_step_name
    from shoal.describe.unread import (
        bool_parameters_as_text,
        ignored_directives,
        refuse_braces_in_values,
        refuse_dropped_arguments,
        unused_checkpoints,
        unused_parameters,
        unused_seeds,
    )
else:
    __getattr__ = lazy_exports(__name__)
