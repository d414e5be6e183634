"""A whole answer, put together from the stream of it.

A client that wants its answer at once gets it so; the worker is asked for a stream all the same. Its first token
then says when the prompt is computed, and the worker's window is free for the next request, where a whole answer
would hold it until the last token.

    chunk   {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}     pieces of texts are joined
            {"choices": [{"index": 0, "delta": {"content": "lo"}}]}      lists are continued, or merged by `index`
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}     anything else: the last one holds
            {"choices": [], "usage": {...}}
    whole   {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": {...}}

Not every server says why an answer ended. One that ends its stream with `[DONE]` has said all that it has to say:
`finish_reason` is null then, as it is for a client that streams. A stream without either has broken off.

Fields that nobody here knows are treated by the same rules, and the blanks that streams leave out are filled in
from the shape of the worker's whole answers (shapes.py). Only requests whose every field is known to leave a stream
complete are asked for so (FAITHFUL), of workers whose streams are.

Requests with tools are not. Engines read calls out of a stream with another parser than out of a whole text, and
with other results: for a call that is cut off or is no JSON, and for the text beside it.
"""

import re
from typing import Any

import msgspec

from gateway.domain.errors import RefusedByWorker, StreamInterrupted
from gateway.domain.request import InferenceRequest, Surface
from gateway.fleet.response_shape import Shape
from gateway.relay.chunk_template import Refrain, only_piece, refrain_of
from gateway.relay.error_redaction import read_error

FAITHFUL = frozenset(
    {
        "add_generation_prompt",
        "cache_control",
        "chat_template_kwargs",
        "continue_final_message",
        "ebnf",
        "frequency_penalty",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "ignore_eos",
        "include_stop_str_in_output",
        "json_schema",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "min_p",
        "min_tokens",
        "model",
        "n",
        "no_stop_trim",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "regex",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "separate_reasoning",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "store",
        "stream",
        "structured_outputs",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    }
)
"""Fields of a request that ask for nothing that a stream leaves out."""

SAID_ONCE = frozenset({"role", "id", "type", "name"})
"""Texts that are no pieces: said in the first chunk, or in each."""

TOOLS = ("tools", "functions")
_NO_TOOLS = re.compile(rb"\s*(?:null|\[\s*\])\s*")

ENDINGS = frozenset({"finish_reason", "stop_reason", "matched_stop"})
"""Texts of which the last one holds."""

SAID_AGAIN = SAID_ONCE | ENDINGS

DEPTH_MAX = 32


def has_faithful_stream(request: InferenceRequest) -> bool:
    """Would a stream of it say all that the answer at once would?"""
    fields = request.fields
    return (
        request.generates
        and fields.keys() <= FAITHFUL
        and all(name not in fields or _NO_TOOLS.fullmatch(fields[name]) for name in TOOLS)
    )


