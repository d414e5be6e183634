"""Which dialect an API has, where an exchange begins with its request's id."""

from collections.abc import Callable

from gateway.database.response_store import ResponseStore
from gateway.domain.request import Surface
from gateway.web.anthropic.dialect import AnthropicDialect
from gateway.web.dialect import Dialect
from gateway.web.openai.dialect import OpenAIDialect
from gateway.web.responses.dialect import ResponsesDialect

NewDialect = Callable[[str], Dialect]


def of(surface: Surface, responses: ResponseStore | None) -> NewDialect:
    """`responses`: where those of the Responses API are kept."""
    if surface is Surface.MESSAGES:
        return AnthropicDialect
    if surface is Surface.RESPONSES:
        return lambda request_id: ResponsesDialect(request_id, responses)
    # OpenAI's own shape keeps nothing of an exchange: one for all.
    plain = OpenAIDialect(surface)
    return lambda request_id: plain
