"""The finished requests that this gateway remembers: all failed and slow ones, and a sample of the others.

    failed    gateway or workers failed it        slow     slow, and not failed
    refused   client's mistake, limit, or left    recent   at most RECENT_PER_SECOND of all others

Each kind has a ring of its own, whose oldest request makes room for the newest, so that a flood of one kind leaves
the others alone.
"""

from collections import deque
from heapq import nlargest
from itertools import chain
from operator import attrgetter

from gateway.explorer.request_details import RequestDetails, brief, request_details
from gateway.explorer.request_query import RequestQuery
from gateway.telemetry.outcome import is_slow, outcome_of
from gateway.telemetry.record import OK, RequestRecord

RECENT_PER_SECOND = 10.0
REFUSED_PER_SECOND = 10.0
KINDS = ("failed", "slow", "refused", "recent")


class RequestStore:
    """An observer that remembers finished requests in detail, `kept_max` of each kind."""

    def __init__(self, gateway: str, *, kept_max: int, slow_seconds: float) -> None:
        self._gateway = gateway
        self._kept_max = kept_max
        self._slow_seconds = slow_seconds
        self._rings: dict[str, deque[RequestDetails]] = {kind: deque() for kind in KINDS}
        self._by_id: dict[str, RequestDetails] = {}
        self._next_at = dict.fromkeys(
            KINDS, 0.0
        )  # when the next request of a sampled kind is kept, Unix time

    def __len__(self) -> int:
        return len(self._by_id)

    def observe(self, record: RequestRecord) -> None:
        """Remember a request that has ended, unless it is one of many that went well."""
        first, target = record.first_token_seconds, record.ttft_target_seconds
        if (
            record.code == OK
            and record.seconds <= self._slow_seconds
            and (first is None or target is None or first <= target)
            and record.started_at < self._next_at["recent"]
        ):
            return
        self._sort(record)

    def find(self, identity: str) -> RequestDetails | None:
        """Return the request of this id, if it is remembered."""
        return self._by_id.get(identity)

    def search(self, query: RequestQuery) -> list[RequestDetails]:
        """Return the remembered requests that match, the latest first."""
        matching = (each for each in chain(*self._rings.values()) if query.matches(each))
        found = nlargest(query.limit, matching, key=attrgetter("at"))
        return [brief(details) for details in found] if query.brief else found

    def _sort(self, record: RequestRecord) -> None:
        """Keep the request in the ring of its kind."""
        outcome, slow = outcome_of(record), is_slow(record, self._slow_seconds)
        if outcome == "failed":
            kind = "failed"
        elif slow and outcome == "ok":
            kind = "slow"
        else:
            kind = "recent" if outcome == "ok" else "refused"
            if record.started_at < self._next_at[kind]:
                return
            per_second = RECENT_PER_SECOND if kind == "recent" else REFUSED_PER_SECOND
            self._next_at[kind] = record.started_at + 1 / per_second
        details = request_details(record, self._gateway, slow=slow)
        ring = self._rings[kind]
        ring.append(details)
        self._by_id[details.id] = details
        if len(ring) > self._kept_max:
            self._by_id.pop(ring.popleft().id, None)
