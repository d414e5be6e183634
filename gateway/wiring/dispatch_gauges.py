"""Gauges of the way of requests to workers: waiting rooms, retries, hedging, preemption, the shadow policy."""

from collections import Counter
from collections.abc import Callable

from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.hedging import OUTCOMES
from gateway.dispatch.placement import Placement
from gateway.queueing.waiting_room import WaitingRoom
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.telemetry.metric_families import CounterFamily, GaugeFamily, ValueFamily
from gateway.wiring.gauge_kinds import Reading, single_counter, single_gauge
from policies.service_class import BATCH, CHAT, CODE, VOICE

CLASSES = tuple(each.name for each in (VOICE, CODE, CHAT, BATCH))


def dispatch_gauges(dispatch: Dispatch, models: Callable[[], frozenset[str]]) -> tuple[ValueFamily, ...]:
    """Return the gauges of a gateway's dispatch. `models`: those that are shown also without a waiting request."""
    return (*_waiting_room_gauges(dispatch, models), *_attempt_gauges(dispatch), *_shadow_counters(dispatch))


def _waiting_room_gauges(dispatch: Dispatch, models: Callable[[], frozenset[str]]) -> tuple[ValueFamily, ...]:
    """Return the gauges of requests that wait, and of the order in which they go."""

    def waiting() -> list[Reading]:
        # Models and classes without waiting requests are shown with 0: an autoscaler takes no series for no answer.
        counts = Counter({(model, name): 0 for model in models() for name in CLASSES})
        for room in dispatch.rooms.all().values():
            counts.update({(room.model, name): 0 for name in CLASSES})
            counts.update((room.model, ticket.service_class) for ticket in room.waiting())
        counts.update(dispatch.acquisition.first_worker.counts())
        return [(labels, float(count)) for labels, count in counts.items()]

    def waiting_and_running() -> list[Reading]:
        counts = dispatch.placements.counts()
        for (model, _), count in waiting():
            counts[model] += int(count)
        return [((model,), float(count)) for model, count in counts.items()]

    def queue_gauge(
        name: str, text: str, read: Callable[[WaitingRoom[Placement]], float], *, idle: float = 0.0
    ) -> GaugeFamily:
        """`idle`: the value of a model that no request was sent to yet."""

        def read_all() -> list[Reading]:
            rooms = dispatch.rooms.all()
            unused = [((model,), idle) for model in models() if model not in rooms]
            return [*unused, *(((queue,), read(room)) for queue, room in rooms.items())]

        return GaugeFamily(name=name, text=text, labels=("queue",), read=read_all)

    return (
        GaugeFamily(
            name="radixgate_waiting_requests",
            text="Requests in the waiting room, by model and service class.",
            labels=("model", "class"),
            read=waiting,
        ),
        GaugeFamily(
            name="radixgate_model_requests",
            text="Requests of this gateway for the model that wait, or that its own workers are serving.",
            labels=("model",),
            read=waiting_and_running,
        ),
        queue_gauge(
            "radixgate_waiting_tokens",
            "Uncached prompt tokens in the waiting room.",
            lambda room: room.tokens,
        ),
        queue_gauge(
            "radixgate_queue_drain_units_per_second",
            "Cost units per second that left the waiting room for a worker, over the last half minute.",
            lambda room: room.received.units_per_second(),
        ),
        queue_gauge(
            "radixgate_queue_evenness",
            "Jain's fairness index of service per weight among waiting tenants; 1 is perfectly fair.",
            lambda room: room.received.evenness(),
            idle=1.0,
        ),
        single_gauge(
            "radixgate_queue_shared",
            "Mode of the queue: 1 if all gateways share one order in Redis, 0 if this gateway orders alone.",
            lambda: dispatch.queue.shared,
        ),
        single_gauge(
            "radixgate_queue_gateways", "Live gateways, this one included.", lambda: dispatch.queue.gateways
        ),
    )


def _attempt_gauges(dispatch: Dispatch) -> tuple[ValueFamily, ...]:
    """Return the counters of preempted, retried and hedged requests."""
    return (
        single_counter(
            "radixgate_preemptions_total",
            "Batch requests that gave up their placement before a first token, for a request of another class.",
            lambda: dispatch.preemption.count,
        ),
        single_counter(
            "radixgate_retries_total",
            "Retries of requests on another worker, after an attempt without a first byte.",
            lambda: dispatch.retry_budget.spent,
        ),
        single_counter(
            "radixgate_retries_refused_total",
            "Retries refused by the retry budget (`requests.retries`).",
            lambda: dispatch.retry_budget.refused,
        ),
        CounterFamily(
            name="radixgate_hedges_total",
            text="Hedged requests (sent to a second worker as the first was late), by outcome of the second: "
            "`won`, `lost`, `failed`, or `left` by the client.",
            labels=("outcome",),
            read=lambda: [((name,), float(dispatch.hedging.outcomes[name])) for name in OUTCOMES],
        ),
    )


def _shadow_counters(dispatch: Dispatch) -> tuple[ValueFamily, ...]:
    """Return the counters of the shadow policy; they have no value where there is none."""

    def shadow_counter(name: str, text: str, read: Callable[[ShadowPolicy], float]) -> CounterFamily:
        def read_it() -> list[Reading]:
            return [((), read(second))] if (second := dispatch.router.shadow) is not None else []

        return CounterFamily(name=name, text=text, read=read_it)

    return (
        shadow_counter(
            "radixgate_shadow_compared_total", "Requests that the shadow policy ranked.", lambda s: s.compared
        ),
        shadow_counter(
            "radixgate_shadow_differed_total",
            "Requests for which the shadow policy chose another worker than the policy.",
            lambda s: s.differed,
        ),
        shadow_counter(
            "radixgate_shadow_failures_total",
            "Rankings at which the shadow policy failed.",
            lambda s: s.failures,
        ),
        shadow_counter(
            "radixgate_shadow_regret_seconds_total",
            "Seconds of predicted time to first token that the shadow policy's choices would have added.",
            lambda s: s.regret_seconds,
        ),
        shadow_counter(
            "radixgate_shadow_gain_seconds_total",
            "Seconds of predicted time to first token that the shadow policy's choices would have saved.",
            lambda s: s.gain_seconds,
        ),
    )
