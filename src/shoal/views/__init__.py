"""What people look at: text, tables, the terminal view, the page and the report. Each is made of run views only."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import clean, data, doctor, faults, logs, pack, plan, results, shapes, status, switch, why
    from shoal.views.columns import BY_NAME
    from shoal.views.family import tally
    from shoal.views.following import follow
    from shoal.views.log_parts import Pick
    from shoal.views.png import as_png, need_pillow
    from shoal.views.progress import Bar
    from shoal.views.question import agreed
    from shoal.views.render import print_json
    from shoal.views.report import tables, text
    from shoal.views.report.gather import Report, gather
    from shoal.views.report.page import page
    from shoal.views.report.timeline import as_timeline
    from shoal.views.screen import can_redraw, screen_of
    from shoal.views.select import parse_states, select_runs, unselected
    from shoal.views.status import Filter
    from shoal.views.submit import SubmitPrinter
    from shoal.views.timeline_drawing import as_svg
    from shoal.views.tui import run_app
    from shoal.views.watching import Manner, follow_to_end, watch
    from shoal.views.web.serving import save_copy, serve
else:
    __getattr__ = lazy_exports(__name__)
