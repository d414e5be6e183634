"""Chooses the dialect of each API."""

from collections.abc import Callable

from gateway.database.conversation_store import ConversationStore
from gateway.database.response_store import ResponseStore
from gateway.domain.request import Surface
from gateway.web.anthropic.dialect import AnthropicDialect
from gateway.web.dialect import Dialect
from gateway.web.openai.dialect import OpenAIDialect
from gateway.web.responses.dialect import ResponsesDialect

DialectFactory = Callable[[str], Dialect]
"""Make the dialect of one exchange, from the exchange's request id."""


def dialect_factory(
    surface: Surface, responses: ResponseStore | None, conversations: ConversationStore | None = None
) -> DialectFactory:
    """Return the factory of an API's dialects.

    Args:
        surface: The API.
        responses: The stored responses of the Responses API; None without a database.
        conversations: The stored conversations; None without a database.
    """
    if surface is Surface.MESSAGES:
        return AnthropicDialect
    if surface is Surface.RESPONSES:
        return lambda request_id: ResponsesDialect(request_id, responses, conversations)
    # OpenAI's dialect keeps no state of an exchange: one object serves all exchanges.
    plain = OpenAIDialect(surface)
    return lambda request_id: plain
