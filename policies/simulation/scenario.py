"""Scenario: a simulated deployment, without the policy and the trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policies.service_class import ServiceClass
from policies.simulation.engines.step_time import StepTime
from policies.simulation.turns.queue_rule import QueueRule


class FleetAction(StrEnum):
    """What happens to a worker in the course of a simulation."""

    KILL = "kill"
    """The worker loses its running requests and its cache."""
    DRAIN = "drain"
    """The worker takes no new requests and ends those that it has."""
    JOIN = "join"
    """The worker serves again; after a KILL its cache is empty, after a DRAIN it has kept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """A change of the fleet: at `at` seconds something happens to the worker at this place."""

    at: float
    worker: int
    what: FleetAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated deployment: its workers, its gateways, and what happens to them."""

    workers: int
    kv_tokens: int
    """KV capacity of each worker."""
    times: StepTime = field(default_factory=StepTime)
    speeds: tuple[float, ...] = ()
    """How many times as fast as `times` each worker is; the last one holds for the workers after it."""
    speeds_rated: bool = True
    """Whether the settings rate the workers of unequal speed; else gateways learn speeds from answers alone."""
    order: str = "fcfs"
    """Order of the engines' own queues (waiting_orders.ORDERS)."""
    gateways: int = 1
    cells: int = 1
    """Cells that the gateways form, equally many in each; see cells.py."""
    sync_seconds: float | None = 0.0
    """Delay with which the load of one gateway is reported to the others; None: never. 0 with several cells."""
    event_seconds: float = 0.0
    """Delay with which KV events reach the index."""
    event_loss: float = 0.0
    """Share of the KV events that are lost."""
    window_tokens: int | None = None
    """Uncached tokens that a worker may have ahead before requests wait in the gateway; None: none ever wait."""
    waiting_order: str = "hrrn"
    """Order of requests that wait in a gateway (waiting_orders.ORDERS)."""
    turns: QueueRule | None = None
    """With this, requests wait as in the real gateway, by its queue policies, instead of in `waiting_order`."""
    classes: Mapping[str, ServiceClass] = field(default_factory=dict)
    """The service classes by name, for `turns`; empty: classes are ignored. With classes speeds are learnt."""
    attempts_max: int = 3
    """Workers that one request is sent to at most."""
    changes: tuple[FleetChange, ...] = ()

    def times_of(self, worker: int) -> StepTime:
        """Return the step times of the worker at this place."""
        if not self.speeds:
            return self.times
        return self.times.at_speed(self.speeds[min(worker, len(self.speeds) - 1)])
