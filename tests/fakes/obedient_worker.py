"""A worker that follows its prompt: it calls the tool that the user names, and fills in schemas.

For tests of clients that loop: a model of random weights never calls the right tool with the right arguments.

    user  use Bash {"command": "echo hi"}        a call of the tool Bash with these arguments
    user  think about it                         reasoning, then a text
    user  count slowly                           a text, half a second for each word
    user  refuse this                            a refusal
    user  say too much                           a text that reaches the length limit
    tool  hi                                     the text "The tool said: hi"
    response_format, a forced tool_choice        the smallest value that the schema allows
    anything else                                the text "You said: .."
"""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aiohttp import web

from tests.fakes.scripted_worker import Script, ScriptedWorker, Seen

COMMAND = re.compile(r"\buse ([\w-]+) (\{.*?\})\s*$", re.M)
ECHOED_LENGTH_MAX = 80
ENDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "refuse this": ({"content": None, "refusal": "I will not do that. "}, "stop"),
    "say too much": ({"content": "and so on "}, "length"),
}


class ObedientWorker(ScriptedWorker):
    """A ScriptedWorker whose answers follow from the prompt."""

    slow_gap = 0.5
    """Seconds for each word of an answer to a prompt that says "slowly"."""

    async def _answer(
        self, http: web.Request, script: Script, seen: Seen, *, chat: bool
    ) -> web.StreamResponse:
        slowly = "slowly" in json.dumps(seen.body.get("messages"))
        return await super()._answer(
            http, replace(script, gap=self.slow_gap) if slowly else script, seen, chat=chat
        )

    def message_for(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the message that answers a request, and its finish reason."""
        return answer_of(body)

    def _whole(self, script: Script, seen: Seen, *, chat: bool) -> dict[str, Any]:
        whole = super()._whole(script, seen, chat=chat) | {"created": 1, "model": seen.body["model"]}
        message, reason = self.message_for(seen.body)
        for at, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{at}"
        whole["choices"][0] |= {"message": {"role": "assistant", **message}, "finish_reason": reason}
        return whole

    def _frames(self, script: Script, seen: Seen, *, chat: bool) -> Iterable[bytes]:
        message, reason = self.message_for(seen.body)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in _pieces(message.get("reasoning_content"))]
        deltas += [{"content": piece} for piece in _pieces(message["content"])]
        deltas += [{"refusal": piece} for piece in _pieces(message.get("refusal"))]
        for at, call in enumerate(message.get("tool_calls", ())):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            first = {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [{"index": at, **first}]})
            deltas += [
                {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}
                for piece in _pieces(arguments)
            ]
        for at, delta in enumerate(deltas):
            last = at == len(deltas) - 1
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason if last else None}
            yield self._frame(seen, [choice])
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            yield self._frame(seen, [], usage=self._usage(script))

    def _frame(self, seen: Seen, choices: list[dict[str, Any]], **more: Any) -> bytes:
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": seen.body["model"]}
        return b"data: " + json.dumps({**chunk, "choices": choices, **more}).encode() + b"\n\n"


def answer_of(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the message that answers a chat completion request, and its finish reason."""
    messages = body.get("messages") or [{"role": "user", "content": str(body.get("prompt"))}]
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    last = next(message for message in reversed(messages) if message["role"] in ("user", "tool"))
    said = text_of(last["content"])
    choice = body.get("tool_choice")
    if said in ENDINGS:
        return ENDINGS[said]
    if last["role"] == "tool":
        return {"content": f"The tool said: {said.strip()[:ECHOED_LENGTH_MAX]}"}, "stop"
    if (found := COMMAND.search(said)) and found[1] in tools:
        return calling({found[1]: found[2]}), "tool_calls"
    if isinstance(choice, dict) or choice == "required":
        name = choice["function"]["name"] if isinstance(choice, dict) else next(iter(tools))
        return calling({name: json.dumps(smallest(tools[name].get("parameters") or {}))}), "tool_calls"
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return {"content": json.dumps(smallest(form["json_schema"]["schema"]))}, "stop"
    images = sum(part["type"] == "image_url" for part in last["content"] if isinstance(part, dict))
    seen = f" with {images} images" if images else ""
    answer = {"content": f"You said{seen}: {said.strip()[-ECHOED_LENGTH_MAX:]}"}
    return answer | ({"reasoning_content": "Let me think."} if "think" in said else {}), "stop"


def text_of(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part["type"] == "text")


def smallest(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """Return a small value that fits a JSON schema of the common kind."""
    root = root or schema
    if "$ref" in schema:
        at: Any = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            at = at[name]
        return smallest(at, root)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return smallest(schema[name][0], root)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object")
    if kind == "object":
        known = schema.get("properties") or {}
        return {name: smallest(known[name], root) for name in schema.get("required", known)}
    if kind == "array":
        return [smallest(schema["items"], root)] * schema.get("minItems", 1) if "items" in schema else []
    return {"string": "text", "integer": schema.get("minimum", 1), "number": 1, "boolean": True}.get(kind)


def calling(arguments_by_name: dict[str, str]) -> dict[str, Any]:
    """Return a message that calls these functions."""
    functions = [{"name": name, "arguments": text} for name, text in arguments_by_name.items()]
    calls = [{"type": "function", "function": function} for function in functions]
    return {"content": None, "tool_calls": calls}


def _pieces(text: str | None) -> list[str]:
    return re.findall(r"\S*\s*", text)[:-1] if text else []
