"""The rules of waiting rooms: in which order turns are given, how many requests may wait, and when a wait ends."""

from collections.abc import Callable
from dataclasses import dataclass

from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.queueing.protocol import QueuePolicy, TenantOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRules:
    """How a waiting room gives turns, and how many requests may wait in it for how long."""

    policy: QueuePolicy
    order: TenantOrder
    bounds: WaitingRoomBounds
    waiting_seconds_max: float
    passed_over_max: int = 0
    """Requests that may wait for a worker of their choice while others are given room elsewhere."""
    passed_over_of_flow_max: int = 0
    """The same, of one tenant and service class."""


@dataclass(frozen=True, slots=True)
class WaitEnd:
    """When a request stops waiting, and which error it gets then."""

    until: float
    error: Callable[[float], Exception]
    """Makes the error from the seconds after which the client may try again."""
