"""GET /v1/models and /v1/models/{id}: the models that an API key may call, in OpenAI's shape or in Anthropic's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicModelCard:
    """A model, as Anthropic's API shows it."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    """None where neither the settings nor a worker name the model's context length."""
    type: str = "model"
    lifecycle: str = "active"


class ModelHandlers:
    """The HTTP handlers of models."""

    def __init__(
        self,
        catalogue: Catalogue,
        authenticate: Callable[[web.Request], Awaitable[Tenant]],
        reported_context_length: Callable[[str], int | None],
    ) -> None:
        """Create the handlers.

        Args:
            catalogue: The models.
            authenticate: Returns the tenant of a request's API key.
            reported_context_length: Returns the context length that workers report of a model.
        """
        self._catalogue = catalogue
        self._authenticate = authenticate
        self._reported_context_length = reported_context_length

    async def list_all(self, http: web.Request) -> web.Response:
        """List the models that the tenant may call."""
        try:
            models = self._visible(await self._authenticate(http))
        except GatewayError as err:
            return error_response(err, http)
        cards = [self._card(name, model, http) for name, model in models]
        if not speaks_anthropic(http):
            return _json({"object": "list", "data": cards})
        return _json(
            {
                "data": cards,
                "has_more": False,
                "first_id": cards[0].id if cards else None,
                "last_id": cards[-1].id if cards else None,
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
                raise ModelNotFound(name, [visible for visible, _ in self._visible(tenant)])
        except GatewayError as err:
            return error_response(err, http)
        return _json(self._card(name, model, http))

    def _visible(self, tenant: Tenant) -> list[tuple[str, Model]]:
        models: list[tuple[str, Model]] = sorted(self._catalogue.by_name_or_alias().items())
        return [(name, model) for name, model in models if tenant.allows(model.name)]

    def _card(self, name: str, model: Model, http: web.Request) -> ModelCard | AnthropicModelCard:
        if not speaks_anthropic(http):
            return ModelCard(id=name, created=model.created)
        return AnthropicModelCard(
            id=name,
            display_name=name,
            created_at=datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
            max_input_tokens=model.context_length or self._reported_context_length(model.name),
        )


def _json(value: object) -> web.Response:
    request_id = new_request_id()
    headers = {"server": SERVER, "x-request-id": request_id, "request-id": request_id}
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)
