"""What people look at: text, tables, the terminal view, the page and the report. Each is made of run views only.

terminal.py render.py   where output goes, questions, safe text; tables, JSON and progress lines
actions.py         cancel and retry from a view
status.py columns.py run_groups.py   `shoal status`: its columns, grouped rows, time to completion
run_table.py seed_groups.py table_choice.py   parameters and metrics as columns, rows over seeds, the last choice
curves.py          curves of many runs in few points, means over seeds
details.py         progress, GPU use, events and failure of a run
watch.py tui/      follow runs: redrawn text, or the full-screen view
why.py explanation.py pending.py   `shoal why`: the reason of a state, a failure or a wait
logs.py log_files.py error_groups.py   `shoal logs`: log files, and errors grouped over runs
submit.py plan.py switch.py pack.py clean.py doctor.py data.py results.py   output of these commands
timeline.py timeline_picture.py   which attempt ran where and when, as text and as a picture
figures.py         curves of a metric, mean over seeds: a matplotlib figure, SVG
report/ web/       `shoal report`; `shoal ui`
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import clean, data, doctor, error_groups, logs, pack, plan, results, status, switch, why
    from shoal.views.columns import COLUMNS_BY_NAME
    from shoal.views.error_groups import LogError, group_errors
    from shoal.views.explanation import Explanation
    from shoal.views.figures import experiment_curves, plot_metric
    from shoal.views.logs import FoundLogs, LogChoice, RunLogs, find_log_sources, read_logs
    from shoal.views.render import ProgressLine, print_json, safe_line
    from shoal.views.report import text
    from shoal.views.report.check import AccountCheck, check_with_sacct, show_check
    from shoal.views.report.gather import CostReport, gather_report
    from shoal.views.report.page import report_page
    from shoal.views.report.search import search_document, search_lines
    from shoal.views.results import gather_results
    from shoal.views.run_groups import count_states
    from shoal.views.status import StatusFilter, StatusReport, gather_status
    from shoal.views.submit import SubmitPrinter
    from shoal.views.table_choice import TableChoice, TableFlags, choose_table, forget_choice, remember_table
    from shoal.views.terminal import (
        SCREEN_VARIABLE,
        ControlSequenceFilter,
        can_redraw,
        confirm,
        describe_screen,
        detect_screen,
    )
    from shoal.views.timeline_picture import Format, need_matplotlib, picture
    from shoal.views.tui import run_app
    from shoal.views.watch import WatchOptions, follow_output, follow_to_end, watch_runs
    from shoal.views.web.cluster import cluster_document
    from shoal.views.web.serve import export_dashboard, serve_dashboard
    from shoal.views.why import about_job, explain_run
else:
    __getattr__ = lazy_exports(__name__)
