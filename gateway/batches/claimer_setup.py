"""Assembly of a gateway's BatchClaimer."""

import asyncio
from functools import partial

from gateway.app import Gateway
from gateway.batches.batch_claimer import BatchClaimer
from gateway.batches.batch_services import LINE_BYTES_MAX, ROWS_BYTES_MAX, BatchServices, RowMemory
from gateway.domain.request import Surface
from gateway.pipeline import serve
from gateway.settings.tree import Settings
from gateway.web.anthropic.batch_body import ENDPOINT
from gateway.web.dialect_factory import DialectFactory, dialect_factory
from gateway.web.openai.batches import SURFACES


def batch_claimer_of(gateway: Gateway) -> BatchClaimer | None:
    """Return the BatchClaimer of a gateway; None without a database."""
    records, settings = gateway.records, gateway.settings.batches
    if records.batches is None or records.tenant_files is None:
        return None

    def dialect(endpoint: str) -> DialectFactory:
        surface = Surface.MESSAGES if endpoint == ENDPOINT else SURFACES[endpoint]
        return dialect_factory(surface, records.responses, records.conversations)

    parts = BatchServices(
        store=records.batches,
        tenant_files=records.tenant_files,
        serve_row=partial(serve, services=gateway.services),
        dialects=dialect,
        slots=asyncio.Semaphore(settings.running_rows_max),
        memory=RowMemory(ROWS_BYTES_MAX),
        requests_memory=gateway.memory,
        rows_max=settings.rows_max,
        batch_rows_max=settings.running_rows_max,
        line_bytes_max=row_bytes_max(gateway.settings),
        counts=records.batch_counts,
        on_ended=gateway.services.tracing.observe_batch,
    )
    return BatchClaimer(parts, running_max=settings.running_max, kept_seconds=settings.kept_seconds)


def row_bytes_max(settings: Settings) -> int:
    """Return the longest line that a batch's input may have, in bytes."""
    return min(LINE_BYTES_MAX, settings.requests.body_bytes_max)
