"""The details of a finished request for operators and its tenant, without prompt and answer."""

import msgspec

from gateway.quotas.limit_text import limit_in_words
from gateway.telemetry.outcome import Outcome, outcome_of
from gateway.telemetry.request_record import RequestRecord
from policies.routing.protocol import Route


class StepDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the request: its start, in milliseconds after the arrival, and its duration."""

    name: str
    start_ms: float
    ms: float


class WaitDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The wait in the queue. `reason` and the `..._ahead` fields describe its beginning."""

    ms: float
    reason: str
    requests_ahead: int
    tokens_ahead: int
    tenants_ahead: dict[str, int] = {}


class RouteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One route in the ranking by which the request was placed. `terms`: the parts of `cost_ms`."""

    worker: str
    prefill_worker: str | None
    cost_ms: float
    matched_tokens: int
    reason: str
    terms: dict[str, float] = {}


class AttemptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt on a worker.

    `why`: `unhealthy`, `server_error`, `busy`, `refused` or `timed_out`.
    """

    worker: str
    why: str
    at_ms: float


class LimitDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a limit at the time when the request's quota was reserved."""

    scope: str
    limit: str
    amount: int
    remaining: int


class RequestDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request.

    `asked`: the model name that the client used. `slow`: the request missed its target for the first token, or took
    longer than `telemetry.requests.slow_seconds`. `worker_ttft_ms`: from dispatch to the first token. `ttft_ms`:
    from arrival to the first output byte of a stream. `predicted_cached_tokens` and `predicted_ttft_ms`: what
    routing predicted for `cached_tokens` and `worker_ttft_ms`. `spend`: millionths of the currency. Times that the
    request did not reach are null.
    """

    id: str
    at: float
    gateway: str
    tenant: str
    key_id: str
    api: str
    asked: str
    model: str
    service_class: str
    stream: bool
    outcome: Outcome
    slow: bool
    status: int
    code: str
    ms: float
    ttft_ms: float | None
    ttft_target_ms: float | None
    worker_ttft_ms: float | None
    predicted_ttft_ms: float | None
    tpot_ms: float | None
    worker: str | None
    prefill_worker: str | None
    by_shadow: bool
    attempts: int
    prompt_tokens: int
    cached_tokens: int | None
    predicted_cached_tokens: int
    output_tokens: int
    spend: int
    trace_id: str | None
    steps: list[StepDetails]
    wait: WaitDetails | None
    ranking: list[RouteDetails]
    failed_attempts: list[AttemptDetails]
    limits: list[LimitDetails]


def brief(details: RequestDetails) -> RequestDetails:
    """Return the details without steps, ranking, failed attempts and limits."""
    return msgspec.structs.replace(details, steps=[], ranking=[], failed_attempts=[], limits=[])


def trace_id_of(record: RequestRecord) -> str | None:
    """Return the id of a request's trace, as 32 hex digits; None if it has no trace."""
    return f"{record.trace.trace_id:032x}" if record.trace is not None else None


def request_details(record: RequestRecord, gateway: str, *, slow: bool) -> RequestDetails:
    """Return the details of a request that this gateway served."""
    return RequestDetails(
        id=record.id,
        at=record.started_at,
        gateway=gateway,
        tenant=record.tenant,
        key_id=record.key_id,
        api=record.surface,
        asked=record.asked if record.model else "",  # An unknown name is arbitrary text of the client.
        model=record.model,
        service_class=record.service_class,
        stream=record.stream,
        outcome=outcome_of(record),
        slow=slow,
        status=record.status,
        code=record.code,
        ms=_ms(record.seconds),
        ttft_ms=_ms_or_none(record.ttft_seconds),
        ttft_target_ms=_ms_or_none(record.ttft_target_seconds),
        worker_ttft_ms=_ms_or_none(record.worker_ttft_seconds),
        predicted_ttft_ms=_ms_or_none(record.predicted_ttft_seconds),
        tpot_ms=_ms_or_none(record.tpot_seconds),
        worker=record.worker,
        prefill_worker=record.prefill_worker,
        by_shadow=record.by_shadow,
        attempts=record.attempts,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        predicted_cached_tokens=record.predicted_tokens,
        output_tokens=record.output_tokens,
        spend=record.spend,
        trace_id=trace_id_of(record),
        steps=_steps(record),
        wait=_wait(record),
        ranking=[_route(route) for route in record.ranking],
        failed_attempts=[
            AttemptDetails(worker=each.worker, why=each.why, at_ms=_ms(each.at)) for each in record.failures
        ],
        limits=[
            LimitDetails(
                scope=status.scope,
                limit=limit_in_words(status.limit),
                amount=status.amount,
                remaining=status.remaining,
            )
            for status in record.limits
        ],
    )


def for_tenant(details: RequestDetails) -> RequestDetails:
    """Return the details that the tenant of a request may see, without workers and other tenants."""
    wait = details.wait
    return msgspec.structs.replace(
        details,
        gateway="",
        worker=None,
        prefill_worker=None,
        by_shadow=False,
        ranking=[],
        wait=msgspec.structs.replace(wait, tenants_ahead={}) if wait is not None else None,
        failed_attempts=[
            msgspec.structs.replace(each, worker=f"worker {number}")
            for number, each in enumerate(details.failed_attempts, start=1)
        ],
    )


def _steps(record: RequestRecord) -> list[StepDetails]:
    """Return the marked steps if the request has a trace, else the stages that every record has."""
    begun = record.started_at
    if record.steps:
        return [
            StepDetails(name=name, start_ms=_ms(start - begun), ms=_ms(end - start))
            for name, start, end in record.steps
        ]
    stages = [
        ("prepare", record.dispatch_seconds),
        ("queue", record.queue_seconds),
        ("first_token", record.worker_ttft_seconds),
    ]
    steps, at = [], 0.0
    for name, seconds in stages:
        if seconds is not None:
            steps.append(StepDetails(name=name, start_ms=_ms(at), ms=_ms(seconds)))
            at += seconds
    steps.append(StepDetails(name="answer", start_ms=_ms(at), ms=_ms(max(0.0, record.seconds - at))))
    return steps


def _wait(record: RequestRecord) -> WaitDetails | None:
    wait = record.wait
    if wait is None or record.queue_seconds is None:
        return None
    return WaitDetails(
        ms=_ms(record.queue_seconds),
        reason=wait.reason,
        requests_ahead=wait.requests_ahead,
        tokens_ahead=wait.tokens_ahead,
        tenants_ahead=dict(wait.tenants_ahead),
    )


def _route(route: Route) -> RouteDetails:
    return RouteDetails(
        worker=route.worker,
        prefill_worker=route.prefill_worker,
        cost_ms=round(route.cost_ms, 3),
        matched_tokens=route.matched_tokens,
        reason=route.reason,
        terms=(
            {name: round(value, 3) for name, value in route.terms._asdict().items()}
            if route.terms is not None
            else {}
        ),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)
