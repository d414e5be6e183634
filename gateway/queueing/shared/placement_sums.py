"""The placements that are in Redis as sums for each worker: this gateway gave them by itself (own_places.py)."""

from itertools import islice

from gateway.fleet.loads import Loads
from gateway.queueing.shared.queue_messages import SharedPlacement
from policies.others_load import NO_TOTALS, LoadTotals
from radix_cache.match import WorkerId


class LoadSums:
    """The load of some placements on one worker; see LoadTotals."""

    __slots__ = ("kv_tokens", "streams", "tokens_queued")

    def __init__(self) -> None:
        self.tokens_queued = self.streams = self.kv_tokens = 0

    def add(self, placement: SharedPlacement, times: int = 1) -> None:
        """Add a placement; -1 times takes it off."""
        self.tokens_queued += times * placement.uncached_tokens
        self.streams += times
        self.kv_tokens += times * placement.ticket.kv_tokens


class PlacementSums:
    """The sums of these placements, as of now and as reported to Redis last."""

    def __init__(self) -> None:
        self.changed: set[WorkerId] = set()
        """The workers with sums that may differ from what was reported."""
        self.reported: dict[WorkerId, LoadTotals] = {}
        """The sums that were reported last; none for a worker without placements."""
        self._now: dict[WorkerId, LoadSums] = {}
        self._ids: set[str] = set()
        self._added: dict[WorkerId, int] = {}
        """Tokens of prompts that were placed and not reported yet."""
        self._in_report: dict[WorkerId, int] = {}
        """Tokens of prompts that are in the last report for the first time, until its reply has come."""

    def __contains__(self, id: str) -> bool:
        """Return whether the ticket of this id has such a placement."""
        return id in self._ids

    def unreported_tokens(self, worker: WorkerId) -> int:
        """Return the tokens that are queued at a worker and may not be in Redis yet."""
        sums = self._now.get(worker)
        if sums is None:
            return 0
        return min(sums.tokens_queued, self._added.get(worker, 0) + self._in_report.get(worker, 0))

    def add(self, placement: SharedPlacement) -> None:
        """Add a placement."""
        worker = placement.worker
        sums = self._now.get(worker)
        if sums is None:
            sums = self._now[worker] = LoadSums()
        sums.add(placement)
        self._ids.add(placement.ticket.id)
        self._added[worker] = self._added.get(worker, 0) + placement.uncached_tokens
        self.changed.add(worker)

    def note_first_token(self, placement: SharedPlacement) -> None:
        """Take the prompt of a placement off the prefill queue."""
        self._now[placement.worker].tokens_queued -= placement.uncached_tokens
        self.changed.add(placement.worker)

    def remove(self, placement: SharedPlacement) -> None:
        """Remove a placement."""
        worker = placement.worker
        sums = self._now[worker]
        sums.add(placement, -1)
        if not sums.streams:
            del self._now[worker]
        self._ids.discard(placement.ticket.id)
        self.changed.add(worker)

    def take_changes(self, count_max: int) -> Loads:
        """Return the sums of at most so many workers that have changed; they count as reported."""
        changes: dict[WorkerId, LoadTotals] = {}
        for worker in list(islice(self.changed, count_max)):
            self.changed.discard(worker)
            sums, added = self._now.get(worker), self._added.pop(worker, 0)
            if added:
                self._in_report[worker] = added
            if sums is None:
                changes[worker] = NO_TOTALS
                self.reported.pop(worker, None)
            else:
                totals = LoadTotals(sums.tokens_queued, sums.streams, sums.kv_tokens)
                changes[worker] = self.reported[worker] = totals
        return changes

    def note_reply(self) -> None:
        """Note that Redis has what was reported last."""
        self._in_report.clear()

    def take_all(self) -> set[str]:
        """Remove all placements, which will not be in Redis as sums any more; return the ids of their tickets."""
        ids, self._ids = self._ids, set()
        for kept in (self.changed, self.reported, self._now, self._added, self._in_report):
            kept.clear()
        return ids
