"""Azure's paths of OpenAI's API: the path names the model (the deployment), and overrides the body.

POST /openai/deployments/llama-3.1-8b/chat/completions?api-version=2024-10-21
"""

from typing import Any

import msgspec
from aiohttp import web

from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.exchange import HttpExchange
from gateway.web.openai.dialect import OpenAIDialect

DEPLOYMENT_SURFACES = (Surface.CHAT, Surface.COMPLETIONS, Surface.EMBEDDINGS, Surface.SPEECH)
"""The APIs that are served below a deployment."""


class DeploymentDialect(OpenAIDialect):
    """The dialect of an OpenAI API whose model is named outside of the body."""

    def __init__(self, surface: Surface, deployment: str) -> None:
        super().__init__(surface)
        self._deployment = deployment

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the request in a body, which may lack the model. Raises BadRequest that names the field."""
        request = await super().decode_request(with_model(body, self._deployment), tenant)
        return msgspec.structs.replace(request, model=self._deployment)


class DeploymentExchange(HttpExchange):
    """An HTTP exchange below the path of a deployment."""

    def __init__(self, http: web.Request, surface: Surface, **more: Any) -> None:
        deployment = http.match_info["deployment"]
        super().__init__(http, lambda _: DeploymentDialect(surface, deployment), **more)


def with_model(body: bytes, model: str) -> bytes:
    """Return a JSON object with `model` as its first field; a later `model` in the body would override it."""
    rest = body.lstrip(b" \t\r\n")
    if not rest.startswith(b"{"):
        return body
    fields = rest[1:].lstrip(b" \t\r\n")
    comma = b"" if fields.startswith(b"}") else b","
    return b'{"model":%b%b%b' % (msgspec.json.encode(model), comma, fields)
