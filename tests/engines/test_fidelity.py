"""Answers of real engines reach the client unchanged, field by field and chunk by chunk.

What may differ is listed: what differs between any two answers, and what the gateway owns.
"""

import json
from math import isclose

import pytest

from gateway.domain.request import Surface
from gateway.relay.stream_aggregator import StreamAggregator
from tests.engines.processes import MODEL

EACH_TIME = {"id", "created"}
"""Of any two answers, and of the calls in them."""

NOT_STREAMED = {"sglang": {"metadata"}, "vllm": set()}
"""SGLang says by which weights each token was computed, and only in an answer that it gives at once."""

WITH_USAGE = {"system_fingerprint"}
"""vLLM says this in its very last chunk; that is the one of usage, which the gateway asks for and keeps."""

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT = {
    "messages": [{"role": "user", "content": "Tell me of trees."}],
    "max_tokens": 12,
    "temperature": 0,
    "seed": 1,
}
TEXT = {"prompt": "Tell me", "max_tokens": 12, "temperature": 0, "seed": 1}
ROUNDS_MAX = 40
"""After so many streams of each side, each kind of chunk has occurred on both."""

GENERATED = ("delta", "text", "logprobs", "token_ids")
"""The fields of a choice that hold the tokens of a chunk."""

TWO = {"n": 2, "temperature": 1.0, "top_k": 1}
"""Not greedy by name, of which vLLM gives one."""
ASKED = {
    "chat": CHAT,
    "chat of one token": {**CHAT, "max_tokens": 1},
    "chat with logprobs": {**CHAT, "logprobs": True, "top_logprobs": 2},
    "chat with two choices": {**CHAT, **TWO},
    "chat that stops": {**CHAT, "stop": ["e", "a", "o", "2"]},
    "chat that stops at a token": {**CHAT, "stop_token_ids": list(range(5, 200))},
    "chat by a schema": {
        **CHAT,
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    },
    "chat with JSON": {**CHAT, "response_format": {"type": "json_object"}},
    "chat with a tool that is required": {
        **CHAT,
        "max_tokens": 40,
        "tools": [TOOL],
        "tool_choice": "required",
    },
    "chat with a named tool": {
        **CHAT,
        "max_tokens": 40,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "chat with a tool that is not to be called": {**CHAT, "tools": [TOOL], "tool_choice": "none"},
    "text": TEXT,
    "text of token ids": {**TEXT, "prompt": [5, 6, 7]},
    "text of two prompts": {**TEXT, "prompt": ["one", "two"]},
    "text with logprobs": {**TEXT, "logprobs": 2},
    "text that stops": {**TEXT, "stop": ["e", "a", "o", "2"]},
    "text with its prompt": {**TEXT, "echo": True},
}


def path(body):
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


async def ask(running, url, body):
    """The answer's bytes."""
    async with running.http.post(
        url + path(body), json={"model": MODEL, **body}, headers=running.headers()
    ) as response:
        assert response.status == 200, await response.text()
        return await response.read()


def chunks(text):
    """Of a stream; its end is checked."""
    *frames, done = [line[6:] for line in text.decode().split("\n\n") if line.startswith("data: ")]
    assert done == "[DONE]"
    return [json.loads(frame) for frame in frames]


def same(one, other, owned=frozenset(), at="answer"):
    """Equal in names, their order and values; numbers as close as two batches of other sizes compute them."""
    if isinstance(one, dict) and isinstance(other, dict):
        names, others = ([name for name in each if name not in owned] for each in (one, other))
        assert names == others, at
        for name in names:
            if name not in EACH_TIME:
                same(one[name], other[name], at=f"{at}.{name}")
        return
    if isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), at
        for index, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, at=f"{at}[{index}]")
        return
    close = (
        isinstance(one, float)
        and isinstance(other, float)
        and isclose(one, other, rel_tol=1e-3, abs_tol=1e-3)
    )
    assert close or (type(one), one) == (type(other), other), at


def without_cached(answer):
    """How much of a prompt was cached differs: the gateway's salt keeps it apart from what came without one."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    for name in {"cached_tokens", "created_cache_tokens"} & details.keys():
        details[name] = 0
    return answer


def places(value, at=()):
    """Yield where names stand in a value, whatever the length of its lists. Tokens are no names."""
    if isinstance(value, dict) and not all(isinstance(inner, float) for inner in value.values()):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))
    elif isinstance(value, list):
        for item in value:
            yield from places(item, at)


def add_kinds(kinds, stream):
    """Add which kinds of chunks a stream has, by choice: the names around its tokens, and those in its tokens.

    How many tokens come in one chunk, and whether the last of them come with the reason of the end, is the engine's
    decision and differs with every run. The two are therefore kept apart.
    """
    for chunk in stream:
        choice = chunk["choices"][0] if chunk["choices"] else {}
        known = kinds.setdefault(choice.get("index"), set())
        generated = {name: choice[name] for name in GENERATED if name in choice}
        around = {**chunk, "choices": [{**choice, **dict.fromkeys(generated)}]}
        known |= {tuple(places(around)), *places(generated)}


def comparable(chunk, usage):
    """Take out of a chunk what differs between any two streams."""
    without_cached(chunk)
    if not usage:
        assert chunk.get("usage") is None
        for name in WITH_USAGE:
            chunk.pop(name, None)
    if chunk.get("usage") is None:
        # SGLang's chunks of text say that they have none; the gateway asks for it, and takes it out again.
        chunk.pop("usage", None)
    return chunk


def joined(surface, stream):
    """Return the answer of a stream, its names sorted: they come in the order in which chunks have had them."""
    aggregator = StreamAggregator(surface)
    for chunk in stream:
        aggregator.add(json.dumps(chunk).encode())
    return json.loads(json.dumps(json.loads(aggregator.body(done=True)), sort_keys=True))


@pytest.mark.parametrize("name", ASKED)
async def test_a_whole_answer_is_the_engines_own_field_by_field(gateway, engine, model_of, name):
    body = ASKED[name]
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        direct = without_cached(json.loads(await ask(running, engine.url, body)))
        passed = without_cached(json.loads(await ask(running, running.url, body)))
        put_together = without_cached(json.loads(await ask(running, running.url, body)))
    same(direct, passed)
    same(direct, put_together, NOT_STREAMED[engine.kind])


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
@pytest.mark.parametrize("name", [name for name in ASKED if name != "text with its prompt"])
async def test_a_stream_is_the_engines_own_in_every_kind_of_chunk(gateway, engine, model_of, name, usage):
    body = {**ASKED[name], "stream": True}
    if usage:
        body["stream_options"] = {"include_usage": True}
    surface = Surface.CHAT if "messages" in body else Surface.COMPLETIONS
    own, passed = {}, {}
    async with gateway(engine, kind=engine.kind, **model_of(engine.page_size)) as running:
        for _ in range(ROUNDS_MAX):
            direct, through = [
                [comparable(chunk, usage) for chunk in chunks(await ask(running, url, body))]
                for url in (engine.url, running.url)
            ]
            same(joined(surface, direct), joined(surface, through))
            add_kinds(own, direct)
            add_kinds(passed, through)
            if own == passed:
                break
    assert own == passed
