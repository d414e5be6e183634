"""GET /v1/usage: what a tenant has used, and nobody else. It is not told where its requests were computed."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.database.database import DatabaseDown
from gateway.database.usage_query import UsageReader
from gateway.domain.errors import BadRequest, NotFound, UsageUnavailable
from gateway.domain.tenant import Tenant
from gateway.ledger.usage_query_text import FOR_TENANTS, QueryProblem, query_of, shown

GROUPS_MAX = 1000
SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageList:
    """In the shape of OpenAI's lists. `source`: days, hours, or single requests, which are kept for less time."""

    data: list[dict[str, Any]]
    source: str
    object: str = "list"


async def own_usage(
    reader: UsageReader | None, tenant: Tenant, given: Iterable[tuple[str, str]]
) -> UsageList:
    """Sums of this tenant's requests. Raises BadRequest, NotFound, UsageUnavailable."""
    if reader is None:
        raise NotFound("This gateway keeps no accounts: it has no database.")
    try:
        query = query_of(given, names=FOR_TENANTS, limit_max=GROUPS_MAX)
    except QueryProblem as err:
        raise BadRequest(f"{err}.", param=err.param) from err
    own = msgspec.structs.replace(query, where={**query.where, "tenant": tenant.id})
    try:
        async with asyncio.timeout(SECONDS_MAX):
            found = await reader.sums(own)
    except (DatabaseDown, TimeoutError) as err:
        raise UsageUnavailable from err
    return UsageList(data=[shown(group) for group in found], source=query.source)
