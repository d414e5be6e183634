"""Entries of the usage ledger: tenant, model, usage, times and outcome of a request, without its content.

Entries are JSON arrays in the journal. A new field is added at the end and has a default, so that a later gateway
can read what an earlier one has left behind.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from gateway.ledger.attribution import storable
from gateway.telemetry.request_record import RequestRecord

NAME_MAX = 200
"""The longest name of a model in a request."""

NAMES_REMEMBERED = 1024
"""How many names of models are kept in their storable form, since requests repeat them: at most two megabytes."""

COST_MAX = 2**53
"""Bounds the cost of one request, so that sums of many fit into a database's integer."""


class UsageEntry(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True, tag_field="of", tag="usage"
):
    """One request of a tenant; (request_id, attempt) is unique."""

    request_id: str
    attempt: int  # how many workers were tried; 0 where none was
    at_ms: int  # when the request came, milliseconds since 1970
    organisation: str
    tenant: str
    key_id: str
    asked: str  # the model by the name that the client used
    model: str  # the model by its own name; empty where there is none
    worker: str | None  # for operators only
    surface: str
    prompt_tokens: int
    cached_tokens: int | None  # None where the worker does not report them
    output_tokens: int
    cost: int  # millionths of the currency
    ttft_ms: int | None
    duration_ms: int
    status: int
    code: str  # "ok", "client_closed", or the code of the error
    user: str | None = None
    tags: dict[str, str] | None = None


class AlertEntry(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True, tag_field="of", tag="alert"
):
    """An event for webhooks."""

    id: str  # the same for the same event, whichever gateway reports it, so that it is delivered once
    type: str
    at_ms: int
    data: dict[str, Any]


JournalEntry = UsageEntry | AlertEntry

encode = msgspec.json.Encoder().encode
decode: Callable[[bytes], JournalEntry] = msgspec.json.Decoder(JournalEntry).decode


def usage_entry(record: RequestRecord) -> UsageEntry:
    """Return the ledger entry of a finished request; its cost is what quotas charge."""
    used, ttft, tags = record.charged, record.ttft_seconds, record.tags
    return UsageEntry(
        request_id=record.id,
        attempt=record.attempts,
        at_ms=round(record.started_at * 1000),
        organisation=record.organisation,
        tenant=record.tenant,
        key_id=record.key_id,
        asked=_storable_name(record.asked),
        model=_storable_name(record.model),
        worker=record.worker if used is not None else None,
        surface=record.surface,
        prompt_tokens=used.prompt_tokens if used is not None else 0,
        cached_tokens=used.cached_tokens if used is not None else None,
        output_tokens=used.output_tokens if used is not None else 0,
        cost=record.spend if record.spend < COST_MAX else COST_MAX,
        ttft_ms=round(ttft * 1000) if ttft is not None else None,
        duration_ms=round(record.seconds * 1000),
        status=record.status,
        code=record.code,
        user=record.user,
        tags=dict(tags) if tags else None,
    )


@lru_cache(NAMES_REMEMBERED)
def _storable_name(name: str) -> str:
    return storable(name, NAME_MAX)
