"""One thread that renews the leases of this process, and tells when a run is no longer wanted.

In a thread of its own, because a file server that does not answer may hold it up for any time: the guard then stops the
programs, and the rest of the agent goes on.
"""

import os
import sys
import threading
from typing import Callable, Dict, List, Optional

from . import fence, lease
from .guard import GuardLink

#: Told of a lease and why its attempt must end: lost, cancelled, superseded or handover.
OnUnwanted = Callable[[lease.Lease, str], None]


class LeaseRenewer:
    """Renews each lease once in a beat. `tell` is called from the keeper's own thread."""

    def __init__(self, times: lease.LeaseTiming, link: Optional[GuardLink], tell: OnUnwanted) -> None:
        self._times, self._link, self._tell = times, link, tell
        self._claims: Dict[lease.Lease, fence.Claim] = {}
        self._due: Dict[lease.Lease, float] = {}
        #: When the thread looks again by itself.
        self._looks_at = float("inf")
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def keep(self, held: lease.Lease, claim: fence.Claim) -> None:
        """From now on; call before the first program of the attempt starts."""
        if self._link is not None:
            self._link.hold(held)
        with self._changed:
            self._claims[held] = claim
            self._due[held] = held.held_until - self._times.hold_s + self._beat_s()
            if self._due[held] < self._looks_at:  # runs of a pack come and go between two beats
                self._changed.notify()
            if self._thread.ident is None:
                self._thread.start()

    def release(self, held: lease.Lease) -> None:
        """The attempt has ended, or was lost; nothing of it runs any more."""
        with self._changed:
            self._claims.pop(held, None)
            self._due.pop(held, None)
        if self._link is not None:
            self._link.drop(held)

    @property
    def held(self) -> List[lease.Lease]:
        with self._changed:
            return list(self._claims)

    def _beat_s(self) -> float:
        return self._times.beat_s * (0.9 + os.urandom(1)[0] / 1280.0)  # spreads the load of many jobs

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._looks_at = float("inf")
                    self._changed.wait()
                held = min(self._due, key=lambda one: self._due[one])
                wait_s = self._due[held] - lease.boot_time_s()
                if wait_s > 0:
                    self._looks_at = self._due[held]
                    self._changed.wait(wait_s)
                    continue
                claim = self._claims[held]
            self._renew(held, claim)

    def _renew(self, held: lease.Lease, claim: fence.Claim) -> None:
        found = held.renew()
        why: Optional[str] = "lost" if found == "lost" else None
        if found == "held":
            if self._link is not None:
                self._link.hold(held)
            try:
                why = fence.why_unwanted(claim, held.number)
            except (OSError, ValueError):
                pass  # The file server is away for a moment; that ends nothing.
        with self._changed:
            if held in self._due:
                # Three tries before its program is stopped, and soon again after that.
                self._due[held] = lease.boot_time_s() + (self._beat_s() if found == "held" else self._times.beat_s / 4)
                if found in ("lost", "over"):
                    del self._due[held]
        if why is not None:
            try:
                self._tell(held, why)
            except Exception as error:  # the leases matter more; the next beat tells again
                sys.stderr.write("shoal: %s: %s\n" % (type(error).__name__, error))
