"""The finished requests that this gateway keeps in memory.

    failed    by the gateway or workers           slow     slow, and not failed
    refused   client's error, limit, or left      recent   all others

Each kind has its own ring, in which the newest request replaces the oldest, so many requests of one kind do not
displace the others. Records are stored as they are; details are computed only on request.
"""

from collections import deque
from heapq import nlargest
from itertools import chain
from operator import attrgetter

from gateway.explorer.request_details import RequestDetails, brief, request_details
from gateway.explorer.request_query import RequestQuery
from gateway.telemetry.outcome import is_slow, outcome_of
from gateway.telemetry.request_record import OK, RequestRecord

KINDS = ("failed", "slow", "refused", "recent")


class RequestStore:
    """An observer that keeps the latest finished requests, `kept_max` of each kind."""

    def __init__(self, gateway: str, *, kept_max: int, slow_seconds: float) -> None:
        self._gateway = gateway
        self._kept_max = kept_max
        self._slow_seconds = slow_seconds
        self._rings: dict[str, deque[RequestRecord]] = {kind: deque() for kind in KINDS}
        self._by_id: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def observe(self, record: RequestRecord) -> None:
        """Keep a request that has ended."""
        first, target = record.first_token_seconds, record.ttft_target_seconds
        in_time = record.seconds <= self._slow_seconds and (
            first is None or target is None or first <= target
        )
        ring = self._rings["recent" if in_time and record.code == OK else self._kind(record)]
        ring.append(record)
        self._by_id[record.id] = record
        if len(ring) > self._kept_max:
            self._by_id.pop(ring.popleft().id, None)

    def find(self, identity: str) -> RequestDetails | None:
        """Return the request with this id, if it is kept."""
        found = self._by_id.get(identity)
        return self._details(found) if found is not None else None

    def search(self, query: RequestQuery) -> list[RequestDetails]:
        """Return the kept requests that match, the latest first."""
        matching = (each for each in chain(*self._rings.values()) if query.matches(each, self._slow_seconds))
        latest = nlargest(query.limit, matching, key=attrgetter("started_at"))
        found = [self._details(record) for record in latest]
        return [brief(details) for details in found] if query.brief else found

    def _kind(self, record: RequestRecord) -> str:
        outcome = outcome_of(record)
        if outcome == "failed":
            return "failed"
        if outcome != "ok":
            return "refused"
        return "slow" if is_slow(record, self._slow_seconds) else "recent"

    def _details(self, record: RequestRecord) -> RequestDetails:
        return request_details(record, self._gateway, slow=is_slow(record, self._slow_seconds))
