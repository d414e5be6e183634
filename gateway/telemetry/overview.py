"""Totals for the operator page: since the start and over the last minute, by tenant and by worker.

`Overview` is an observer of request records. The last minute is kept in buckets of one second, so that memory does
not grow with load.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from gateway.telemetry.record import OK, OTHER_TENANTS, RequestRecord

MINUTE_SECONDS = 60
TENANTS_MAX = 4096
TTFT_REMEMBERED = 128
"""How many values are kept for each tenant and worker to take a median of: four kilobytes."""


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

    def add(self, record: RequestRecord) -> None:
        """Add one request."""
        self.requests += 1
        self.errors += record.code != OK
        self.refused += not record.answered
        if record.answered:
            self.prompt_tokens += record.prompt_tokens
            self.cached_tokens += record.cached_tokens or 0
            self.predicted_tokens += record.predicted_tokens
            self.output_tokens += record.output_tokens

    def plus(self, other: "RequestTotals") -> "RequestTotals":
        """Return the sums of both."""
        return RequestTotals(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def shown(self) -> dict[str, float | int | None]:
        """Return the sums as JSON fields, with the hit ratio by tokens (None where no prompt was answered)."""
        ratio = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None
        return {**asdict(self), "hit_ratio": ratio}


class Activity:
    """The requests of one tenant or worker: all of them, and those of the last minute."""

    def __init__(self) -> None:
        self.total = RequestTotals()
        self._seconds: deque[tuple[int, RequestTotals]] = deque()
        self._ttft: deque[float] = deque(maxlen=TTFT_REMEMBERED)
        self._ttft_errors: deque[float] = deque(maxlen=TTFT_REMEMBERED)

    def add(self, record: RequestRecord, second: int) -> None:
        """Add one request that ended in this second."""
        self.total.add(record)
        self._forget(second)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, RequestTotals()))
        self._seconds[-1][1].add(record)
        if record.ttft_seconds is not None:
            self._ttft.append(record.ttft_seconds)
        measured, expected = record.worker_ttft_seconds, record.predicted_ttft_seconds
        if measured and expected is not None:
            self._ttft_errors.append(abs(expected - measured) / measured)

    def shown(self, second: int) -> dict[str, object]:
        """Return the totals and medians as JSON fields, as of this second."""
        self._forget(second)
        minute = RequestTotals()
        for _, totals in self._seconds:
            minute = minute.plus(totals)
        return {
            "total": self.total.shown(),
            "minute": minute.shown(),
            "ttft_ms_p50": median(self._ttft) * 1000 if self._ttft else None,
            "ttft_error_p50": median(self._ttft_errors) if self._ttft_errors else None,
        }

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - MINUTE_SECONDS:
            self._seconds.popleft()


class Overview:
    """The activity of all requests, of each tenant and of each worker; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.all = Activity()
        self.tenants: defaultdict[str, Activity] = defaultdict(Activity)
        self.workers: defaultdict[str, Activity] = defaultdict(Activity)

    def observe(self, record: RequestRecord) -> None:
        """Add one request that has ended."""
        second = int(self._clock())
        self.all.add(record, second)
        # Requests without a valid key have no tenant; they count in all, not in a row of their own.
        if record.tenant:
            known = record.tenant in self.tenants or len(self.tenants) < TENANTS_MAX
            self.tenants[record.tenant if known else OTHER_TENANTS].add(record, second)
        if record.worker is not None:
            self.workers[record.worker].add(record, second)

    def shown(self, activity: Activity) -> dict[str, object]:
        """Return the totals and medians of one activity as JSON fields, as of now."""
        return activity.shown(int(self._clock()))
