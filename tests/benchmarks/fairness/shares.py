"""The evenness of a run: the service of tenants against max-min fair shares."""

from collections.abc import Mapping, Sequence
from math import inf

from policies.queueing.cost_weights import CostWeights
from policies.queueing.fairness_account import jain
from policies.simulation.outcome import Outcome

COSTS = CostWeights()


def evenness(outcomes: Sequence[Outcome], weights: Mapping[str, float], until: float) -> float:
    """Return Jain's index over tenants of received by due cost units, of requests begun before `until`."""
    wanted, got = received(outcomes, inf), received(outcomes, until)
    due = max_min(wanted, weights, sum(got.values()))
    return jain(got.get(tenant, 0.0) / units for tenant, units in due.items() if units > 0)


def received(outcomes: Sequence[Outcome], until: float) -> dict[str, float]:
    """Return the cost units of each tenant's requests begun before `until`, of all requests if it is inf."""
    found: dict[str, float] = {}
    for one in outcomes:
        if until < inf and (one.first_at is None or one.first_at > until):
            continue
        units = COSTS.units(
            uncached_tokens=one.prompt_tokens - one.cached_tokens,
            cached_tokens=one.cached_tokens,
            output_tokens=one.output_tokens,
        )
        found[one.tenant] = found.get(one.tenant, 0.0) + units
    return found


def max_min(wanted: Mapping[str, float], weights: Mapping[str, float], there: float) -> dict[str, float]:
    """Share capacity by weight; no tenant gets more than it wants, and what is left over is shared again."""
    due: dict[str, float] = {}
    left = sorted(wanted, key=lambda tenant: wanted[tenant] / weights.get(tenant, 1.0))
    weight = sum(weights.get(tenant, 1.0) for tenant in left)
    for tenant in left:
        own = weights.get(tenant, 1.0)
        due[tenant] = min(wanted[tenant], there * own / weight)
        there, weight = max(0.0, there - due[tenant]), weight - own
        if weight <= 0:
            break
    return due
