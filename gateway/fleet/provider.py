"""What makes a worker a provider: somebody else runs it for money, and it gets what no worker here can take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.model import Model
from gateway.quotas.limit import Limit
from gateway.quotas.prices import Prices
from workers.adapter import WorkerUnreachable

REST_SECONDS = 1.0
"""After a 429 that does not say for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """`prices`: of models that cost there what they do not cost here. `after_seconds`: how long a request waits for
    a worker of ours; None: for its class's target. `rest_seconds_max`: so long it is let alone at most. `limits`:
    what all gateways together may ask of it."""

    prices: Mapping[str, Prices] = field(default_factory=dict)
    after_seconds: float | None = None
    rest_seconds_max: float = 60.0
    limits: tuple[Limit, ...] = ()

    def prices_of(self, model: Model) -> Prices | None:
        """None where it costs nothing."""
        return self.prices.get(model.name, model.prices)

    def rest_seconds(self, cause: WorkerUnreachable) -> float:
        """How long it wants to be asked for nothing, being busy; 0 where it does not say so."""
        told = cause.retry_after_seconds
        if told is None:
            return min(REST_SECONDS, self.rest_seconds_max) if cause.rate_limited else 0.0
        return min(told, self.rest_seconds_max)
