"""The routing rules that can be simulated, by name: the gateway's policies and the baselines of other gateways."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.registry import OptionsInvalid, PolicyError, routing_names, routing_policy
from policies.routing.protocol import RoutingPolicy
from policies.simulation.baselines.aibrix import Aibrix
from policies.simulation.baselines.dynamo import Dynamo
from policies.simulation.baselines.llmd import Llmd
from policies.simulation.baselines.preble import Preble
from policies.simulation.baselines.sglang import Sglang

BASELINES: dict[str, type[Any]] = {rule.name: rule for rule in (Sglang, Aibrix, Llmd, Dynamo, Preble)}


def contender_names() -> list[str]:
    """Return the names of all policies, then those of the baselines."""
    return [*routing_names(), *sorted(BASELINES)]


def contender(name: str, options: Mapping[str, Any]) -> RoutingPolicy:
    """Return the policy or baseline of that name, with its options checked. Raises PolicyError."""
    rule = BASELINES.get(name)
    if rule is None:
        try:
            return routing_policy(name, options)
        except OptionsInvalid:
            raise
        except PolicyError as err:
            if name in routing_names():
                raise
            raise PolicyError(
                f"there is no policy {name!r}; there are {', '.join(contender_names())}"
            ) from err
    try:
        policy: RoutingPolicy = rule(msgspec.convert(dict(options), rule.options_type, strict=False))
    except msgspec.ValidationError as err:
        raise OptionsInvalid(name, str(err), rule.options_type) from err
    return policy
