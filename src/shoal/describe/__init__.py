"""From settings and experiment files to run specs. Nothing is submitted and nothing is changed here."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe.blocks import Block, parse_block, with_flags
    from shoal.describe.calls import BASE, COLLECT, Call, append_call, refuse_while_read, settings
    from shoal.describe.cluster import CLUSTER_KEYS, LOCAL, UNNAMED, Cluster
    from shoal.describe.columns import Said, saved_columns
    from shoal.describe.containers import over, parse_word
    from shoal.describe.document import Document, Given
    from shoal.describe.experiment_files import SUFFIXES, Grown, Wish, keep, read_file, read_sweeps
    from shoal.describe.expressions import parse_expression
    from shoal.describe.inputs import find_run, output_folders
    from shoal.describe.launches import ARGUMENT_SETS, change_mode
    from shoal.describe.locate import TOML_NAME, find_root, home_here, home_of
    from shoal.describe.networks import NETWORKS
    from shoal.describe.placeholders import REPLICA_PLACEHOLDERS
    from shoal.describe.project import Project, find_project, project_or_bare
    from shoal.describe.python_file import Added, append_added, named, sweeps_of
    from shoal.describe.resuming import VARIABLE, Sources, empty_note, unknown_note, with_step_of_now
    from shoal.describe.run_names import read_naming
    from shoal.describe.run_specs import Asked, PlannedRun, describe, refuse_doubles, resume, seeds_in, with_step
    from shoal.describe.runs import Sweep
    from shoal.describe.scaffold import EXAMPLE, EXAMPLE_PATH, IGNORED, Draft, toml_text
    from shoal.describe.search import one_rule, parse_words
    from shoal.describe.shell_functions import definitions
    from shoal.describe.smoke import Smoke
    from shoal.describe.stages import Held, arrange, check_graph, parents_of
    from shoal.describe.steps import Step, check_step_name
    from shoal.describe.unread import (
        braces_in_values,
        swallowed,
        texts_for_bool,
        unread_directives,
        unread_params,
        unread_seeds,
        unread_starts,
    )
else:
    __getattr__ = lazy_exports(__name__)
