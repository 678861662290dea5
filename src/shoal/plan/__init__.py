"""From run specs and a cluster profile to submissions: jobs, arrays and packs, their options, scripts and cost."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.plan import packs
    from shoal.plan.cluster_choice import choose_cluster, named_cluster
    from shoal.plan.containers import check_containers
    from shoal.plan.cost import gpu_hours, makespan_s
    from shoal.plan.durations import earlier_durations
    from shoal.plan.generate import Generated, Wish, generate_script
    from shoal.plan.layouts import ARRAY, EACH, Comparison, ShapeCost, compare, over_nodes, with_lengths, with_starts
    from shoal.plan.pack_commands import runs_of_file, sweep_of
    from shoal.plan.pack_options import PackOptions
    from shoal.plan.pack_order import Job
    from shoal.plan.pack_queue import plan_pack
    from shoal.plan.sbatch_options import Resolved, resolve
    from shoal.plan.simulate import even_out, lower_bound
    from shoal.plan.submissions import (
        LARGEST_ARRAY,
        PlannedSubmission,
        lay_out,
        log_root,
        name_of,
        own_options,
        script_text,
    )
else:
    __getattr__ = lazy_exports(__name__)
