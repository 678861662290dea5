"""What people look at: text, tables, the terminal view, the page and the report. Each is made of run views only.

terminal.py render.py   where output goes, questions, safe text; tables, JSON and progress lines
select.py actions.py    which runs a person means; cancel and retry from a view
status.py columns.py run_groups.py   `shoal status`: its columns, grouped rows, time to completion
details.py         progress, GPU use, events and failure of a run
watch.py tui/      follow runs: redrawn text, or the full-screen view
why.py explanation.py pending.py   `shoal why`: the reason of a state, a failure or a wait
logs.py log_files.py error_groups.py   `shoal logs`: log files, and errors grouped over runs
submit.py plan.py switch.py pack.py clean.py doctor.py data.py results.py   output of these commands
timeline.py timeline_picture.py   which attempt ran where and when, as text and as a picture
report/ web/       `shoal report`; `shoal ui`
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import clean, data, doctor, error_groups, logs, pack, plan, results, status, switch, why
    from shoal.views.columns import COLUMNS_BY_NAME
    from shoal.views.log_files import RankSelection
    from shoal.views.render import ProgressLine, print_json
    from shoal.views.report import text
    from shoal.views.report.gather import CostReport, gather_report
    from shoal.views.report.page import report_page
    from shoal.views.run_groups import count_states
    from shoal.views.select import parse_states, select_runs, unselected_sentence
    from shoal.views.status import StatusFilter
    from shoal.views.submit import SubmitPrinter
    from shoal.views.terminal import can_redraw, confirm, detect_screen
    from shoal.views.timeline_picture import Format, need_matplotlib, picture
    from shoal.views.tui import run_app
    from shoal.views.watch import WatchOptions, follow_output, follow_to_end, watch_runs
    from shoal.views.web.serve import export_dashboard, serve_dashboard
else:
    __getattr__ = lazy_exports(__name__)
