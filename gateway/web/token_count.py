"""POST /v1/messages/count_tokens and /v1/responses/input_tokens: return the token count of a prompt.

Prompts are counted as for inference: by the model's tokenizer, or estimated if the gateway has none. Counting
reserves no quota and sends no request to a worker for inference.
"""

from gateway.domain.errors import GatewayError
from gateway.pipeline import Services, authenticate, read_request
from gateway.telemetry.progress import Progress
from gateway.web.exchange import HttpExchange


async def answer_token_count(exchange: HttpExchange, services: Services) -> None:
    """Answer with the number of tokens of the exchange's prompt, or with an error."""
    progress = Progress(exchange.id, str(exchange.surface), services.clock, services.wall)
    try:
        tenant = await authenticate(exchange, services, progress)
        ctx = await read_request(exchange, tenant, services, progress)
        body = b'{"input_tokens":%d}' % await services.prompt_hasher.count_tokens(ctx)
        await exchange.answer(200, "application/json", body, {})
    except GatewayError as err:
        await exchange.fail(err)
    finally:
        exchange.memory.release()
