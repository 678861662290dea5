"""Follow submitted runs to their end: one line per change, and the output itself when it is a single run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal.model import LIVE
from shoal.observe import observe
from shoal.store.fold import RunView
from shoal.submit.orders import Result
from shoal.views import logs
from shoal.views.status import progress_of

#: Slurm is asked every two seconds at first and less often the longer it takes.
_FIRST_POLL_S, _LAST_POLL_S = 1.0, 15.0


class Heard(Protocol):
    quiet: bool
    as_json: bool

    def update(self, view: RunView) -> None: ...


def follow_to_end(
    home: str,
    results: Sequence[Result],
    say: Heard,
    environ: Mapping[str, str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until none of the runs is live. Returns 0 if all are done, else 4; Ctrl-C is 130 and ends nothing."""
    names = [result.name for result in results]
    if len(names) == 1 and not say.quiet and not say.as_json:
        code = logs.follow(home, logs.find(home, names[0]), 0)
        say.update(observe(home, names, environ=environ).views[names[0]])
        return code
    seen: dict[str, str] = {}
    poll_s = _FIRST_POLL_S
    try:
        while True:
            views = observe(home, names, environ=environ).views
            for view in views.values():
                word = f"{view.state} {progress_of(view) or view.cause or ''}".strip()
                if seen.get(view.name) != word:
                    seen[view.name] = word
                    if not say.quiet and not say.as_json:
                        print(f"{time.strftime('%H:%M:%S')} {view.name} {word}", flush=True)
            if not any(view.state in LIVE for view in views.values()):
                break
            sleep(poll_s)
            poll_s = min(poll_s * 1.3, _LAST_POLL_S)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped following; the runs go on\n")
        return 130
    for view in views.values():
        say.update(view)
    return 0 if all(view.state == "done" for view in views.values()) else 4
