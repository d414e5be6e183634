"""A large fleet in the view of one simulated gateway: requests are ranked on a shortlist, as in the real gateway.

See gateway/routing/shortlist.py. The order of the workers by load is the gateway's own (policies/load_order), and
so is the choice of holders.
"""

from collections.abc import Collection, Mapping
from functools import partial
from heapq import nlargest
from random import Random

from policies.load_order.holders import EXAMINED_MAX, WEIGHTS, chosen_holders, holder_ms
from policies.load_order.least_loaded import LeastLoaded
from policies.routing.compute_price import compute_price
from policies.routing.protocol import FleetTotals
from policies.simulation.gateway_view import GatewayView
from policies.simulation.trace import BLOCK_TOKENS, MODEL
from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot


class SimulatedWorker:
    """One worker of a large fleet (an OrderedWorker; it is its own load and speed)."""

    def __init__(self, fleet: "LargeFleet", at: int, identity: WorkerId) -> None:
        self.id = identity
        self.at = at
        """Its place in the fleet."""
        self._fleet = fleet

    @property
    def able(self) -> bool:
        """Whether it may get a new request."""
        return self.at in self._fleet.up

    @property
    def load(self) -> "SimulatedWorker":
        """The work under way there."""
        return self

    @property
    def learnt(self) -> "SimulatedWorker":
        """The speed learnt from its answers."""
        return self

    @property
    def speed(self) -> Speed:
        """The speed to predict with."""
        return self._fleet.view.speeds.of[self.at]

    @property
    def on_change(self) -> "tuple[partial[None], ...]":
        """Called after every change of its state."""
        return self._fleet.view.on_change[self.at]

    @on_change.setter
    def on_change(self, called: "tuple[partial[None], ...]") -> None:
        self._fleet.view.on_change[self.at] = called

    @property
    def all_tokens_queued(self) -> int:
        """Tokens queued by all gateways."""
        return self._fleet.view.queued(self.at)

    def clock(self) -> float:
        """Return the time of the simulation."""
        return self._fleet.now

    def computed(self, speed: Speed) -> int:
        """Estimate how many of the queued tokens the worker has computed by now."""
        return self._fleet.view.computed(self.at, self._fleet.now)

    def snapshot(self, now: float) -> WorkerSnapshot:
        """Return the worker's state at this moment, as policies get it."""
        return self._fleet.view.snapshot(self.at, now)


class LargeFleet:
    """The workers of a large fleet in the order of their load, as one view has them."""

    def __init__(self, view: GatewayView, workers: Collection[WorkerId], random: Random) -> None:
        self.view = view
        self.now = 0.0
        self.up: Collection[int] = frozenset(range(len(workers)))
        """The places of the workers that may get new requests."""
        self._ordered = LeastLoaded(
            MODEL, [SimulatedWorker(self, at, identity) for at, identity in enumerate(workers)], random
        )

    def shortlist(
        self,
        held: Mapping[int, int],
        prompt_tokens: int,
        output_tokens: int,
        now: float,
    ) -> tuple[list[int], FleetTotals]:
        """Return the places of the workers to rank, and the sums over all workers; `held`: blocks by worker."""
        self.now, view, ordered = now, self.view, self._ordered
        ordered.update(now)
        totals = FleetTotals(
            workers=ordered.able,
            backlog_ms=ordered.backlog_ms,
            streams=ordered.streams,
            tokens_per_ms=ordered.tokens_per_ms,
        )
        price = compute_price(totals, WEIGHTS)
        known: list[tuple[float, int, int]] = []
        for at in nlargest(EXAMINED_MAX, held, key=held.__getitem__):
            if at not in self.up:
                continue
            worker = view.snapshot(at, now)
            ms = holder_ms(
                worker.speed,
                ahead=worker.tokens_queued - worker.tokens_computed,
                streams=worker.streams,
                kv_tokens=worker.kv_tokens,
                kv_tokens_max=worker.kv_tokens_max,
                uncached=prompt_tokens - min(held[at] * BLOCK_TOKENS, prompt_tokens),
                output_tokens=output_tokens,
                price=price,
            )
            known.append((ms, len(known), at))
        found = dict.fromkeys(chosen_holders(known))
        for least in ordered.least(now, (), price).values():
            found[least.at] = None
        return list(found), totals
