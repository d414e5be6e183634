"""The dispatch window of a simulated queue, which follows the traffic in sight; see policies/admission."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import (
    FilledWorkers,
    filled_beside_tenants,
    filled_workers,
    much_demand,
)
from policies.admission.traffic_in_sight import TrafficInSight
from policies.admission.waiting_bounds import WaitingTotals
from policies.admission.window_sizes import window_for_targets
from policies.latency_model import mean_speed
from policies.service_class import ServiceClass
from policies.simulation.trace import MODEL
from radix_cache.match import WorkerId
from workers.worker import Speed


class TrafficWindow:
    """The traffic that a queue has seen, and the window of a worker that follows from it."""

    def __init__(self, window_tokens: int, batch_seconds: float, *, workers: int) -> None:
        """`window_tokens`: the widest window. `batch_seconds`: the TTFT target of batch work.

        `workers`: how many there are.
        """
        self._window_tokens = window_tokens
        self._batch_seconds = batch_seconds
        self._workers = workers
        self._in_sight = TrafficInSight()
        self._known: dict[float, DispatchWindow] = {}
        """The windows of one moment, by the workers' speed."""
        self._known_of: tuple[float, Sequence[WorkerId]] = (-inf, ())
        """That moment, and the workers that could be filled."""

    def work_share(self, tenant: str, now: float, *, tokens_min: float) -> float:
        """Return a tenant's share of the recent work; see TrafficInSight.work_share."""
        return self._in_sight.work_share(MODEL, tenant, now, tokens_min=tokens_min)

    def see(
        self,
        service_class: ServiceClass,
        tenant: str,
        tokens: int,
        now: float,
        *,
        crowds: bool,
        flood: WaitingTotals,
        ms_per_token: float,
    ) -> None:
        """Note that a request came; see TrafficInSight.see. `ms_per_token`: the workers' speed."""
        self._known.clear()
        self._in_sight.see(
            MODEL,
            service_class.ttft_seconds,
            tenant,
            now,
            tokens=tokens,
            crowds=crowds,
            flood=flood,
            window_tokens=self._window_tokens,
            tokens_per_second=1000 * self._workers / ms_per_token,
        )

    def see_turn(
        self,
        service_class: ServiceClass,
        tenant: str,
        tokens: int,
        now: float,
        *,
        crowds: bool,
        flood: WaitingTotals,
    ) -> None:
        """Note that a request had its turn after a wait; see TrafficInSight.see_turn."""
        self._known.clear()
        self._in_sight.see_turn(
            MODEL, service_class.ttft_seconds, tenant, now, tokens=tokens, crowds=crowds, flood=flood
        )

    def window(
        self,
        ms_per_token: float,
        fillable: Sequence[WorkerId],
        now: float,
        speed_of: Callable[[WorkerId], Speed] | None = None,
    ) -> DispatchWindow:
        """Return the window of a worker.

        `ms_per_token`: the workers' mean speed. `fillable`: those that may be filled, with `speed_of` each.
        """
        if self._known_of != (now, fillable):
            self._known.clear()
            self._known_of = now, fillable
        window = self._known.get(ms_per_token)
        if window is None:
            window = self._known[ms_per_token] = self._new_window(ms_per_token, fillable, now, speed_of)
        return window

    def _new_window(
        self,
        ms_per_token: float,
        fillable: Sequence[WorkerId],
        now: float,
        speed_of: Callable[[WorkerId], Speed] | None,
    ) -> DispatchWindow:
        demand = self._in_sight.demand((MODEL,), now)
        filled = self._filled(demand, fillable, ms_per_token, now)
        open_speed = None
        if filled is not None and speed_of is not None:
            open_speed = mean_speed([speed_of(each) for each in fillable if each <= filled.last_open])
        return window_for_targets(
            demand,
            contended=self._in_sight.contended((MODEL,), now),
            ms_per_token=ms_per_token,
            tokens_max=self._window_tokens,
            batch_seconds=self._batch_seconds,
            flood=self._in_sight.standing_flood((MODEL,), now),
            filled=filled,
            open_speed=open_speed,
            workers=self._workers,
        )

    def _filled(
        self,
        demand: Mapping[float, float],
        workers: Sequence[WorkerId],
        ms_per_token: float,
        now: float,
    ) -> FilledWorkers | None:
        tokens_max = self._window_tokens
        if not demand:
            return None
        if len(demand) > 1:
            return filled_workers(demand, workers, ms_per_token=ms_per_token, tokens_max=tokens_max)
        if not self._in_sight.has_several_tenants((MODEL,), now):
            return None
        return filled_beside_tenants(
            self._in_sight.demand_of_others(
                (MODEL,), much_demand(len(workers), ms_per_token=ms_per_token), now
            ),
            workers,
            target_seconds=min(demand),
            ms_per_token=ms_per_token,
            tokens_max=tokens_max,
        )
