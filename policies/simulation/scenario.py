"""Scenario: everything that a simulated deployment is, but the policy and the trace."""

from dataclasses import dataclass, field
from enum import StrEnum

from policies.simulation.step_time import StepTime
from policies.simulation.turn_queue import QueueRule


class Happening(StrEnum):
    """What a worker does. KILL loses what runs and the cache; DRAIN takes nothing new and ends what it has; JOIN is
    there again, with an empty cache after a KILL or where it was drained with `cold`."""

    KILL = "kill"
    DRAIN = "drain"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """At `at` seconds something happens to the worker at this place."""

    at: float
    worker: int
    what: Happening
    cold: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`kv_tokens`: KV capacity of each worker. `order`: of the engines' queues (order.ORDERS).

    `sync_seconds`: how much later a gateway hears of what another one has sent; None: never.
    `event_seconds`: how much later KV events are known; `event_loss`: the share that never is.
    `window_tokens`: uncached tokens that a worker may have ahead before requests wait in the gateway, in the order
    `hold`; None: everything is sent at once. `turns`: they wait as in the real gateway, by its queue policies.
    """

    workers: int
    kv_tokens: int
    times: StepTime = field(default_factory=StepTime)
    order: str = "fcfs"
    gateways: int = 1
    sync_seconds: float | None = 0.0
    event_seconds: float = 0.0
    event_loss: float = 0.0
    window_tokens: int | None = None
    hold: str = "hrrn"
    turns: QueueRule | None = None
    attempts_max: int = 3
    changes: tuple[Change, ...] = ()
