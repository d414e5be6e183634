"""The registry of policies by name: the built-in ones, and those that other packages bring by entry point.

A package adds a policy with an entry point that names its class, in the group `radixgate.routing_policies`,
`radixgate.queue_policies` (the order across tenants) or `radixgate.queue_orders` (the order inside one tenant).
No policy registers itself by being imported.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from policies.queueing.dlpm import Dlpm
from policies.queueing.fifo import Fifo
from policies.queueing.priority import Priority
from policies.queueing.protocol import QueueOptions, QueuePolicy, TenantOrder
from policies.queueing.sfq import Sfq
from policies.queueing.tenant_order.edf import Edf
from policies.queueing.tenant_order.fcfs import Fcfs
from policies.queueing.tenant_order.hrrn import Hrrn
from policies.queueing.tenant_order.longest_prefix import LongestPrefix
from policies.queueing.vtc import Vtc
from policies.routing.checked_policy import checked
from policies.routing.chwbl import Chwbl
from policies.routing.cost import CostPolicy
from policies.routing.least_work import LeastWork
from policies.routing.lmetric import LmetricPolicy
from policies.routing.p2c import PowerOfTwo
from policies.routing.protocol import PolicyOptions, RoutingPolicy
from policies.routing.round_robin import RoundRobin
from policies.routing.session import SessionPolicy

ROUTING_GROUP = "radixgate.routing_policies"
QUEUE_GROUP = "radixgate.queue_policies"
ORDER_GROUP = "radixgate.queue_orders"

BUILT_IN_ROUTING: tuple[type[Any], ...] = (
    RoundRobin,
    LeastWork,
    PowerOfTwo,
    Chwbl,
    LmetricPolicy,
    CostPolicy,
    SessionPolicy,
)
BUILT_IN_QUEUEING: tuple[type[Any], ...] = (Fifo, Priority, Sfq, Vtc, Dlpm)
BUILT_IN_ORDERS: tuple[type[Any], ...] = (Fcfs, Edf, Hrrn, LongestPrefix)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

Options = TypeVar("Options", PolicyOptions, QueueOptions)


class PolicyError(ValueError):
    """A policy cannot be used: its name is unknown or registered twice, or its class or its options are invalid."""


class OptionsInvalid(PolicyError):
    """A policy does not take these options.

    `message` is msgspec's, with the path of what is wrong in a tree of `options_type`.
    """

    def __init__(self, name: str, message: str, options_type: type[msgspec.Struct]) -> None:
        super().__init__(f"options of {name}: {message}")
        self.message = message
        self.options_type = options_type


def routing_policy(name: str, options: Mapping[str, Any]) -> RoutingPolicy:
    """Return the routing policy of that name, with its options checked; numbers may come as text.

    A policy of another package comes wrapped in CheckedPolicy, and raises nothing but PolicyContractBroken. Raises
    PolicyError.
    """
    found = _named(name, BUILT_IN_ROUTING, ROUTING_GROUP, "options_type", "rank")
    policy: RoutingPolicy = _made(name, found, options)
    return policy if found in BUILT_IN_ROUTING else checked(policy)


def queue_policy(name: str, options: Mapping[str, Any] = NO_OPTIONS) -> QueuePolicy:
    """Return the queue policy (the order across tenants) of that name, with its options checked.

    Raises PolicyError.
    """
    found = _named(name, BUILT_IN_QUEUEING, QUEUE_GROUP, "options_type", "next")
    return cast(QueuePolicy, _made(name, found, options))


def tenant_order(name: str) -> TenantOrder:
    """Return the tenant order (the order inside one tenant) of that name. Raises PolicyError."""
    return cast(TenantOrder, _named(name, BUILT_IN_ORDERS, ORDER_GROUP, "first")())


def routing_names() -> list[str]:
    """Return the names of all routing policies, sorted."""
    return sorted(_all(BUILT_IN_ROUTING, ROUTING_GROUP))


def queue_names() -> list[str]:
    """Return the names of all queue policies, sorted."""
    return sorted(_all(BUILT_IN_QUEUEING, QUEUE_GROUP))


def order_names() -> list[str]:
    """Return the names of all tenant orders, sorted."""
    return sorted(_all(BUILT_IN_ORDERS, ORDER_GROUP))


def _made(name: str, found: type[Any], options: Mapping[str, Any]) -> Any:
    typed = _typed(name, options, found.options_type)
    try:
        return found(typed)
    except Exception as err:
        raise PolicyError(f"policy {name!r} cannot be made: {type(err).__name__}: {err}") from err


def _typed(name: str, options: Mapping[str, Any], kind: type[Options]) -> Options:
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as err:
        raise OptionsInvalid(name, str(err), kind) from err


def _named(name: str, built_in: tuple[type[Any], ...], group: str, *has: str) -> type[Any]:
    """Return the class of that name. `has` are the attributes that a class of this group needs beside its name."""
    known = _all(built_in, group)
    if name not in known:
        raise PolicyError(f"there is no policy {name!r}; there are {', '.join(sorted(known))}")
    found = known[name]
    return _loaded(found, has) if isinstance(found, EntryPoint) else found


def _all(built_in: tuple[type[Any], ...], group: str) -> dict[str, type[Any] | EntryPoint]:
    """Return what is registered in a group by name.

    Entry points are not loaded here: a broken package is an error only where its own policy is used.
    """
    known: dict[str, type[Any] | EntryPoint] = {policy.name: policy for policy in built_in}
    for point in _installed(group):
        if point.name in known:
            raise PolicyError(f"policy {point.name!r} is registered twice ({point.value})")
        known[point.name] = point
    return known


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. Installed packages are searched once: it means reading the disk."""
    return tuple(entry_points(group=group))


def _loaded(point: EntryPoint, has: tuple[str, ...]) -> type[Any]:
    policy = f"policy {point.name!r} ({point.value})"
    try:
        found = point.load()
    except Exception as err:
        raise PolicyError(f"{policy} cannot be loaded: {type(err).__name__}: {err}") from err
    if not isinstance(found, type):
        raise PolicyError(f"{policy} is not a class")
    if lacking := [name for name in ("name", *has) if not hasattr(found, name)]:
        raise PolicyError(f"{policy} has no {', '.join(lacking)}")
    return found
