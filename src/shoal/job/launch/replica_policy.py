"""What to do with failed replicas: restart, wait or give up. Pure: times are arguments, nothing is started here.

A failed replica is restarted while no other has finished: after that its peers are gone, and it would train the whole
run alone from the start (measured with torchft 0.2.0). The number of restarts is limited, each waits a little longer,
and a replica that has run for an hour gets its full number of restarts back.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set

_MAX_BACKOFF_S = 60.0
#: How long a replica may be silent until its program says its first word: it imports, compiles, waits for its data.
_MAX_STARTING_S = 300.0
#: How long a replica may be silent after enough others have finished: it waits for a quorum that cannot form any more.
_MAX_LINGER_S = 120.0
#: The same for one that was started again: it came too late, and waits for peers that are gone.
_MIN_REMAINING_S = 30.0


class ReplicaLimits(NamedTuple):
    replicas: int
    min_replicas: int
    min_finished: int
    restarts: int
    backoff_s: float
    healthy_s: float
    hang_s: float


def replica_limits(settings: Mapping[str, Any], replicas: int, min_replicas: int) -> ReplicaLimits:
    return ReplicaLimits(
        replicas,
        min_replicas,
        int(settings.get("min_finished") or min_replicas),
        int(settings["restarts"]),
        float(settings["backoff_s"]),
        float(settings["healthy_s"]),
        float(settings["hang_s"]),
    )


class ReplicaStates:
    """The state of every replica: running since, due at, finished, or given up with a code."""

    def __init__(self, limits: ReplicaLimits) -> None:
        self.limits = limits
        self.attempts = dict.fromkeys(range(limits.replicas), 0)
        self.due: Dict[int, float] = dict.fromkeys(range(limits.replicas), 0.0)
        self.since: Dict[int, float] = {}
        self.progress: Dict[int, float] = {}
        self.speaking: Set[int] = set()
        self.finished: List[int] = []
        self.lost: Dict[int, int] = {}
        self.first_code = 0
        self._strikes = dict.fromkeys(range(limits.replicas), 0)

    def to_start(self, now: float) -> List[int]:
        return [number for number, at in sorted(self.due.items()) if at <= now]

    def started(self, number: int, now: float) -> int:
        """Note a start; which attempt of the replica this is."""
        del self.due[number]
        self.since[number] = self.progress[number] = now
        self.attempts[number] += 1
        self.speaking.discard(number)
        return self.attempts[number]

    def moved(self, number: int, now: float, speaks: bool = True) -> None:
        """Something of the replica was written; `speaks`: by its program, and not only by what starts it."""
        self.progress[number] = now
        if speaks:
            self.speaking.add(number)

    def ended(self, number: int, code: int, now: float) -> Optional[float]:
        """Note an end. Seconds until the replica is to be started again; None if it is not."""
        lived = now - self.since.pop(number)
        if code == 0:
            self.finished.append(number)
            for waiting in list(self.due):
                self.lost[waiting] = self.first_code
                del self.due[waiting]
            return None
        self.first_code = self.first_code or code
        self._strikes[number] = 1 if lived >= self.limits.healthy_s else self._strikes[number] + 1
        if self.finished or self._strikes[number] > self.limits.restarts:
            self.lost[number] = code
            return None
        wait = min(_MAX_BACKOFF_S, self.limits.backoff_s * 2.0 ** (self._strikes[number] - 1))
        self.due[number] = now + wait
        return wait

    def hanging_replicas(self, now: float) -> List[int]:
        """Replicas that stand still while others move. When all stand still nobody can tell which one is to blame."""
        still = [number for number in self.since if now - self.progress[number] > self._max_silence_s(number)]
        others_move = self.finished or len(still) < len(self.since)
        return still if others_move else []

    def _max_silence_s(self, number: int) -> float:
        if len(self.finished) >= self.limits.min_finished:
            return _MIN_REMAINING_S if self.attempts[number] > 1 else _MAX_LINGER_S
        if self.finished:
            return max(self.limits.hang_s, _MAX_LINGER_S)  # it may be leaving as well, and saves without a word
        return self.limits.hang_s if number in self.speaking else max(self.limits.hang_s, _MAX_STARTING_S)

    def verdict(self) -> Optional[int]:
        """The run's exit code once it is decided, else None: 0 when as many finished as were asked for.

        Fewer replicas than a quorum, with none finished, can only wait for a time-out: that is the end as well.
        """
        alive = len(self.since) + len(self.due)
        if not self.finished and alive < self.limits.min_replicas:
            return self.first_code or 1
        if alive:
            return None
        return 0 if len(self.finished) >= self.limits.min_finished else self.first_code or 1
