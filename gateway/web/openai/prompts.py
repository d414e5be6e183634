"""The prompts of OpenAI's inference requests: the messages of a chat, texts, or lists of token ids."""

import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.bodies.body_limits import check_parsed_strings
from gateway.web.bodies.long_id_lists import TokenId, decode_token_ids
from gateway.web.openai.body_fields import ChatBody

PROMPTS_MAX = 2048
"""The most prompts of one request."""
NO_TOKENS: list[int] = []
"""The prompt of a request that has no prompt to count."""

RESERVED_TEMPLATE_KWARGS = ("chat_template", "tokenize")
"""Names in `chat_template_kwargs` that engines treat as their own arguments, such as another template."""

_PROMPTS = msgspec.json.Decoder(str | list[str | list[TokenId]] | None)
_NUMBER_LIST = re.compile(rb"\s*\[\s*-?[0-9]")


def prompts_of(surface: Surface, read: Any) -> list[Any]:
    """Return the prompts of a request that is not a chat; all their tokens are counted."""
    match surface:
        case Surface.COMPLETIONS:
            return _prompts(read.prompt, "prompt")
        case Surface.EMBEDDINGS if bytes(read.input) != b"null" or not read.messages:
            return _prompts(read.input, "input")
        case Surface.TOKENIZE | Surface.DETOKENIZE:
            return [NO_TOKENS]
    read.model = None  # Not a text of the prompt.
    try:
        texts = list(_texts(msgspec.structs.asdict(read).values()))
    except msgspec.ValidationError as err:
        raise BadRequest(f"A token id cannot be read: {err}.") from err
    if len(texts) > PROMPTS_MAX:
        raise BadRequest(f"The request has more than {PROMPTS_MAX} texts.")
    return texts or [NO_TOKENS]


def _texts(values: Iterable[Any]) -> Iterator[str | list[int]]:
    """Yield every text and every list of token ids in nested values; media (`data:` URLs) are left out."""
    for value in values:
        if isinstance(value, str) and not value.startswith("data:"):
            yield value
        elif isinstance(value, dict):
            yield from _texts(inner for name, inner in value.items() if name not in ("type", "role"))
        elif isinstance(value, list) and value and all(type(part) is int for part in value):
            yield msgspec.convert(value, list[TokenId])
        elif isinstance(value, list):
            yield from _texts(value)


def messages_of(read: ChatBody) -> list[dict[str, Any]]:
    """Return the messages of a chat request. Raises BadRequest."""
    if not read.messages:
        raise BadRequest("The request must have at least one message.", param="messages")
    calls: list[Any] = []
    for index, message in enumerate(read.messages):
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{index}] must have a role.", param="messages")
        if message.get("tool_calls"):
            calls.append(message["tool_calls"])
    if calls:
        check_parsed_strings([*_arguments(calls)], "messages")
    for name in RESERVED_TEMPLATE_KWARGS if read.chat_template_kwargs else ():
        if name in (read.chat_template_kwargs or {}):
            raise BadRequest(f"{name} cannot be set in chat_template_kwargs.", param="chat_template_kwargs")
    return read.messages


def _arguments(calls: Iterable[Any]) -> Iterator[str]:
    """Yield the arguments of tool calls: JSON texts, which chat templates get as decoded values."""
    for several in calls:
        for call in several if isinstance(several, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _prompts(raw: msgspec.Raw, field: str) -> "list[str | list[int] | array[int]]":
    """Return one or many prompts, each a text or a list of token ids. Raises BadRequest."""
    prompts: list[str | list[int] | array[int]]
    try:
        if _NUMBER_LIST.match(raw):
            prompts = [decode_token_ids(bytes(raw))]
        else:
            read = _PROMPTS.decode(raw)
            prompts = [read] if isinstance(read, str) else [*(read or ())]
    except msgspec.DecodeError as err:
        reason = str(err).replace(" - at `$", f" - at `{field}")
        raise BadRequest(f"{field}: {reason}.", param=field) from err
    if not 1 <= len(prompts) <= PROMPTS_MAX:
        raise BadRequest(f"The request must have between 1 and {PROMPTS_MAX} {field}s.", param=field)
    return prompts
