"""What is under way on each worker, from this gateway and from the others, and places: one request's share of it.

    enter                 first token               leave
    |-- tokens_queued ----|
    |-- streams, kv_tokens ---------------------------|

Counted when a request is sent, not when it is answered: the next decision, a microsecond later, must see it. What
the other gateways have there is what Redis said last (gateway/queueing/shared/membership.py).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.fleet.external_load import Foreign
from gateway.queueing.shared.store import NOTHING, Load
from policies.latency_model import computed_tokens
from workers.load_reports.engine_loads import NO_LOAD, EngineLoad
from workers.load_reports.load_feed import SILENT_SECONDS
from workers.worker import Speed

FOREIGN_SECONDS = 1.0
"""So long after a request began or ended elsewhere, its gateway may not have been heard yet."""


@dataclass(slots=True)
class WorkerLoad:
    """Sums over the places of one worker; see WorkerSnapshot. `others`: the other gateways' share. `heard_at`: when
    its load feed last told of all its ranks.

    `busy_since`: the last first token, of whichever gateway, or when prefills began to be ahead; what has been
    computed since then is estimated (policies/latency_model). `clock`: seconds, never backwards.
    """

    tokens_queued: int = 0
    streams: int = 0
    kv_tokens: int = 0
    others: Load = NOTHING
    busy_since: float = 0.0
    heard_at: float | None = None
    clock: Callable[[], float] = time.monotonic
    _foreign: Foreign = field(default_factory=Foreign)

    @property
    def foreign(self) -> EngineLoad:
        """What came to it some other way."""
        return self._foreign.load

    @property
    def is_heard(self) -> bool:
        """Does its load feed say how busy it is? Else it is asked."""
        return self.heard_at is not None and self.clock() - self.heard_at < SILENT_SECONDS

    @property
    def all_tokens_queued(self) -> int:
        """Of all gateways."""
        return self.tokens_queued + self.others.tokens_queued

    def told(self, others: Load) -> None:
        """What the other gateways have there now."""
        before = self.others.tokens_queued
        if others.tokens_queued < before or (others.tokens_queued and not self.all_tokens_queued):
            self.busy_since = self.clock()
        self.others = others

    def reported(self, load: EngineLoad | None) -> None:
        """What the engine says that it has, when it is asked; a load feed knows it sooner."""
        if not self.is_heard:
            self._foreign.told(self._beyond(load), self.clock(), 0.0)

    def heard(self, load: EngineLoad) -> None:
        """What its load feed says, of all ranks."""
        self.heard_at = self.clock()
        self._foreign.told(self._beyond(load), self.heard_at, FOREIGN_SECONDS)

    def _beyond(self, load: EngineLoad | None) -> EngineLoad:
        """What the engine has more than all gateways."""
        if load is None:
            return NO_LOAD
        others = self.others
        return load.beyond(
            self.streams + others.streams, self.all_tokens_queued, self.kv_tokens + others.kv_tokens
        )

    def computed(self, speed: Speed) -> int:
        """Tokens ahead that have been computed by now."""
        queued = self.all_tokens_queued
        if not queued:
            return 0
        return computed_tokens(1000 * (self.clock() - self.busy_since), queued, speed)


class Place:
    """One request on one worker. `left` whatever happens; leaving twice is leaving once."""

    __slots__ = ("_kv_tokens", "_load", "tokens_queued")

    def __init__(self, load: WorkerLoad, *, uncached_tokens: int, kv_tokens: int) -> None:
        self._load: WorkerLoad | None = load
        self.tokens_queued = uncached_tokens
        self._kv_tokens = kv_tokens
        if not load.all_tokens_queued:
            load.busy_since = load.clock()
        load.tokens_queued += uncached_tokens
        load.kv_tokens += kv_tokens
        load.streams += 1

    @property
    def tokens_computing(self) -> int:
        """What it takes of a window until its prefill is done."""
        return self.tokens_queued

    def first_token(self) -> None:
        """Its prefill is done."""
        if self._load is not None and self.tokens_queued:
            self._load.tokens_queued -= self.tokens_queued
            self._load.busy_since = self._load.clock()
            self.tokens_queued = 0

    def leave(self) -> None:
        self.first_token()
        if self._load is not None:
            self._load.kv_tokens -= self._kv_tokens
            self._load.streams -= 1
            self._load = None
