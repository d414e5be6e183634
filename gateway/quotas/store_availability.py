"""Whether the shared quota store can be reached: it is away after failures, and back after answered pings.

    back --FAILURES_MAX failures in a row, or a failed ping--> away --pings answered in time--> back

Requests that wait at the same time fail by the same silence, which counts as one failure. One answered ping brings
the store back. If it is away again soon after, twice as many in a row are needed, and so on, so that a Redis whose
answers are only sometimes in time does not make the gateway switch all the time.
"""

import logging
from collections.abc import Callable

from gateway.quotas.quota_store import QuotaStoreUnavailable

log = logging.getLogger(__name__)

FAILURES_MAX = 3
PINGS_MAX = 32
STEADY_SECONDS = 10.0
"""A Redis that stayed back for so long is trusted again at the first ping."""


class StoreAvailability:
    """The availability of the shared quota store, by its answers. `clock`: seconds, never backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.away = False
        """Whether the store is away."""
        self.failures = 0
        """How many calls failed in a row, one after the other; an answer sets it to 0."""
        self._clock = clock
        self._failed_at = float("-inf")
        """When the last of them failed."""
        self._pings, self._pings_wanted = 0, 1
        """Pings that were answered in time in a row, and how many bring the store back."""
        self._back_at = float("-inf")

    def count_failure(self, err: BaseException | None, asked_at: float) -> None:
        """Count a call that failed; `asked_at`: when it was made. An answer that came too late is no failure."""
        if isinstance(err, QuotaStoreUnavailable) and err.answered:
            self.failures = 0
            return
        if asked_at < self._failed_at:
            return
        self._failed_at = self._clock()
        self.failures += 1
        if not self.away and self.failures >= FAILURES_MAX:
            self.go_away(err)

    def ping_failed(self, err: BaseException) -> None:
        """Note a ping without an answer: the connection was lost, or silent for long."""
        if not self.away:
            self.go_away(err)
        self._pings = 0

    def ping_answered(self, *, in_time: bool) -> None:
        """Note an answered ping; enough of them in time bring the store back."""
        self._pings = self._pings + 1 if in_time else 0
        if self.away and self._pings >= self._pings_wanted:
            self.away, self.failures, self._back_at = False, 0, self._clock()
            log.warning("Redis is back: quotas are shared again")

    def go_away(self, err: BaseException | None) -> None:
        """Send the store nothing but pings from now on."""
        steady = self._clock() - self._back_at > STEADY_SECONDS
        self._pings, self._pings_wanted = 0, 1 if steady else min(2 * self._pings_wanted, PINGS_MAX)
        self.away = True
        log.warning("Redis is away: quotas are decided by each gateway alone (%s)", err)
