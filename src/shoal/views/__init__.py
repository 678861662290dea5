"""What people look at: text, tables, the terminal view, the page and the report. Each is made of run views only."""

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
