"""Handlers for keys with the scope `usage`: the tenant's own usage, limits and finished requests, as JSON."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.domain.errors import GatewayError
from gateway.domain.tenant import Tenant
from gateway.explorer.request_details import RequestDetails
from gateway.explorer.request_explorer import RequestExplorer
from gateway.pipeline import Services
from gateway.web.cell_relay import CellRelay
from gateway.web.client_address import FindAddress
from gateway.web.error_response import error_response
from gateway.web.middleware.error_middleware import Handler
from gateway.web.own_usage.finished_requests import OwnRequestList, own_request, own_requests
from gateway.web.own_usage.usage_and_limits import LimitList, UsageList, own_limits, own_usage
from gateway.web.request_identity import SERVER, new_request_id
from gateway.web.stored.json_handlers import AuthenticateTenant


class OwnUsageHandlers:
    """Shows tenants what they have used, what they may use, and their finished requests."""

    def __init__(
        self,
        services: Services,
        explorer: RequestExplorer | None,
        authenticate: AuthenticateTenant,
        cells: CellRelay | None,
        find_address: FindAddress,
    ) -> None:
        """Create the handlers.

        Args:
            services: The inference pipeline and what it needs.
            explorer: Finds finished requests; None where none are kept.
            authenticate: Returns the tenant of a key for usage.
            cells: Fetches the requests of other cells' tenants; None without cells.
            find_address: Returns a client's address.
        """
        self._services = services
        self._explorer = explorer
        self._authenticate = authenticate
        self._cells = cells
        self._find_address = find_address

    def by_path(self) -> dict[str, Handler]:
        """Return the GET handlers by path, without the prefix `/v1/`."""
        return {
            "usage": self._shown(self._usage),
            "limits": self._shown(self._limits),
            "requests": self._shown(self._requests, by_its_cell=True),
            "requests/{id}": self._shown(self._request, by_its_cell=True),
        }

    def _shown(
        self, show: Callable[[web.Request, Tenant], Awaitable[Any]], *, by_its_cell: bool = False
    ) -> Handler:
        """Return a handler that sends the result of `show` as JSON, to a key with the scope `usage`.

        `by_its_cell` means that only the tenant's cell has the data.
        """

        async def handle(http: web.Request) -> web.Response:
            try:
                tenant = await self._authenticate(http)
                if by_its_cell and self._cells is not None:
                    answer = await self._cells.fetch(http, tenant, self._find_address)
                    if answer is not None:
                        return answer
                value = await show(http, tenant)
            except GatewayError as err:
                return error_response(err, http)
            headers = {"server": SERVER, "x-request-id": new_request_id()}
            body = msgspec.json.encode(value)
            return web.Response(body=body, content_type="application/json", headers=headers)

        return handle

    async def _usage(self, http: web.Request, tenant: Tenant) -> UsageList:
        services = self._services
        return await own_usage(services.usage, tenant, http.query.items(), services.catalogue.discounts())

    async def _limits(self, http: web.Request, tenant: Tenant) -> LimitList:
        return await own_limits(self._services.dispatch.reservations.leases, tenant)

    async def _requests(self, http: web.Request, tenant: Tenant) -> OwnRequestList:
        return await own_requests(self._explorer, tenant, http.query)

    async def _request(self, http: web.Request, tenant: Tenant) -> RequestDetails:
        return await own_request(self._explorer, tenant, http.match_info["id"])
