"""From run specs and a cluster profile to submissions: jobs, arrays and packs, their options, scripts and cost.

cluster_choice.py  which cluster a command uses
sbatch_options.py  request, flags and profile as the options of sbatch
submissions.py     runs as jobs and arrays, the script of a job, the maximum cost
packs.py pack_queue.py   runs as a pack: the submission, and the queue that travels with it
batch_script.py    the text of a batch script for every launch mode
containers.py      the container of a run, and its lines in a script
generate.py        `shoal generate`
layouts.py         job, array, pack and pilots compared for the same runs; expected durations and order
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.plan import packs
    from shoal.plan.batch_script import launch_lines
    from shoal.plan.cluster_choice import choose_cluster, is_here, named_cluster
    from shoal.plan.containers import check_containers
    from shoal.plan.generate import GeneratedScript, GenerateOptions, generate_script, is_unedited, with_checksum
    from shoal.plan.layouts import (
        ARRAY,
        ESTIMATED_FIELDS,
        JOB_PER_RUN,
        LayoutComparison,
        LayoutCost,
        PackJob,
        assume_durations,
        choose_best,
        compare_layouts,
        fill_gpu_shares,
        layout_widths,
        longest_first,
        min_makespan_s,
        simulate,
        split_over_nodes,
        with_start_times,
    )
    from shoal.plan.pack_queue import PackOptions, build_queue
    from shoal.plan.sbatch_options import ResolvedRequest, resolve_request
    from shoal.plan.submissions import (
        DEFAULT_MAX_ARRAY,
        PlannedSubmission,
        job_count,
        log_root,
        max_cost,
        plan_submissions,
        shoal_options,
        slurm_job_name,
        submission_script,
        unsent_script,
    )
else:
    __getattr__ = lazy_exports(__name__)
