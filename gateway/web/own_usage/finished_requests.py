"""GET /v1/requests and /v1/requests/{id}: finished requests of the calling tenant, without the workers."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.domain.errors import BadRequest, NotFound
from gateway.domain.tenant import Tenant
from gateway.explorer.request_details import RequestDetails, for_tenant
from gateway.explorer.request_explorer import RequestExplorer
from gateway.explorer.request_query import RequestQueryProblem, parse_request_query

FOR_OPERATORS = ("tenant", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequestList:
    """The answer of GET /v1/requests, in the shape of OpenAI's lists."""

    data: list[RequestDetails]
    object: str = "list"


async def own_requests(
    explorer: RequestExplorer | None, tenant: Tenant, parameters: Mapping[str, str]
) -> OwnRequestList:
    """Return finished requests of the tenant. Raises BadRequest, and NotFound if none are kept."""
    for name in FOR_OPERATORS:
        if name in parameters:
            raise BadRequest(f"Unknown query parameter {name!r}.", param=name)
    try:
        query = parse_request_query(parameters)
    except RequestQueryProblem as err:
        raise BadRequest(str(err)) from err
    found = await _remembering(explorer).search(msgspec.structs.replace(query, tenant=tenant.id))
    return OwnRequestList(data=[for_tenant(details) for details in found])


async def own_request(explorer: RequestExplorer | None, tenant: Tenant, identity: str) -> RequestDetails:
    """Return one finished request of the tenant. Raises NotFound."""
    found = await _remembering(explorer).find(identity)
    if found is None or found.tenant != tenant.id:
        raise NotFound("None of your kept requests has this id.")
    return for_tenant(found)


def _remembering(explorer: RequestExplorer | None) -> RequestExplorer:
    if explorer is None:
        raise NotFound("This gateway keeps no requests.")
    return explorer
