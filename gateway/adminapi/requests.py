"""Operations that show finished requests in detail: why one was slow, and which were slow or failed.

The operators' listener serves them itself (gateway/web/admin_app.py), because they work without a database; here
they are part of the OpenAPI document.
"""

from collections.abc import Mapping

import msgspec

from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem
from gateway.explorer.request_details import RequestDetails
from gateway.explorer.request_explorer import RequestExplorer
from gateway.explorer.request_query import QUERY_PARAMETERS, RequestQueryProblem, parse_request_query


class RequestList(msgspec.Struct, kw_only=True):
    """Finished requests, the latest first, of all gateways that answered."""

    data: list[RequestDetails]


def operations(explorer: RequestExplorer) -> list[Operation]:
    """Return the operations that show finished requests."""

    async def search(request: OperationRequest) -> OperationResponse:
        return OperationResponse(value=await request_list(explorer, request.http.query))

    async def show(request: OperationRequest) -> OperationResponse:
        request.query_parameters()
        return OperationResponse(value=await request_shown(explorer, request.path_parameter("id")))

    return [
        Operation(
            method="GET",
            path="/requests",
            role="viewer",
            summary="List finished requests: the latest failed, slow, refused and other ones.",
            handle=search,
            response_type=RequestList,
            query_parameters=QUERY_PARAMETERS,
        ),
        Operation(
            method="GET",
            path="/requests/{id}",
            role="viewer",
            summary="Show one finished request: its steps, its wait, the ranking of the workers as it was then.",
            handle=show,
            response_type=RequestDetails,
        ),
    ]


async def request_list(explorer: RequestExplorer, parameters: Mapping[str, str]) -> RequestList:
    """Return the requests that match the query parameters. Raises Problem."""
    try:
        query = parse_request_query(parameters)
    except RequestQueryProblem as err:
        raise Problem(400, str(err)) from err
    return RequestList(data=await explorer.search(query))


async def request_shown(explorer: RequestExplorer, identity: str) -> RequestDetails:
    """Return the request of this id. Raises Problem."""
    found = await explorer.find(identity)
    if found is None:
        raise Problem(404, "No gateway keeps a request with this id; only the latest of each kind are kept.")
    return found