class Assembly:
    """One answer. `surface`: chat or text completions. `shape`: of those that this worker gives whole."""

    def __init__(self, surface: Surface, shape: Shape | None = None) -> None:
        self._chat = surface is Surface.CHAT
        self._shape = shape
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._refrain: Refrain | None = None  # of the chunk before
        self._text = _Pieces()  # that it goes on with

    def add(self, payload: bytes) -> None:
        """The next chunk. Raises StreamInterrupted for what is none, RefusedByWorker for the client's mistake."""
        if self._refrain is not None:
            piece = self._refrain.piece(payload)
            if piece is not None:
                self._text.append(piece)
                return
        try:
            chunk = msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise StreamInterrupted from err
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise self._failure(chunk, payload)
        choices = chunk.pop("choices", None)
        for name, value in chunk.items():
            if value is not None or name not in self._head:
                self._head[name] = value
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or not isinstance(choice.get("index", 0), int):
                raise StreamInterrupted
            _merge(self._choices.setdefault(choice.get("index", 0), {}), choice, DEPTH_MAX)
        self._refrain = self._learnt(payload, choices)

    def _learnt(self, payload: bytes, choices: Any) -> Refrain | None:
        """How a chunk would go on with the text of this one."""
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        choice = choices[0]
        name = only_piece(choice, chat=self._chat, said_again=SAID_AGAIN)
        if name is None:
            return None
        into = self._choices[choice.get("index", 0)]
        said, into = (choice["delta"], into["delta"]) if self._chat else (choice, into)
        if not isinstance(into.get(name), _Pieces):
            return None
        self._text = into[name]
        return refrain_of(payload, name, said[name])

    def body(self, *, done: bool) -> bytes:
        """All of it. `done`: the stream said that it ends. Raises StreamInterrupted if a choice has not ended."""
        choices = [
            _finished(self._choices[index], chat=self._chat, shaped=self._shape is not None)
            for index in sorted(self._choices)
        ]
        if not choices or not (done or all(choice.get("finish_reason") for choice in choices)):
            raise StreamInterrupted
        for choice in choices:
            choice.setdefault("finish_reason", None)
        usage = {"usage": self._head.pop("usage")} if "usage" in self._head else {}
        whole = {**self._head, "choices": choices, **usage}
        if self._chat:
            whole["object"] = "chat.completion"
        return msgspec.json.encode(self._shape.filled(whole) if self._shape is not None else whole)

    def _failure(self, chunk: dict[str, Any], payload: bytes) -> StreamInterrupted | RefusedByWorker:
        """An engine that has begun to stream may find out only then what is wrong with a request."""
        error = chunk.get("error")
        code = error.get("code") if isinstance(error, dict) else chunk.get("code")
        if not self._choices and type(code) is int and 400 <= code < 500:
            said = read_error(payload)
            return RefusedByWorker(code, said.message or "The worker refused the request.", param=said.param)
        return StreamInterrupted()


class _Pieces(list[str]):
    """A text that is not complete: joined once."""


def _merge(into: dict[str, Any], more: dict[str, Any], depth: int) -> None:
    if depth == 0:
        raise StreamInterrupted
    for name, value in more.items():
        before = into.get(name)
        if before is None:
            into[name] = _begun(name, value, depth)
        elif value is None or name == "index":
            continue
        elif isinstance(before, _Pieces) and isinstance(value, str):
            before.append(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _merge(before, value, depth - 1)
        elif isinstance(before, list) and isinstance(value, list):
            _continue(before, value, depth)
        elif name not in SAID_ONCE or not isinstance(value, str):
            into[name] = value


def _begun(name: str, value: Any, depth: int) -> Any:
    """A value as more can be merged into it."""
    if isinstance(value, str) and name not in SAID_ONCE and name not in ENDINGS:
        return _Pieces([value])
    if isinstance(value, dict):
        begun: dict[str, Any] = {}
        _merge(begun, value, depth - 1)
        return begun
    if isinstance(value, list):
        items: list[Any] = []
        _continue(items, value, depth)
        return items
    return value


def _continue(items: list[Any], more: list[Any], depth: int) -> None:
    """Calls of tools come in pieces that say which one they belong to."""
    for item in more:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int):
            items.append(item)
            continue
        known = next((one for one in items if isinstance(one, dict) and one.get("index") == index), None)
        if known is None:
            items.append(known := {})
        _merge(known, item, depth - 1)


def _finished(choice: dict[str, Any], *, chat: bool, shaped: bool) -> dict[str, Any]:
    """As it stands in a whole answer. `shaped`: blanks that OpenAI has are filled in if this worker has them."""
    whole: dict[str, Any] = _joined(choice)
    if not chat:
        return whole
    blank: dict[str, Any] = {} if shaped else {"refusal": None}
    message = {"role": "assistant", "content": None, **blank, **(whole.pop("delta", None) or {})}
    calls = message.get("tool_calls")
    if calls:
        calls.sort(key=lambda call: call.get("index", 0))
        for call in calls:
            call.pop("index", None)
        message["content"] = message["content"] or None
    if isinstance(message.get("reasoning"), str):
        # vLLM says null of an answer that is nothing but thought, where its stream begins with an empty text.
        message["content"] = message["content"] or None
    return {"index": whole.pop("index", 0), "message": message, **whole}


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _joined(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_joined(inner) for inner in value]
    return value
