"""What people look at: text, tables, the terminal view, the page and the report. Each is made of run views only."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import clean, data, doctor, faults, logs, pack, plan, results, shapes, status, switch, why
    from shoal.views.columns import COLUMNS_BY_NAME
    from shoal.views.family import count_states
    from shoal.views.following import follow_output
    from shoal.views.log_parts import RankSelection
    from shoal.views.progress import ProgressLine
    from shoal.views.question import confirm
    from shoal.views.render import print_json
    from shoal.views.report import tables, text
    from shoal.views.report.gather import CostReport, gather_report
    from shoal.views.report.page import report_page
    from shoal.views.screen import can_redraw, detect_screen
    from shoal.views.select import parse_states, select_runs, unselected_sentence
    from shoal.views.status import StatusFilter
    from shoal.views.submit import SubmitPrinter
    from shoal.views.timeline_picture import Format, need_matplotlib, picture
    from shoal.views.tui import run_app
    from shoal.views.watching import WatchOptions, follow_to_end, watch_runs
    from shoal.views.web.serving import export_dashboard, serve_dashboard
else:
    __getattr__ = lazy_exports(__name__)
