"""The activity of the last hour, for charts: a sample every ten seconds, summed over all gateways.

All gateways take their samples at the same times of the clock, so that they can be added.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from gateway.queueing.shared.gateway_reports import GatewayReports
from gateway.queueing.shared.keys import QueueKeys
from gateway.telemetry.overview import Overview
from radix_cache.redis.scripts import ScriptCaller

SAMPLE_SECONDS = 10
SAMPLES_MAX = 360
SUBJECT = "history"


class ActivitySample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The activity of ten seconds, and the state at their end. `at`: their end, in Unix time.

    `ttft_ms`: the median of the latest requests; null where there was none.
    """

    at: int
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_ms: float | None
    waiting: int
    streams: int


class HistoryReport(msgspec.Struct, kw_only=True):
    """The samples of all gateways, the oldest first. `sample_seconds`: the time that each covers."""

    data: list[ActivitySample]
    sample_seconds: int = SAMPLE_SECONDS


class ActivityHistory:
    """Takes the samples of this gateway, and reports those of all gateways. `handlers`: see TurnReader."""

    def __init__(
        self,
        overview: Overview,
        load: Callable[[], tuple[int, int]],
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        gateways: Callable[[], int],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create a history without samples.

        Args:
            overview: Counts the requests of this gateway.
            load: Returns how many requests wait at this gateway, and how many workers answer.
            scripts: Calls Redis.
            keys: Names of Redis keys.
            gateway: The name of this gateway in the queue.
            gateways: Returns how many gateways are alive.
            wall: Unix time in seconds.
        """
        self._overview = overview
        self._load = load
        self._wall = wall
        self._samples: deque[ActivitySample] = deque(maxlen=SAMPLES_MAX)
        self._before = overview.all.total
        self._reports = GatewayReports(
            scripts, keys, gateway, subject=SUBJECT, own=self._encoded, gateways=gateways
        )
        self.handlers = self._reports.handlers
        self.close = self._reports.close

    async def run(self) -> None:
        """Take a sample every ten seconds, until this coroutine is cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS - self._wall() % SAMPLE_SECONDS)
            self.sample()

    def sample(self) -> None:
        """Take a sample now."""
        overview, (waiting, streams) = self._overview, self._load()
        before, now = self._before, overview.all.total
        self._before = now
        recent = overview.shown(overview.all)["ttft_ms_p50"] if now.requests > before.requests else None
        self._samples.append(
            ActivitySample(
                at=round(self._wall() / SAMPLE_SECONDS) * SAMPLE_SECONDS,
                requests=now.requests - before.requests,
                errors=now.errors - before.errors,
                prompt_tokens=now.prompt_tokens - before.prompt_tokens,
                cached_tokens=now.cached_tokens - before.cached_tokens,
                output_tokens=now.output_tokens - before.output_tokens,
                ttft_ms=recent if isinstance(recent, float) else None,
                waiting=waiting,
                streams=streams,
            )
        )

    async def report(self) -> HistoryReport:
        """Return the samples of all gateways, without those that do not answer in time."""
        samples = [*self._samples]
        for text in await self._reports.gather():
            with suppress(msgspec.DecodeError):  # A gateway of another version reports in another form.
                samples += msgspec.json.decode(text, type=list[ActivitySample])
        return HistoryReport(data=_summed(samples))

    def _encoded(self, question: str) -> bytes:
        return msgspec.json.encode([*self._samples])


def _summed(samples: Iterable[ActivitySample]) -> list[ActivitySample]:
    """Return one sample for each time."""
    by_moment: Mapping[int, list[ActivitySample]] = defaultdict(list)
    for sample in samples:
        by_moment[sample.at].append(sample)
    return [_sum(at, parts) for at, parts in sorted(by_moment.items())][-SAMPLES_MAX:]


def _sum(at: int, parts: list[ActivitySample]) -> ActivitySample:
    if len(parts) == 1:
        return parts[0]
    known = [(part.ttft_ms, part.requests) for part in parts if part.ttft_ms is not None]
    weight = sum(requests for _, requests in known)
    return ActivitySample(
        at=at,
        requests=sum(part.requests for part in parts),
        errors=sum(part.errors for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        ttft_ms=sum(ms * requests for ms, requests in known) / weight if weight else None,
        waiting=sum(part.waiting for part in parts),
        streams=sum(part.streams for part in parts),
    )
