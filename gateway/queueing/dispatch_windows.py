"""Dispatch windows: how many uncached prompt tokens may be ahead of each worker, of all gateways or of this one."""

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import (
    FilledWorkers,
    filled_beside_tenants,
    filled_workers,
    little_work,
    much_demand,
)
from policies.admission.traffic_in_sight import TrafficInSight
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals
from policies.admission.window_sizes import window_for_targets
from policies.latency_model import mean_speed
from workers.worker import Speed

KEPT_SECONDS = 0.1
"""How long a window is kept: for so long a tenant that begins to crowd may go unnoticed. A new window costs 0.02 ms
with four workers, and 0.3 ms with a thousand."""

WORKERS_MAX = 64
"""The most workers in the mean of speeds."""


class KeptWindow(NamedTuple):
    """The window of a model's workers, and what it was computed from."""

    window: DispatchWindow
    until: float
    """Until when it is kept."""
    ms_per_token: float
    """The workers' speed."""


class DispatchWindows:
    """The windows of the workers of each model, which all gateways together may fill.

    They follow the service classes and tenants that this gateway has seen lately. Behind a load balancer all
    gateways have the same ones.
    """

    def __init__(
        self, fleet: Fleet, tokens_max: int, batch_seconds: float, clock: Callable[[], float]
    ) -> None:
        """`tokens_max`: the widest window, by the settings. `batch_seconds`: the TTFT target of batch work."""
        self._fleet = fleet
        self._tokens_max = tokens_max
        self._batch_seconds = batch_seconds
        self._clock = clock
        self._in_sight = TrafficInSight()
        self._queue: SharedTurns | None = None
        self._kept: dict[str, KeptWindow] = {}
        """By model."""

    def count_gateways(self, queue: SharedTurns) -> None:
        """Let workers be filled; each of the gateways of this queue gets a part of the requests."""
        self._queue = queue

    def reconfigure(self, tokens_max: int, batch_seconds: float) -> None:
        """Follow these settings from now on."""
        self._tokens_max, self._batch_seconds = tokens_max, batch_seconds
        self._kept.clear()

    def note_request(
        self,
        model: str,
        target_seconds: float,
        tenant: str,
        *,
        tokens: int = 1,
        crowds: bool = False,
        flood: WaitingTotals = NONE_WAITING,
    ) -> None:
        """Note that a request of this tenant came, of a service class with this TTFT target.

        `tokens`: its uncached prompt tokens. `crowds`: the tenant has requests waiting. `flood`: see
        TrafficInSight.see.
        """
        if self._in_sight.see(
            model,
            target_seconds,
            tenant,
            self._clock(),
            tokens=tokens,
            crowds=crowds,
            flood=flood,
            window_tokens=self._tokens_max,
            tokens_per_second=self._tokens_per_second(model) if tokens > self._tokens_max else inf,
        ):
            self._kept.clear()  # Of other models, too: they may share workers with this one.

    def note_turn(
        self,
        model: str,
        target_seconds: float,
        tenant: str,
        *,
        tokens: int,
        crowds: bool,
        flood: WaitingTotals = NONE_WAITING,
    ) -> None:
        """Note that a request of this tenant had its turn after a wait.

        `crowds`: more requests of the tenant wait. The others are as in note_request.
        """
        if self._in_sight.see_turn(
            model, target_seconds, tenant, self._clock(), tokens=tokens, crowds=crowds, flood=flood
        ):
            self._kept.clear()

    def work_share(self, model: str, tenant: str, target_seconds: float) -> float:
        """Return a tenant's share of the recent work for this model.

        It is 0 if no other tenant is in sight, or if a worker computes the tenant's work within the TTFT target of
        its request, `target_seconds`.
        """
        own, in_all = self._in_sight.work_beside_others(model, tenant, self._clock())
        if not own:
            return 0.0
        kept = self._kept.get(model)
        ms_per_token = self._ms_per_token(model) if kept is None else kept.ms_per_token
        little = little_work(target_seconds, ms_per_token=ms_per_token) / self._gateways
        return own / in_all if own > little else 0.0

    def of(self, model: str) -> DispatchWindow:
        """Return the window of the model's workers."""
        kept, now = self._kept.get(model), self._clock()
        if kept is not None and now < kept.until:
            return kept.window
        models = self._fleet.models_beside(model) | {model}
        demand, ms_per_token = self._in_sight.demand(models, now), self._ms_per_token(model)
        filled = self._filled(model, models, demand, ms_per_token)
        window = window_for_targets(
            demand,
            contended=self._in_sight.contended(models, now),
            ms_per_token=ms_per_token,
            tokens_max=self._tokens_max,
            batch_seconds=self._batch_seconds,
            flood=self._in_sight.standing_flood(models, now),
            filled=filled,
            open_speed=None if filled is None else self._open_speed(model, filled),
            workers=len(self._fleet.serving(model)),
        )
        self._kept[model] = KeptWindow(window, now + KEPT_SECONDS, ms_per_token)
        return window

    def _filled(
        self, model: str, models: Collection[str], demand: Mapping[float, float], ms_per_token: float
    ) -> FilledWorkers | None:
        """Return which workers of the model are filled: by classes or, while one is in sight, beside tenants.

        None are filled by classes unless the slots of each are known, and none for a tenant that is alone.
        `models`: those that share the workers.
        """
        workers = self._fleet.serving(model)
        if self._queue is None or not demand or any(one.disaggregation for one in workers):
            return None
        gateways = self._gateways
        if len(demand) == 1:
            if not self._in_sight.has_several_tenants(models, self._clock()):
                return None
            much = much_demand(len(workers), ms_per_token=ms_per_token) / gateways
            tokens, squares = self._in_sight.demand_of_others(models, much, self._clock())
            return filled_beside_tenants(
                (gateways * tokens, gateways * squares),
                sorted(one.id for one in workers),
                target_seconds=min(demand),
                ms_per_token=ms_per_token,
                tokens_max=self._tokens_max,
            )
        if any(one.slots is None for one in workers):
            return None
        return filled_workers(
            {target: gateways * tokens for target, tokens in demand.items()},
            sorted(one.id for one in workers),
            ms_per_token=ms_per_token,
            tokens_max=self._tokens_max,
        )

    @property
    def _gateways(self) -> int:
        """How many gateways get a part of the requests each, this one included."""
        return 1 if self._queue is None else self._queue.gateways

    def _tokens_per_second(self, model: str) -> float:
        """Return this gateway's part of the prompt tokens that the model's workers compute in a second."""
        return 1000 * len(self._fleet.serving(model)) / self._ms_per_token(model) / self._gateways

    def _open_speed(self, model: str, filled: FilledWorkers) -> Speed:
        """Return the mean speed of the model's open workers."""
        of_open = (one.speed for one in self._fleet.serving(model) if one.id <= filled.last_open)
        return mean_speed(list(islice(of_open, WORKERS_MAX)))

    def _ms_per_token(self, model: str) -> float:
        """Return the mean prefill time of a token on the model's workers; any time without a worker."""
        workers = islice(self._fleet.serving(model), WORKERS_MAX)
        return fmean([worker.speed.ms_per_token for worker in workers] or [1.0])


