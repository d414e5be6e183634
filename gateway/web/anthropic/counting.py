"""POST /v1/messages/count_tokens: how many tokens a message's prompt has.

Counted as requests are, by the model's tokenizer; an estimate where the gateway has none. It is no inference: no
quota is reserved, and nothing is asked of a worker.
"""

from gateway.errors import GatewayError
from gateway.pipeline import Services, admit, authenticate
from gateway.request import InferenceRequest
from gateway.telemetry.record import Progress
from gateway.tenants.tenant import Tenant
from gateway.web.anthropic.dialect import AnthropicDialect
from gateway.web.anthropic.requests import read_counted
from gateway.web.exchange import HttpExchange


class CountingDialect(AnthropicDialect):
    """The same API, of which only the prompt is there."""

    async def request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        return read_counted(body)

    async def whole(self, body: bytes) -> bytes:
        return body


async def count(exchange: HttpExchange, at: Services) -> None:
    """Answers with the number, or with what is wrong."""
    progress = Progress(exchange.id, "messages/count_tokens", at.clock, at.wall)
    try:
        tenant = authenticate(exchange, at, progress)
        ctx = await admit(exchange, tenant, at, progress)
        prompt = await at.prefixes.of(ctx)
        body = b'{"input_tokens":%d}' % prompt.prompt_tokens
        await exchange.answer(200, "application/json", body, {})
    except GatewayError as err:
        await exchange.fail(err)
