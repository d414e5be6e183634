"""Totals for the console: since the start and over the last minute, by tenant and by worker.

`Overview` is an observer of request records. The last minute is kept in buckets of one second, so that memory does
not grow with load, nor with workers that come and go: those that have left are dropped by `keep_workers`.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from heapq import nlargest
from statistics import median

from gateway.telemetry.request_record import OK, OTHER_TENANTS, RequestRecord

MINUTE_SECONDS = 60
TENANTS_MAX = 4096
TTFT_REMEMBERED = 128
"""How many values are kept for the medians of each tenant and worker: four kilobytes."""


@dataclass(slots=True)
class RequestTotals:
    """Sums over requests; tokens are those of answered requests."""

    requests: int = 0
    errors: int = 0
    refused: int = 0  # ended by the gateway or the client before a worker had begun to answer
    prompt_tokens: int = 0
    cached_tokens: int = 0  # as workers reported
    predicted_tokens: int = 0  # cached tokens that routing expected
    output_tokens: int = 0

    def add(self, other: "RequestTotals") -> None:
        """Add the sums of other requests."""
        self.requests += other.requests
        self.errors += other.errors
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.predicted_tokens += other.predicted_tokens
        self.output_tokens += other.output_tokens

    def shown(self) -> dict[str, float | int | None]:
        """Return the sums as JSON fields, with the hit ratio by tokens (None where no prompt was answered)."""
        ratio = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None
        return {**asdict(self), "hit_ratio": ratio}


class Activity:
    """The requests of one tenant or worker: all of them, and those of the last minute."""

    def __init__(self) -> None:
        self._past = RequestTotals()  # requests that ended before those of `_seconds`
        self._seconds: deque[tuple[int, RequestTotals]] = deque()  # (second, its requests), the oldest first
        self._newest = RequestTotals()  # requests of the last one of `_seconds`
        self._newest_second: int | None = None
        self._ttft: deque[float] = deque(maxlen=TTFT_REMEMBERED)
        self._ttft_errors: deque[float] = deque(maxlen=TTFT_REMEMBERED)

    @property
    def total(self) -> RequestTotals:
        """Sums over all requests."""
        total = self._minute()
        total.add(self._past)
        return total

    def add(self, record: RequestRecord, second: int) -> None:
        """Add one request that ended in this second; seconds never go back."""
        if second != self._newest_second:
            self._begin(second)
        totals = self._newest
        totals.requests += 1
        if record.code != OK:
            totals.errors += 1
        if record.answered:
            totals.prompt_tokens += record.prompt_tokens
            totals.cached_tokens += record.cached_tokens or 0
            totals.predicted_tokens += record.predicted_tokens
            totals.output_tokens += record.output_tokens
        else:
            totals.refused += 1
        if record.ttft_seconds is not None:
            self._ttft.append(record.ttft_seconds)
        measured, expected = record.worker_ttft_seconds, record.predicted_ttft_seconds
        if measured and expected is not None:
            self._ttft_errors.append(abs(expected - measured) / measured)

    def shown(self, second: int) -> dict[str, object]:
        """Return the totals and medians as JSON fields, as of this second."""
        self._forget(second)
        minute = self._minute()
        total = replace(minute)
        total.add(self._past)
        return {
            "total": total.shown(),
            "minute": minute.shown(),
            "ttft_ms_p50": median(self._ttft) * 1000 if self._ttft else None,
            "ttft_error_p50": median(self._ttft_errors) if self._ttft_errors else None,
        }

    def requests(self, second: int) -> tuple[int, int]:
        """Return the requests of the last minute as of this second, and all requests."""
        self._forget(second)
        minute = sum(totals.requests for _, totals in self._seconds)
        return minute, minute + self._past.requests

    def _minute(self) -> RequestTotals:
        """Return the sums over the seconds that are kept."""
        minute = RequestTotals()
        for _, totals in self._seconds:
            minute.add(totals)
        return minute

    def _begin(self, second: int) -> None:
        """Begin to count the requests of another second, and drop those of a minute ago."""
        self._forget(second)
        self._newest, self._newest_second = RequestTotals(), second
        self._seconds.append((second, self._newest))

    def _forget(self, second: int) -> None:
        """Move the seconds of more than a minute ago into the past."""
        while self._seconds and self._seconds[0][0] <= second - MINUTE_SECONDS:
            self._past.add(self._seconds.popleft()[1])


class Overview:
    """The activity of all requests, of each tenant and of each worker; `clock` is monotonic, in seconds.

    `by_shadow`: the activity of requests whose worker the shadow policy chose.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.all = Activity()
        self.by_shadow = Activity()
        self.tenants: defaultdict[str, Activity] = defaultdict(Activity)
        self.workers: defaultdict[str, Activity] = defaultdict(Activity)

    def observe(self, record: RequestRecord) -> None:
        """Add one request that has ended."""
        second = int(self._clock())
        self.all.add(record, second)
        # Requests without a valid key have no tenant; they count in all, not in a row of their own.
        tenant = record.tenant
        if tenant:
            if tenant not in self.tenants and len(self.tenants) >= TENANTS_MAX:
                tenant = OTHER_TENANTS
            self.tenants[tenant].add(record, second)
        if record.worker is not None:
            self.workers[record.worker].add(record, second)
        if record.by_shadow:
            self.by_shadow.add(record, second)

    def keep_workers(self, present: AbstractSet[str]) -> None:
        """Drop the activity of all workers but these, which are in the fleet."""
        for worker in self.workers.keys() - present:
            del self.workers[worker]

    def shown(self, activity: Activity) -> dict[str, object]:
        """Return the totals and medians of one activity as JSON fields, as of now."""
        return activity.shown(int(self._clock()))

    def busiest(self, activities: Mapping[str, Activity], most: int) -> dict[str, dict[str, object]]:
        """Return, as JSON fields, the activities with the most requests in the last minute, then of all time."""
        second = int(self._clock())
        found = nlargest(most, activities.items(), key=lambda each: each[1].requests(second))
        return {name: activity.shown(second) for name, activity in found}
