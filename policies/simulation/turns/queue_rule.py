"""The rules of a simulated queue: its policies, by name, and the weights of its tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.admission.search_bounds import passed_over_max
from policies.registry import queue_policy, tenant_order
from policies.simulation.turns.tenants_by_tag import TenantsByTag
from policies.simulation.turns.turn_queue import TurnQueue

RELEASE_WINDOW_TOKENS = 16_384
"""Default of the setting `queueing.release_window_tokens`."""

REQUESTS = "requests"
"""Name in place of a policy: start-time fair queueing in which every request costs the same, however long it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """The rules of a queue."""

    across: str = "sfq"
    """Name of the queue policy across tenants, or REQUESTS."""
    within: str = "hrrn"
    """Name of the order inside a tenant."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants; 1 by default."""
    hold: float | None = 0.0
    """Share by which a worker may be more expensive than the best; see hold.close_enough_to_best."""

    def queue(self, *, workers: int = 0, by_tag: bool = False) -> TurnQueue:
        """Make an empty queue with these rules, for so many workers; `by_tag`: tenants are in order, as in Redis.

        Raises PolicyError.
        """
        by_requests = self.across == REQUESTS
        policy = queue_policy("sfq" if by_requests else self.across)
        return TurnQueue(
            policy,
            tenant_order(self.within),
            self.weights,
            by_requests=by_requests,
            passed_over_max=passed_over_max(workers if by_tag else 0) if self.hold is not None else 0,
            by_tag=TenantsByTag() if by_tag and policy.name == "sfq" else None,
        )
