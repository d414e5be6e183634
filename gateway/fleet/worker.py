"""One worker as the gateway knows it: how to reach it, how it is, what it has to do, how fast it is."""

from dataclasses import dataclass, field

from gateway.fleet.loads import WorkerLoad
from gateway.fleet.provider import Provider
from gateway.fleet.response_shape import Shapes
from gateway.fleet.speeds import LearntSpeed
from gateway.queueing.shared.store import NOTHING
from radix_cache.match import WorkerId
from workers.adapter import WorkerAdapter, WorkerReport
from workers.adapters.disaggregation import half_of
from workers.kv_events.source import EventSource
from workers.load_reports.load_feed import LoadSource
from workers.probing.health import HealthState
from workers.worker import Half, Role, Speed, WorkerSnapshot

CHUNK_TOKENS = 8192
YOUNG_SECONDS = 3600.0
"""After this nobody asks how old a worker is."""


@dataclass(slots=True)
class Worker:
    """One worker as this gateway knows it. Changed by the fleet alone. `trouble`: why its last probe failed.
    `failures`: requests that it did not answer, or not to their end; `openings`: how often its circuit was opened.
    `learnt`: its speed so far. `told`, `told_loads`: where it publishes its KV events and its load, if the settings
    say; else it does itself. `began_at`: when it joined, came back or started anew; None: it has not been up yet.
    `role`: as the settings have it; with `both`, as it says itself. `priority`: its engine orders by it.
    `names_rank`: of several data-parallel ranks it is told which is to answer. `provider`: None for one of our own;
    it rests until `rests_until`. `shapes`: of its whole answers since it started.
    """

    id: WorkerId
    kind: str
    adapter: WorkerAdapter
    models: frozenset[str]
    models_fixed: bool
    role: Role = Role.BOTH
    told: tuple[EventSource, ...] | None = None
    told_loads: tuple[LoadSource, ...] | None = None
    priority: bool = False
    names_rank: bool = True
    provider: Provider | None = None
    rests_until: float = float("-inf")
    health: HealthState = field(default_factory=HealthState)
    load: WorkerLoad = field(default_factory=WorkerLoad)
    learnt: LearntSpeed = field(default_factory=LearntSpeed)
    shapes: Shapes = field(default_factory=Shapes)
    began_at: float | None = None
    report: WorkerReport = field(default_factory=WorkerReport)
    reported: bool = False
    failures: int = 0
    openings: int = 0
    trouble: str = ""

    @property
    def speed(self) -> Speed:
        return self.learnt.speed

    @property
    def half(self) -> Half | None:
        """None where it serves whole requests."""
        return half_of(self.kind, self.report.role if self.role is Role.BOTH else self.role)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks to choose from."""
        return self.report.ranks if self.names_rank else 1

    @property
    def able(self) -> bool:
        """May it get a new request? On trial it has one at a time."""
        if self.report.asleep:
            return False
        return self.health.routable and not (self.health.trial and self.load.streams)

    def snapshot(self, now: float) -> WorkerSnapshot:
        age = now - self.began_at if self.began_at is not None else 0.0
        half = self.half
        # Elsewhere a handed-over prompt keeps its place until its answer has ended, here it is gone by then.
        others = NOTHING if half is not None and half.role is Role.PREFILL else self.load.others
        foreign = self.load.foreign
        return WorkerSnapshot(
            id=self.id,
            health=self.health.health,
            tokens_queued=self.load.all_tokens_queued + foreign.tokens_queued,
            tokens_computed=self.load.computed(self.speed),
            streams=self.load.streams + others.streams + foreign.streams,
            kv_tokens=self.load.kv_tokens + others.kv_tokens + foreign.kv_tokens,
            kv_tokens_max=self.report.kv_tokens_max,
            chunk_tokens=self.report.chunk_tokens or CHUNK_TOKENS,
            speed=self.speed,
            age_seconds=age if age < YOUNG_SECONDS else None,
            half=half,
        )
