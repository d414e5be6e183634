"""The terms of an outside provider: a paid service that gets the requests which no worker of our own can take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.model import Model
from gateway.quotas.limit import Limit
from gateway.quotas.prices import Prices
from workers.adapter import WorkerFailed

REST_SECONDS = 1.0
"""How long a provider gets no requests after a 429 that does not name a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The terms on which requests are sent to an outside provider."""

    prices: Mapping[str, Prices] = field(default_factory=dict)
    """Prices by model, where tenants pay others for its answers than for those of our workers."""
    after_seconds: float | None = None
    """How long a request waits for a worker of our own first; None: for the target of its service class."""
    rest_seconds_max: float = 60.0
    """Longest time for which the provider gets no requests after a 429 with Retry-After."""
    limits: tuple[Limit, ...] = ()
    """What all gateways together may use of the provider."""

    def prices_of(self, model: Model) -> Prices | None:
        """Return the prices that tenants pay for its answers; None where the model costs nothing."""
        return self.prices.get(model.name, model.prices)

    def rest_seconds(self, cause: WorkerFailed) -> float:
        """Return for how many seconds a provider gets no requests after this failure; 0 if it was not too busy."""
        asked_seconds = cause.retry_after_seconds
        if asked_seconds is None:
            return min(REST_SECONDS, self.rest_seconds_max) if cause.rate_limited else 0.0
        return min(asked_seconds, self.rest_seconds_max)
