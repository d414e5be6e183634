"""Gauges of workers and providers: health, circuit, load, speed."""

from collections.abc import Callable

from gateway.dispatch.dispatch import Dispatch
from gateway.fleet.fleet import Fleet
from gateway.telemetry.metric_families import CounterFamily, GaugeFamily, ValueFamily
from gateway.wiring.gauge_kinds import Reading, worker_counter, worker_gauge
from workers.worker import Health


def worker_gauges(
    fleet: Fleet, dispatch: Dispatch, models: Callable[[], frozenset[str]]
) -> tuple[ValueFamily, ...]:
    """Return the gauges of the workers of a fleet. `models`: those that are shown also without a worker."""
    return (
        *_health_gauges(fleet),
        *_load_gauges(fleet, models),
        *_speed_gauges(fleet),
        *_provider_gauges(fleet, dispatch),
    )


def _load_gauges(fleet: Fleet, models: Callable[[], frozenset[str]]) -> tuple[ValueFamily, ...]:
    """Return the gauges of the work that workers have."""

    def streams() -> list[Reading]:
        counts = dict.fromkeys(models(), 0)
        for each in fleet:
            for model in each.models if each.provider is None else ():
                counts[model] = counts.get(model, 0) + each.load.streams
        return [((model,), float(count)) for model, count in counts.items()]

    return (
        worker_gauge(
            fleet,
            "radixgate_worker_streams",
            "Requests of this gateway that the worker is serving.",
            lambda w: w.load.streams,
        ),
        GaugeFamily(
            name="radixgate_model_streams",
            text="Requests of this gateway on workers of the model, including requests for their other models.",
            labels=("model",),
            read=streams,
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_queued_tokens",
            "Estimated uncached prompt tokens of requests that the worker has not sent a first token for.",
            lambda w: w.load.tokens_queued,
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_kv_tokens",
            "Tokens in KV memory of the requests that the worker is serving, by estimate.",
            lambda w: w.load.kv_tokens,
        ),
        GaugeFamily(
            name="radixgate_worker_kv_tokens_max",
            text="Tokens that fit into the worker's KV memory, of workers that report it.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(w.report.kv_tokens_max)) for w in fleet if w.report.kv_tokens_max is not None
            ],
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_load_feed_up",
            "Source of the worker's load: 1 if its load feed arrives, 0 if it is probed or not known.",
            lambda w: w.load.has_load_feed,
        ),
    )


def _health_gauges(fleet: Fleet) -> tuple[ValueFamily, ...]:
    """Return the gauges of health, failures and circuit breakers."""

    def health() -> list[Reading]:
        return [((w.id, state.value), float(w.health.state is state)) for w in fleet for state in Health]

    return (
        GaugeFamily(
            name="radixgate_worker_health",
            text="Health of the worker: 1 for its present state, 0 for the other states.",
            labels=("worker", "state"),
            read=health,
        ),
        worker_counter(
            fleet,
            "radixgate_worker_failures_total",
            "Requests that the worker failed to answer.",
            lambda w: w.failures,
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_circuit_open",
            "Circuit of the worker: 1 if it is open (too many requests failed, though probes succeed), else 0.",
            lambda w: w.health.circuit_open,
        ),
        worker_counter(
            fleet,
            "radixgate_worker_circuit_openings_total",
            "Openings of the worker's circuit.",
            lambda w: w.openings,
        ),
    )


def _speed_gauges(fleet: Fleet) -> tuple[ValueFamily, ...]:
    """Return the gauges of the speeds that were learnt of workers."""
    return (
        worker_gauge(
            fleet,
            "radixgate_worker_step_seconds",
            "Learnt seconds between the tokens of a stream on the worker.",
            lambda w: w.speed.step_ms / 1000,
        ),
        worker_gauge(
            fleet,
            "radixgate_worker_prefill_seconds_per_token",
            "Learnt seconds of prefill per uncached prompt token on the worker.",
            lambda w: w.speed.ms_per_token / 1000,
        ),
    )


def _provider_gauges(fleet: Fleet, dispatch: Dispatch) -> tuple[ValueFamily, ...]:
    """Return the gauges of providers: their backoff, and the limits of this gateway for them."""
    return (
        GaugeFamily(
            name="radixgate_provider_resting",
            text="Backoff of the provider: 1 while it gets no requests after it answered 429, else 0.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(w.rests_until > fleet.now())) for w in fleet if w.provider is not None
            ],
        ),
        CounterFamily(
            name="radixgate_provider_limited_total",
            text="Requests not sent to the provider because one of its limits was reached.",
            labels=("worker",),
            read=lambda: [
                ((w.id,), float(dispatch.provider_quota.refused[w.id]))
                for w in fleet
                if w.provider is not None
            ],
        ),
    )