class OwnDispatchWindows:
    """This gateway's part of every worker's window.

    It is the whole window where all gateways decide together; a gateway that decides alone has its share of it.
    """

    def __init__(self, queue: SharedTurns, of_all_gateways: DispatchWindows) -> None:
        self.of_all_gateways = of_all_gateways
        """The windows that all gateways together may fill."""
        self._queue = queue
        self._only = queue.only_membership

    def of(self, model: str) -> DispatchWindow:
        """Return this gateway's part of the window of the model's workers, as of now."""
        window, membership = self.of_all_gateways.of(model), self._only or self._queue.membership_of(model)
        if membership.shared or membership.gateways == 1:
            return window
        share_of, filled = membership.share_of, window.filled
        if filled is not None:
            open_tokens = None if filled.open_tokens is None else share_of(filled.open_tokens)
            filled = msgspec.structs.replace(filled, tokens=share_of(filled.tokens), open_tokens=open_tokens)
        return DispatchWindow(
            narrow=share_of(window.narrow),
            wide=share_of(window.wide),
            open=share_of(window.open) if window.open is not None else None,
            contended=window.contended,
            counts_own=window.counts_own,
            filled=filled,
        )

    def is_narrow(self, room: WaitingRoom[Any], tenant: str, *, background: bool) -> bool:
        """Return whether the narrow window holds for a request of this tenant that waits in the room."""
        return background or (self.of(room.model).contended and room.waiting_of(tenant) > 1)
