"""One worker of the fleet: its address, health, load and speed."""

import asyncio
from dataclasses import dataclass, field

from gateway.fleet.loads import WorkerLoad
from gateway.fleet.provider import Provider
from gateway.fleet.response_shape import ResponseShapes
from gateway.fleet.worker_health import WorkerHealth
from policies.latency_model import computed_tokens
from policies.others_load import NO_TOTALS
from policies.speeds import LearntSpeed
from radix_cache.match import WorkerId
from workers.adapter import WorkerAdapter, WorkerReport
from workers.adapters.disaggregation import disaggregation_profile
from workers.kv_events.source import EventSource
from workers.load_reports.load_subscriber import LoadSource
from workers.worker import DisaggregationProfile, Role, Speed, WorkerSnapshot

CHUNK_TOKENS = 8192
AGE_REPORTED_SECONDS_MAX = 3600.0
"""From this age on, policies do not get a worker's age."""


@dataclass(slots=True)
class Worker:
    """One worker of the fleet. Only the fleet changes its fields."""

    id: WorkerId
    kind: str
    adapter: WorkerAdapter
    models: frozenset[str]
    models_fixed: bool
    """True when the settings name the models; else the worker's probes do."""
    role: Role = Role.BOTH
    """The role in the settings; with `BOTH`, the worker's own report decides."""
    event_sources: tuple[EventSource, ...] | None = None
    """Where the worker publishes its KV events, by the settings; None: the worker reports it."""
    load_sources: tuple[LoadSource, ...] | None = None
    """Where the worker publishes its load, by the settings; None: the worker reports it."""
    address: str = ""
    """Host and port that requests go to, as in `10.0.0.7:8000`."""
    priority: bool = False
    """Whether the engine orders requests by the `priority` field."""
    names_rank: bool = True
    """Whether requests name the data-parallel rank that is to answer."""
    provider: Provider | None = None
    """The terms of an outside provider; None for a worker of our own."""
    known_slots: int | None = None
    """Requests that it runs at a time, by the settings; None: the worker reports it, or it is not known."""
    away_tokens: int = 0
    """Tokens that routing counts as queued in addition, because the worker is at home in another cell."""
    rests_until: float = float("-inf")
    """A provider gets no requests before this moment."""
    health: WorkerHealth = field(default_factory=WorkerHealth)
    load: WorkerLoad = field(default_factory=WorkerLoad)
    learnt: LearntSpeed = field(default_factory=LearntSpeed)
    """The speed learnt from its answers."""
    response_shapes: ResponseShapes = field(default_factory=ResponseShapes)
    """The shapes of its whole answers since it started."""
    began_at: float | None = None
    """When it joined, was up again or restarted; None: it has not been up yet."""
    report: WorkerReport = field(default_factory=WorkerReport)
    reported: bool = False
    probed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its first probe has ended, answered or not."""
    failures: int = 0
    """Requests that it did not answer, or not to their end."""
    openings: int = 0
    """How often its circuit breaker opened."""
    trouble: str = ""
    """Why its last probe failed."""

    @property
    def speed(self) -> Speed:
        """The speed that routing predicts with."""
        return self.learnt.speed

    @property
    def disaggregation(self) -> DisaggregationProfile | None:
        """Its half of a prefill/decode pair; None for a worker that serves whole requests."""
        role = self.report.role if self.role is Role.BOTH else self.role
        return disaggregation_profile(self.kind, role) if role is not Role.BOTH else None

    @property
    def ranks(self) -> int:
        """How many data-parallel ranks a request can choose from."""
        return self.report.ranks if self.names_rank else 1

    @property
    def models_known(self) -> bool:
        """Whether it is known which models it serves: the settings name them, or it has reported them."""
        return self.models_fixed or self.reported

    @property
    def slots(self) -> int | None:
        """Requests that its engine runs at a time; None if that is not known."""
        return self.known_slots if self.known_slots is not None else self.report.slots

    @property
    def able(self) -> bool:
        """Whether it may get a new request: it is routable and awake. A worker on trial gets one at a time."""
        if self.report.asleep:
            return False
        return self.health.routable and not (self.health.on_trial and self.load.streams)

    def snapshot(self, now: float) -> WorkerSnapshot:
        """Return the worker's state at this moment, for policies."""
        load, report, speed = self.load, self.report, self.learnt.speed
        disaggregation = None
        if self.role is not Role.BOTH or report.role is not Role.BOTH:
            disaggregation = self.disaggregation
        age = now - self.began_at if self.began_at is not None else 0.0
        others, external = load.others, load.external
        tokens_queued = load.tokens_queued + others.tokens_queued
        computed = 0
        if tokens_queued:
            computed = computed_tokens(1000 * (load.clock() - load.busy_since), tokens_queued, speed)
        if disaggregation is not None and disaggregation.role is Role.PREFILL:
            # Other gateways count a handed-over prompt until its answer has ended; here it is gone by then.
            others = NO_TOTALS
        return WorkerSnapshot(
            id=self.id,
            health=self.health.state,
            tokens_queued=tokens_queued + external.tokens_queued + self.away_tokens,
            away_tokens=self.away_tokens,
            tokens_computed=computed,
            streams=load.streams + others.streams + external.streams,
            kv_tokens=load.kv_tokens + others.kv_tokens + external.kv_tokens,
            kv_tokens_max=report.kv_tokens_max,
            chunk_tokens=report.chunk_tokens or CHUNK_TOKENS,
            speed=speed,
            age_seconds=age if age < AGE_REPORTED_SECONDS_MAX else None,
            disaggregation=disaggregation,
        )
