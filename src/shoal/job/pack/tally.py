"""How many runs ended how, and one line for each that does."""

from typing import Callable

from ...kernel import End


class PackSummary:
    """Counts ends and tells of them: of good ones in long queues only now and then."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.total, self._say = total, say
        self.counts = {"done": 0, "failed": 0, "stopped": 0, "by_search": 0, "again": 0, "elsewhere": 0}

    def count(self, kind: str, by: int = 1) -> None:
        self.counts[kind] += by

    def tell(self, name: str, word: str, end: End) -> None:
        finished = sum(self.counts[kind] for kind in ("done", "failed", "by_search", "elsewhere"))
        if word == "done" and self.total > 60 and finished % max(1, self.total // 20) and finished != self.total:
            return
        why = "" if word == "done" else " (%s)" % (end.problem or end.stopped_by or "exit %d" % end.exit_code)
        self._say("[%d/%d] %s %s%s after %.1f s" % (finished, self.total, word, name, why, end.duration_s))
