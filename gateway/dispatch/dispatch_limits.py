"""The bounds within which requests are dispatched, as the settings have them."""

from dataclasses import dataclass

from policies.queueing.cost_weights import CostWeights
from policies.service_class import BATCH, ServiceClass


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """The bounds within which requests are dispatched."""

    release_window_tokens: int
    """Uncached prompt tokens that one worker may have ahead; see policies/admission."""
    cost_weights: CostWeights
    """What a prompt token and an output token cost in the queue."""
    attempts_max: int
    """Workers tried for one request before its first byte."""
    batch: ServiceClass = BATCH
    """The class that late requests of other classes are demoted to."""
    background: bool = True
    """Whether batch work has queues of its own behind all others; a policy that orders by class needs none."""
    preempts: bool = False
    """Whether waiting requests may take the placements of batch requests that have no first byte yet."""
    hold: float | None = None
    """How much more than the best worker another may cost before a request waits: policies/admission/hold.py."""
