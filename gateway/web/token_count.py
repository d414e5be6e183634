"""POST /v1/messages/count_tokens and /v1/responses/input_tokens: how many tokens a prompt has.

Counted as requests are, by the model's tokenizer; an estimate where the gateway has none. It is no inference: no
quota is reserved, and nothing is asked of a worker.
"""

from gateway.domain.errors import GatewayError
from gateway.pipeline import Services, admit, authenticate
from gateway.telemetry.record import Progress
from gateway.web.exchange import HttpExchange


async def count(exchange: HttpExchange, at: Services) -> None:
    """Answers with the number, or with what is wrong."""
    progress = Progress(exchange.id, exchange.surface.value, at.clock, at.wall)
    try:
        tenant = await authenticate(exchange, at, progress)
        ctx = await admit(exchange, tenant, at, progress)
        body = b'{"input_tokens":%d}' % await at.prefixes.count(ctx)
        await exchange.answer(200, "application/json", body, {})
    except GatewayError as err:
        await exchange.fail(err)
