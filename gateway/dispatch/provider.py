"""What makes a worker a provider: somebody else runs it for money, and it gets what no worker here can take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.model import Model
from gateway.quotas.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """`prices`: of models that cost there what they do not cost here. `after_seconds`: how long a request waits for
    a worker of ours; None: for its class's target."""

    prices: Mapping[str, Prices] = field(default_factory=dict)
    after_seconds: float | None = None

    def prices_of(self, model: Model) -> Prices | None:
        """None where it costs nothing."""
        return self.prices.get(model.name, model.prices)
