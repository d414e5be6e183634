"""The attributes of spans, by OpenTelemetry's semantic conventions; every name of an attribute is in this file.

HTTP: stable conventions, by which an answer with a status below 500 is no error of a server. GenAI: repository
open-telemetry/semantic-conventions-genai, all "Development". What they do not name begins with `radixgate.`.

No text of a prompt or an answer is an attribute: a RequestRecord has counts, names and times only.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.telemetry.outcome import outcome_of
from gateway.telemetry.request_events import FailedAttempt
from gateway.telemetry.request_record import OK, RequestRecord

Attribute = str | int | float | Sequence[str]

AddressOf = Callable[[str], tuple[str, int | None] | None]
"""Returns host and port of a worker by its id; None where they are not known."""

OPERATIONS = {
    "chat/completions": "chat",
    "completions": "text_completion",
    "messages": "chat",
    "responses": "chat",
}


def operation_of(record: RequestRecord) -> str:
    """Return the GenAI operation of a request."""
    return OPERATIONS.get(record.surface, record.surface)


def request_attributes(record: RequestRecord) -> dict[str, Attribute]:
    """Return the attributes of the server span."""
    return _known(
        {
            **_gen_ai(record),
            "http.request.method": "POST",
            "http.route": f"/v1/{record.surface}",
            "http.response.status_code": record.status,
            "error.type": record.code if outcome_of(record) == "failed" else None,
            "radixgate.code": record.code if record.code != OK else None,
            "radixgate.request.id": record.id,
            "radixgate.tenant": record.tenant,
            "radixgate.key.id": record.key_id,
            "radixgate.class": record.service_class or None,
        }
    )


def attempt_attributes(record: RequestRecord, address_of: AddressOf) -> dict[str, Attribute]:
    """Return the attributes of the client span of the attempt that was answered."""
    return _known(
        {
            **_gen_ai(record),
            **_server(record.prefill_worker or record.worker or "", address_of),
            "http.request.method": "POST",
            "error.type": record.code if outcome_of(record) == "failed" else None,
            "radixgate.worker": record.worker,
            "radixgate.prefill_worker": record.prefill_worker,
            "radixgate.route.reason": record.route.reason if record.route is not None else "",
            "radixgate.route.attempts": record.attempts,
            **queue_attributes(record),
            "radixgate.route.predicted_tokens": record.predicted_tokens,
            "radixgate.route.predicted_ttft": record.predicted_ttft_seconds,
        }
    )


def failed_attempt_attributes(
    record: RequestRecord, attempt: FailedAttempt, address_of: AddressOf
) -> dict[str, Attribute]:
    """Return the attributes of the client span of an attempt without an answer."""
    return _known(
        {
            "gen_ai.operation.name": operation_of(record),
            "gen_ai.provider.name": "radixgate",
            "gen_ai.request.model": record.model,
            **_server(attempt.worker, address_of),
            "http.request.method": "POST",
            "error.type": attempt.why,
            "radixgate.worker": attempt.worker,
        }
    )


def queue_attributes(record: RequestRecord) -> dict[str, Attribute]:
    """Return the attributes of the span of the time in the waiting room."""
    wait = record.wait
    if wait is None:
        return {}
    return {"radixgate.queue.reason": wait.reason, "radixgate.queue.requests_ahead": wait.requests_ahead}


def _gen_ai(record: RequestRecord) -> dict[str, Attribute | None]:
    return {
        "gen_ai.operation.name": operation_of(record),
        "gen_ai.provider.name": "radixgate",
        "gen_ai.request.model": record.asked if record.model and record.asked else record.model,
        "gen_ai.response.model": record.model or None,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.finish_reasons": record.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": record.ttft_seconds,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
    }


def _server(worker: str, address_of: AddressOf) -> dict[str, Attribute | None]:
    address = address_of(worker)
    if address is None:
        return {}
    return {"server.address": address[0], "server.port": address[1]}


def _known(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}
