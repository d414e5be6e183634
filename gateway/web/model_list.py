"""GET /v1/models and /v1/models/{id}: the models that an API key may call, in OpenAI's shape or in Anthropic's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from gateway.domain.errors import GatewayError, ModelNotFound
from gateway.domain.model import Model
from gateway.domain.tenant import Tenant
from gateway.models.catalogue import Catalogue
from gateway.web.error_response import error_response, speaks_anthropic
from gateway.web.request_identity import SERVER, new_request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model, as OpenAI's API shows it."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "radixgate"


class ModelHandlers:
    """The HTTP handlers of models. `authenticate` returns the tenant of a request's API key."""

    def __init__(
        self, catalogue: Catalogue, authenticate: Callable[[web.Request], Awaitable[Tenant]]
    ) -> None:
        self._catalogue = catalogue
        self._authenticate = authenticate

    async def list_all(self, http: web.Request) -> web.Response:
        """List the models that the tenant may call."""
        try:
            cards = self._visible(await self._authenticate(http))
        except GatewayError as err:
            return error_response(err, http)
        if not speaks_anthropic(http):
            return _json({"object": "list", "data": cards})
        ids = [card.id for card in cards]
        return _json(
            {
                "data": [_anthropic(card) for card in cards],
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    async def show(self, http: web.Request) -> web.Response:
        """Show one model."""
        name = http.match_info["model"]
        try:
            tenant = await self._authenticate(http)
            try:
                model = self._catalogue.find(name, tenant.id)
            except ModelNotFound:
                model = None
            if model is None or not tenant.allows(model.name):
                raise ModelNotFound(name, [card.id for card in self._visible(tenant)])
            found = ModelCard(id=name, created=model.created)
        except GatewayError as err:
            return error_response(err, http)
        return _json(_anthropic(found) if speaks_anthropic(http) else found)

    def _visible(self, tenant: Tenant) -> list[ModelCard]:
        models: list[tuple[str, Model]] = sorted(self._catalogue.by_name_or_alias().items())
        return [ModelCard(id=name, created=m.created) for name, m in models if tenant.allows(m.name)]


def _anthropic(card: ModelCard) -> dict[str, Any]:
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": created,
        "lifecycle": "active",
    }


def _json(value: object) -> web.Response:
    request_id = new_request_id()
    headers = {"server": SERVER, "x-request-id": request_id, "request-id": request_id}
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)
