"""Renders a chat request to the text that the model reads, with all request fields that chat templates use.

    messages, tools, documents, reasoning_effort, chat_template_kwargs  -->  template  -->  text

As in vLLM and SGLang, `chat_template_kwargs` are further variables, and override the fields of the same name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest
from workers.chat_template import ChatTemplate, NothingToContinue, TemplateFailed

FIELD_TYPES: Mapping[str, tuple[type, str]] = {
    "tools": (list, "a list"),
    "documents": (list, "a list"),
    "reasoning_effort": (str, "a string"),
    "add_generation_prompt": (bool, "true or false"),
    "continue_final_message": (bool, "true or false"),
    "chat_template_kwargs": (dict, "an object"),
}
"""The fields that templates use, each with its type and the type's name for error messages."""


def render_chat(
    request: InferenceRequest, messages: Sequence[Mapping[str, Any]], template: ChatTemplate | None
) -> str:
    """Render the request, with `messages` in place of its own. Raises BadRequest that names the field."""
    if template is None:
        raise BadRequest("This model has no chat template; use completions.", param="messages")
    variables = _variables(request)
    try:
        return template.render(messages, **variables)
    except NothingToContinue as err:
        raise BadRequest("There is no last message to continue.", param="continue_final_message") from err
    except TemplateFailed as err:
        raise BadRequest(
            f"The messages do not fit the model's chat template: {err}.", param="messages"
        ) from err


def _variables(request: InferenceRequest) -> dict[str, Any]:
    """Return the template's variables from the request's fields; null counts as absent. Raises BadRequest."""
    found: dict[str, Any] = {}
    for name, (kind, shape) in FIELD_TYPES.items():
        value = _decoded(request, name)
        if value is not None:
            if not isinstance(value, kind):
                raise BadRequest(f"{name} must be {shape}.", param=name)
            found[name] = value
    more = found.pop("chat_template_kwargs", {})
    for name in ("messages", "tools"):
        if name in more:
            raise BadRequest(f"{name} is a field of its own.", param="chat_template_kwargs")
    return {**found, **more}


def _decoded(request: InferenceRequest, name: str) -> Any:
    """Decode one field from raw JSON; None if it is absent. Raises BadRequest."""
    raw = request.fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(bytes(raw))
    except ValueError as err:
        raise BadRequest(f"{name} cannot be read: {err}.", param=name) from err
