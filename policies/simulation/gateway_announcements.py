"""Announcements between the gateways of a simulation: what each learns of the others' requests, and when.

    dispatch, end    as soon as KV events reach the index (Scenario.event_seconds)
    first token      the same, if the prompt has brought a whole block to its worker: the index then shows it there
    change of load   after Scenario.sync_seconds, or never
    queue's load     with each reply of the queue that all gateways share, at once

Gateways that share one view of the fleet have the same loads at once, and need no announcements.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from policies.others_load import LoadTotals
from policies.simulation.gateway_view import Expected, GatewayView
from policies.simulation.scenario import Scenario
from policies.simulation.timeline import Timeline
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.queue_view import QueueView


class InFlightRequest:
    """A request on a worker: the gateway that sent it, and what was counted for it."""

    __slots__ = ("at", "expected", "gateway", "number", "started", "tokens_ahead", "worker")

    def __init__(
        self, number: int, gateway: int, worker: int, expected: Expected, tokens_ahead: int, at: float
    ) -> None:
        self.number = number
        self.gateway = gateway
        self.worker = worker
        self.expected = expected
        self.tokens_ahead = tokens_ahead
        """Uncached tokens to compute until its first token, its own included."""
        self.at = at
        self.started = False
        """Whether its first token has come."""


class GatewayAnnouncements:
    """Counts each request in flight at its gateway, and passes that on to the other gateways."""

    def __init__(
        self,
        views: Sequence[GatewayView],
        scenario: Scenario,
        events: Timeline,
        *,
        shared: bool,
        queue_view: QueueView | None,
    ) -> None:
        """Create the announcements between these gateways.

        `views`: of each gateway. `shared`: whether gateways share them, and announce nothing to each other.
        `queue_view`: the loads that the queue of several gateways counts, where they take turns.
        """
        self._views = views
        self._scenario = scenario
        self._events = events
        self._shared = shared
        self._queue_view = queue_view

    def dispatched(self, sent: InFlightRequest, request: TraceRequest, now: float) -> None:
        """Count a request that its gateway sends to a worker."""
        worker, number, expected = sent.worker, sent.number, sent.expected
        self._views[sent.gateway].dispatched(worker, number, request, expected, now)
        tokens = expected.uncached_tokens

        def apply(view: GatewayView, then: float) -> None:
            view.dispatched_elsewhere(worker, number, request, uncached_tokens=tokens, sent_at=now, now=then)

        self._notify_others(sent, apply, now)
        self._report_load(sent, LoadTotals(tokens, 1, expected.kv_tokens), now)
        self.take_reply(sent.gateway, (worker,), now)

    def first_token(self, sent: InFlightRequest, now: float) -> None:
        """Take the prompt of a request out of its worker's queue: its first token has come."""
        worker, number, tokens = sent.worker, sent.number, sent.expected.uncached_tokens
        self._views[sent.gateway].first_token(worker, tokens, now)
        if tokens >= BLOCK_TOKENS:
            self._notify_others(
                sent, lambda view, then: view.computed_elsewhere(worker, number, now, then), now
            )
        self._report_load(sent, LoadTotals(-tokens, 0, 0), now)
        self.take_reply(sent.gateway, (worker,), now)
        sent.started = True

    def ended(self, sent: InFlightRequest, now: float) -> None:
        """Take a request off its worker's load."""
        worker, number = sent.worker, sent.number
        self._views[sent.gateway].ended(worker, number, sent.expected)
        self._notify_others(sent, lambda view, then: view.ended_elsewhere(worker, number, now, then), now)
        self._report_load(sent, LoadTotals(0, -1, -sent.expected.kv_tokens), now)
        self.take_reply(sent.gateway, (worker,), now)

    def take_reply(self, gateway: int, workers: Iterable[int], now: float) -> None:
        """Let a gateway take over the loads of these workers that a reply of the queue contains."""
        if self._queue_view is not None:
            for worker in workers:
                self._views[gateway].take_queue_load(worker, self._queue_view.of(worker), now)

    def _notify_others(
        self, sent: InFlightRequest, apply: Callable[[GatewayView, float], None], now: float
    ) -> None:
        """Notify the other gateways of a dispatch, first token or end, as soon as KV events reach the index."""
        later = self._scenario.event_seconds
        for view in self._other_views(sent):
            if later:
                self._events.at(now + later, partial(apply, view))
            else:
                apply(view, now)

    def _report_load(self, sent: InFlightRequest, change: LoadTotals, now: float) -> None:
        """Report a change of a worker's load: to the queue at once, to the other gateways later, or never."""
        if self._queue_view is not None:
            self._queue_view.add(sent.worker, change)
        later = self._scenario.sync_seconds
        if later is None:
            return
        for view in self._other_views(sent):
            self._events.at(now + later, partial(view.take_load_report, sent.worker, change, now))

    def _other_views(self, sent: InFlightRequest) -> list[GatewayView]:
        if self._shared:
            return []
        return [view for at, view in enumerate(self._views) if at != sent.gateway]
