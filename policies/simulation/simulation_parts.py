"""The parts of a simulation, built as its scenario describes them: engines, gateways, queues, outcomes."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from policies.load_order.least_loaded import RANKED_MAX
from policies.routing.protocol import RoutingPolicy
from policies.simulation.engines.simulated_engine import SimulatedCache, SimulatedEngine
from policies.simulation.gateway import SimulatedGateway
from policies.simulation.gateway_view import GatewayView
from policies.simulation.large_fleet import LargeFleet
from policies.simulation.outcome import Outcome
from policies.simulation.scenario import Scenario
from policies.simulation.trace import TraceRequest
from policies.simulation.turns.dispatching import Dispatching
from policies.simulation.turns.queue_view import QueueView
from policies.simulation.turns.turn_taking import TurnTaking, class_of
from policies.simulation.waiting_orders import ORDERS
from radix_cache.match import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGateways:
    """All gateways of a simulation."""

    all: list[SimulatedGateway]
    views: list[GatewayView]
    """Their views of the workers: one of each cell if `share_views`, else one of each gateway."""
    share_views: bool
    """Whether a gateway learns at once what another one of its cell does."""
    queue_view: QueueView | None
    """The loads of their common queue; None where it has the same ones as they have."""


def gateways_of(
    scenario: Scenario, policy: RoutingPolicy, workers: Sequence[WorkerId], random: Random, seed: int
) -> SimulatedGateways:
    """Return the gateways of a scenario. They draw from `random`; `seed` is that of the run."""
    share_views = scenario.gateways == 1 or scenario.sync_seconds == 0
    views = [
        GatewayView(workers, scenario) for _ in range(scenario.cells if share_views else scenario.gateways)
    ]
    large: list[LargeFleet | None] = [None] * len(views)
    if len(workers) > RANKED_MAX and getattr(policy, "shortlist", False):
        # Otherwise every request ranks all workers.
        large = [
            LargeFleet(view, workers, Random(f"radixgate workers {seed} {at}"))
            for at, view in enumerate(views)
        ]
    takes_turns = scenario.turns is not None and scenario.window_tokens is not None
    queue_view = QueueView(scenario.workers) if takes_turns and not share_views else None
    gateways = [
        SimulatedGateway(
            view=views[at % len(views)],
            large=large[at % len(views)],
            policy=policy,
            window_tokens=scenario.window_tokens,
            waiting_order=ORDERS[scenario.waiting_order],
            random=random,
            hold=scenario.turns.hold if scenario.turns is not None else None,
            queue_view=queue_view,
        )
        for at in range(scenario.gateways)
    ]
    return SimulatedGateways(all=gateways, views=views, share_views=share_views, queue_view=queue_view)


def engines_of(scenario: Scenario, caches: Sequence[SimulatedCache]) -> list[SimulatedEngine]:
    """Return an engine for each of the caches."""
    return [
        SimulatedEngine(
            cache=cache,
            capacity_tokens=scenario.kv_tokens,
            times=scenario.times_of(at),
            order=ORDERS[scenario.order],
        )
        for at, cache in enumerate(caches)
    ]


def turns_of(scenario: Scenario, dispatching: Dispatching) -> list[TurnTaking]:
    """Return the queue of each cell; none where requests wait at their gateway instead."""
    if scenario.turns is None or scenario.window_tokens is None:
        return []
    return [
        TurnTaking(
            scenario.turns,
            scenario.window_tokens,
            scenario.classes,
            dispatching,
            workers=scenario.workers,
            of_all_gateways=scenario.gateways > 1,
        )
        for _ in range(scenario.cells)
    ]


def outcomes_of(trace: Sequence[TraceRequest], scenario: Scenario) -> list[Outcome]:
    """Return the outcome of each request, before anything has happened to it."""
    classes = (class_of(request, scenario.classes) for request in trace)
    return [
        Outcome(
            tenant=request.tenant,
            arrived_at=request.at,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            service_class=service_class.name if service_class is not None else "",
            target_seconds=service_class.ttft_seconds if service_class is not None else None,
        )
        for request, service_class in zip(trace, classes, strict=True)
    ]
