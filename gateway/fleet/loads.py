"""The work under way on each worker, and one request's share of that work.

    start                 first token               end
    |-- tokens_queued ----|
    |-- streams, kv_tokens ---------------------------|

A share counts from the moment its request is sent, not from the moment it is answered: the next routing decision, a
microsecond later, must count it. The work of the other gateways is what Redis reported last
(gateway/queueing/shared/membership.py) and what they announced since (announced_dispatches.py);
policies/others_load.py estimates from both what is left of it between two reports. The engine's own reports
(load_feeds.py, else the probes of fleet.py) add what comes from outside all gateways. `WorkerLoad` joins them all.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gateway.fleet.external_load import ExternalLoad
from policies.latency_model import computed_tokens
from policies.others_load import NO_TOTALS, LoadTotals, OthersLoad, must_be_computed_at
from radix_cache.match import WorkerId
from workers.load_reports.engine_loads import NO_LOAD, EngineLoad
from workers.load_reports.load_subscriber import SILENT_SECONDS
from workers.worker import Speed

EXTERNAL_WINDOW_SECONDS = 1.0
"""Length of a window of ExternalLoad: by then other gateways' requests are announced to this one."""


REPORT_AHEAD_SECONDS = 0.01
"""Redis may report a dispatch up to this long before its announcement arrives.

Measured with four gateways on one Valkey, on a busy machine of two cores: 14 ms (median; 4 ms at least, 12 ms with
eight requests at once) from the call for a place on a worker to the moment that Redis has the announcement. The
call takes 5 of them; the other gateways have the announcement 1 ms later.
"""

Loads = Mapping[WorkerId, LoadTotals]


@dataclass(slots=True)
class WorkerLoad:
    """The work under way on one worker, as far as this gateway has counted it.

    See WorkerSnapshot for `tokens_queued`, `streams` and `kv_tokens`.
    """

    tokens_queued: int = 0
    streams: int = 0
    kv_tokens: int = 0
    others: LoadTotals = NO_TOTALS
    """The share of the other gateways."""
    busy_since: float = 0.0
    """The last first token of any gateway, or when prefills began to queue; `computed` extrapolates from it."""
    read_at: float | None = None
    """When the worker's load feed last reported all of its ranks."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, never backwards."""
    external: EngineLoad = NO_LOAD
    """The work that reached the worker without any gateway."""
    on_change: tuple["partial[None]", ...] = ()
    """Called after every change of the load, and of what else ranks the worker among others."""
    _external_estimate: ExternalLoad = field(default_factory=ExternalLoad)
    _others_estimate: OthersLoad[bytes] = field(default_factory=OthersLoad)

    @property
    def has_load_feed(self) -> bool:
        """Whether readings of the worker's load feed arrive; without them its probes report its load."""
        return self.read_at is not None and self.clock() - self.read_at < SILENT_SECONDS

    @property
    def all_tokens_queued(self) -> int:
        """Tokens queued by all gateways."""
        return self.tokens_queued + self.others.tokens_queued

    @property
    def all_streams(self) -> int:
        """Requests under way of all gateways."""
        return self.streams + self.others.streams

    def update_others(self, others: LoadTotals) -> None:
        """Take over the share of the other gateways, as Redis reports it."""
        now = self.clock()
        self._others_estimate.report(others, now + REPORT_AHEAD_SECONDS)
        self._update_others(now)

    def forget_others(self) -> None:
        """Drop the share of the other gateways: it is not reported any more."""
        self._others_estimate.forget()
        self._update_others(self.clock())

    def count_dispatch_elsewhere(
        self, request: bytes, *, uncached_tokens: int, kv_tokens: int, sent_at: float, speed: Speed
    ) -> None:
        """Count a request that another gateway has sent here; `speed`: the worker's."""
        ahead = self.all_tokens_queued - self.computed(speed)
        self._others_estimate.dispatched(
            request,
            uncached_tokens=uncached_tokens,
            kv_tokens=kv_tokens,
            sent_at=sent_at,
            ready_at=must_be_computed_at(sent_at, ahead + uncached_tokens, speed),
        )
        self._update_others(self.clock())

    def compute_dispatch_elsewhere(self, request: bytes) -> None:
        """Take the prompt of a request of another gateway off the queue: it is computed."""
        now = self.clock()
        self._others_estimate.computed(request, now)
        self._update_others(now)

    def end_dispatch_elsewhere(self, request: bytes) -> None:
        """Take off a request of another gateway that has ended."""
        now = self.clock()
        self._others_estimate.ended(request, now)
        self._update_others(now)

    def _update_others(self, now: float) -> None:
        self._others_estimate.take_off_computed(now)
        others, before = self._others_estimate.totals, self.others.tokens_queued
        if others.tokens_queued < before or (others.tokens_queued and not self.all_tokens_queued):
            self.busy_since = now
        self.others = others
        for changed in self.on_change:
            changed()

    def update_from_probe(self, load: EngineLoad | None) -> None:
        """Take over the load that a probe reports, unless the worker has a load feed."""
        if not self.has_load_feed:
            self._update_external(load, self.clock(), 0.0)

    def update_from_feed(self, load: EngineLoad) -> None:
        """Take over the load that the worker's load feed reports for all ranks together."""
        self.read_at = self.clock()
        self._update_external(load, self.read_at, EXTERNAL_WINDOW_SECONDS)

    def _update_external(self, load: EngineLoad | None, now: float, window_seconds: float) -> None:
        self._external_estimate.update(self._beyond_gateways(load), now, window_seconds)
        self.external = self._external_estimate.load
        for changed in self.on_change:
            changed()

    def _beyond_gateways(self, load: EngineLoad | None) -> EngineLoad:
        """Return the part of the engine's load that no gateway sent."""
        if load is None:
            return NO_LOAD
        others = self.others
        return load.excess_over(
            self.streams + others.streams, self.all_tokens_queued, self.kv_tokens + others.kv_tokens
        )

    def computed(self, speed: Speed) -> int:
        """Estimate how many of the queued tokens the worker has computed by now."""
        queued = self.tokens_queued + self.others.tokens_queued
        if not queued:
            return 0
        return computed_tokens(1000 * (self.clock() - self.busy_since), queued, speed)


class LoadShare:
    """One request's share of a worker's load, from its dispatch to its end. Ending it twice has no effect."""

    __slots__ = ("_kv_tokens", "_load", "tokens_queued")

    def __init__(self, load: WorkerLoad, *, uncached_tokens: int, kv_tokens: int) -> None:
        self._load: WorkerLoad | None = load
        self.tokens_queued = uncached_tokens
        self._kv_tokens = kv_tokens
        if not load.tokens_queued and not load.others.tokens_queued:
            load.busy_since = load.clock()
        load.tokens_queued += uncached_tokens
        load.kv_tokens += kv_tokens
        load.streams += 1
        for changed in load.on_change:
            changed()

    @property
    def tokens_computing(self) -> int:
        """Tokens of the worker's window that this request takes until its prefill is done."""
        return self.tokens_queued

    def note_first_token(self) -> None:
        """Take the request's prompt off the queue: its prefill is done."""
        load = self._load
        if load is not None and self.tokens_queued:
            load.tokens_queued -= self.tokens_queued
            load.busy_since = load.clock()
            self.tokens_queued = 0
            for changed in load.on_change:
                changed()

    def end(self) -> None:
        """Take the request off the worker's load."""
        load = self._load
        if load is not None:
            if self.tokens_queued:
                self.note_first_token()
            load.kv_tokens -= self._kv_tokens
            load.streams -= 1
            self._load = None
            for changed in load.on_change:
                changed()
