"""GET /v1/usage and /v1/limits: the usage and the limits of the calling tenant. Workers are not shown."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.database.database import DatabaseDown
from gateway.database.usage_query import UsageReader
from gateway.domain.errors import BadRequest, NotFound, QuotasUnavailable, UsageUnavailable
from gateway.domain.tenant import Tenant
from gateway.ledger.usage_query_parsing import FOR_TENANTS, QueryProblem, parse_query, shown
from gateway.quotas.leases import Leases
from gateway.quotas.limit_report import LimitReport, limit_reports
from gateway.quotas.quota_store import QuotaStoreUnavailable

GROUPS_MAX = 1000
SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageList:
    """The answer of GET /v1/usage, in the shape of OpenAI's lists."""

    data: list[dict[str, Any]]
    source: str
    """What was summed: days, hours, or single requests. Single requests are stored for the shortest time."""
    object: str = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitList:
    """The answer of GET /v1/limits, in the shape of OpenAI's lists."""

    data: list[LimitReport]
    object: str = "list"


async def own_limits(leases: Leases, tenant: Tenant) -> LimitList:
    """Return what is left of the limits of the tenant, its key and its organisation. Raises QuotasUnavailable."""
    try:
        return LimitList(data=await limit_reports(leases, tenant.organisation, tenant.id, tenant.scopes))
    except QuotaStoreUnavailable as err:
        raise QuotasUnavailable from err


async def own_usage(
    reader: UsageReader | None,
    tenant: Tenant,
    parameters: Iterable[tuple[str, str]],
    discounts: Mapping[str, float],
) -> UsageList:
    """Return sums of the tenant's own requests.

    Args:
        reader: Reads the usage ledger; None without a database.
        tenant: The calling tenant.
        parameters: The query parameters, in their order.
        discounts: By model, how much less a cached prompt token costs, in millionths of the currency.

    Raises:
        BadRequest: A parameter is not valid.
        NotFound: There is no database.
        UsageUnavailable: The database does not answer.
    """
    if reader is None:
        raise NotFound("This gateway stores no usage: it has no database.")
    try:
        query = parse_query(parameters, names=FOR_TENANTS, limit_max=GROUPS_MAX)
    except QueryProblem as err:
        raise BadRequest(f"{err}.", param=err.param) from err
    own = msgspec.structs.replace(query, where={**query.where, "tenant": tenant.id})
    try:
        async with asyncio.timeout(SECONDS_MAX):
            found = await reader.sums(own, discounts)
    except (DatabaseDown, TimeoutError) as err:
        raise UsageUnavailable from err
    return UsageList(data=[shown(group) for group in found], source=query.source)
