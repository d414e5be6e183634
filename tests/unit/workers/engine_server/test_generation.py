"""Chat and text completions over HTTP: the shapes, the counts, the texts."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from workers.engine.tokenization.tokenizer import LONG_TEXT_CHARS

BLOCK = 16
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello, what is a gateway?"}]
GREEDY = {"temperature": 0, "ignore_eos": True}
Client = Any
Serve = Callable[..., Any]


def words(count: int, start: int = 10) -> list[int]:
    return [start + (number * 37) % 400 for number in range(count)]


async def test_a_whole_chat_answer_has_every_field_of_openai(client: Client) -> None:
    status, body = await client.post(
        CHAT, {"messages": HELLO, "max_tokens": 5, "model": "tiny", "rid": "r1", **GREEDY}
    )
    assert status == 200
    content = body["choices"][0]["message"]["content"]
    assert isinstance(body.pop("created"), int)
    prompt_tokens = len(await tokens_of(client, HELLO))
    assert {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "model": "tiny",
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 5,
            "total_tokens": prompt_tokens + 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    } == body


@pytest.mark.parametrize(
    "last", ["The answer is", [{"type": "text", "text": "The answer is"}], "The answer is \n"], ids=str
)
async def test_an_answer_goes_on_where_the_last_message_ends(client: Client, model: Path, last: Any) -> None:
    messages = [*HELLO, {"role": "assistant", "content": last}]
    oracle = AutoTokenizer.from_pretrained(model)
    plain = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    tokens = oracle.apply_chat_template(plain, continue_final_message=True, return_dict=False)
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    _, told = await client.post("/tokenize", {"messages": messages, **asked})
    assert told["tokens"] == tokens
    status, body = await client.post(CHAT, {"messages": messages, "max_tokens": 6, **asked, **GREEDY})
    assert status == 200, body
    assert body["usage"]["prompt_tokens"] == len(tokens)
    _, text = await client.post(TEXT, {"prompt": tokens, "max_tokens": 6, **GREEDY})
    assert body["choices"][0]["message"]["content"] == text["choices"][0]["text"]


@pytest.mark.parametrize(
    "asked",
    [
        {"continue_final_message": True, "add_generation_prompt": False},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "continue_final_message": False},
    ],
    ids=str,
)
async def test_template_variables_override_the_fields_of_the_same_name(
    client: Client, asked: dict[str, Any]
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    others = {name: not value for name, value in asked.items()} | {"chat_template_kwargs": asked}
    _, told = await client.post("/tokenize", {"messages": messages, **asked})
    _, overridden = await client.post("/tokenize", {"messages": messages, **others})
    assert overridden["tokens"] == told["tokens"]
    status, body = await client.post(CHAT, {"messages": messages, "max_tokens": 1, **others})
    assert (status, body["usage"]["prompt_tokens"]) == (200, len(told["tokens"]))


@pytest.mark.parametrize("last", ["<", "im", "<|", "s", "{", "end"], ids=repr)
async def test_what_the_template_writes_behind_the_last_message_is_not_taken_for_it(
    client: Client, model: Path, last: str
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": last}]
    oracle = AutoTokenizer.from_pretrained(model)
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    _, told = await client.post("/tokenize", {"messages": messages, **asked})
    assert told["tokens"] == oracle.apply_chat_template(
        messages, continue_final_message=True, return_dict=False
    )


async def tokens_of(client: Client, messages: list[dict[str, Any]]) -> list[int]:
    _, body = await client.post("/tokenize", {"messages": messages})
    return body["tokens"]


async def test_a_chat_stream_has_a_role_then_text_then_a_reason_then_done(client: Client) -> None:
    asked = {"messages": HELLO, "max_tokens": 8, "rid": "r1", **GREEDY}
    _, whole = await client.post(CHAT, asked)
    *chunks, done = await client.stream(CHAT, asked)
    assert done == "[DONE]"
    for chunk in chunks:
        assert (
            chunk["id"],
            chunk["object"],
            chunk["model"],
        ) == ("chatcmpl-r1", "chat.completion.chunk", "tiny")
        assert {"id", "object", "created", "model", "system_fingerprint", "choices"} == chunk.keys()
        assert {"index", "delta", "logprobs", "finish_reason"} == chunk["choices"][0].keys()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all({"content"} == delta.keys() for delta in deltas[1:-1])
    text = "".join(delta["content"] for delta in deltas[1:-1])
    assert whole["choices"][0]["message"]["content"] == text
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert [None] * (len(chunks) - 1) + ["length"] == reasons


async def test_usage_in_a_stream_comes_last_and_only_when_requested(client: Client) -> None:
    asked = {"messages": HELLO, "max_tokens": 3, "stream_options": {"include_usage": True}, **GREEDY}
    *chunks, counts, done = await client.stream(CHAT, asked)
    assert done == "[DONE]"
    assert counts["choices"] == []
    assert counts["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)
    *chunks, _ = await client.stream(CHAT, {**asked, "stream_options": {"include_usage": False}})
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_stream_has_the_headers_of_server_sent_events(client: Client) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "stream": True}
    headers = {"x-request-id": "from-the-header"}
    async with client.session.post(client.url + CHAT, json=body, headers=headers) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-request-id"] == "from-the-header"
        assert b'"chatcmpl-from-the-header"' in await response.read()


async def test_an_odd_id_in_a_header_is_replaced(client: Client) -> None:
    _, body = await client.post(TEXT, {"prompt": "x"}, **{"x-request-id": "two words"})
    assert len("cmpl-") + 32 == len(body["id"])


async def test_every_frame_is_written_by_itself(client: Client) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 6, "stream": True, **GREEDY}).encode()
    reader, writer = await asyncio.open_connection(*client.url.removeprefix("http://").split(":"))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: worker\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    pieces = []
    # One write is one HTTP chunk.
    while size := int(await reader.readline(), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    assert all(piece.startswith(b"data: ") and piece.endswith(b"\n\n") for piece in pieces)
    assert all(piece.count(b"\n\n") == 1 for piece in pieces)
    assert pieces[-1] == b"data: [DONE]\n\n"


async def test_text_completions_whole_and_streamed(client: Client) -> None:
    asked = {"prompt": "The gateway", "max_tokens": 6, "rid": "x", **GREEDY}
    status, whole = await client.post(TEXT, asked)
    assert (status, whole["id"], whole["object"]) == (200, "cmpl-x", "text_completion")
    assert {"index", "text", "logprobs", "finish_reason"} == whole["choices"][0].keys()
    *chunks, done = await client.stream(TEXT, asked)
    assert done == "[DONE]"
    assert whole["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_text_completion_without_a_limit_has_sixteen_tokens(client: Client) -> None:
    _, body = await client.post(TEXT, {"prompt": "The", "ignore_eos": True, "max_tokens": None})
    assert body["usage"]["completion_tokens"] == 16


async def test_a_chat_without_a_limit_goes_to_the_end_of_the_context(serving: Serve) -> None:
    async with serving(context_length=64) as client:
        _, body = await client.post(CHAT, {"messages": HELLO, "ignore_eos": True})
        assert (body["usage"]["total_tokens"], body["choices"][0]["finish_reason"]) == (64, "length")


async def test_prompts_may_be_text_tokens_or_a_list_of_one(client: Client) -> None:
    _, tokenized = await client.post("/tokenize", {"prompt": "The gateway"})
    prompts = ["The gateway", ["The gateway"], tokenized["tokens"], [tokenized["tokens"]]]
    answers = [await client.post(TEXT, {"prompt": prompt, **GREEDY}) for prompt in prompts]
    assert [status for status, _ in answers] == [200] * 4
    assert len({body["choices"][0]["text"] for _, body in answers}) == 1


async def test_content_may_be_text_parts(client: Client) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "you."}]}
    ]
    plain = [{"role": "user", "content": "Hello, you."}]
    assert await tokens_of(client, plain) == await tokens_of(client, parts)


async def test_a_conversation_with_tools_goes_on(client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": None},
    ]
    status, body = await client.post(CHAT, {"messages": messages, "max_tokens": 1, **GREEDY})
    assert status == 200, body


@pytest.mark.parametrize("text", ["Hi", "The gateway and the ocean. " * (LONG_TEXT_CHARS // 20)])
async def test_prompts_are_tokenised_as_the_gateway_will_do_it(
    client: Client, model: Path, text: str
) -> None:
    theirs = AutoTokenizer.from_pretrained(model)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert theirs.encode(rendered, add_special_tokens=False) == await tokens_of(client, messages)
    _, body = await client.post("/tokenize", {"prompt": text})
    assert theirs.encode(text, add_special_tokens=True) == body["tokens"]
    assert (len(body["tokens"]), 8192) == (body["count"], body["max_model_len"])


@pytest.mark.parametrize(
    ("length", "cached"),
    [(BLOCK - 1, 0), (BLOCK, 0), (BLOCK + 1, BLOCK), (5 * BLOCK, 4 * BLOCK), (85, 5 * BLOCK)],
)
async def test_a_second_equal_request_reports_exactly_its_cached_blocks(
    client: Client, length: int, cached: int
) -> None:
    asked = {"prompt": words(length), "max_tokens": 2, **GREEDY}
    usages = [(await client.post(TEXT, asked))[1]["usage"] for _ in range(2)]
    assert [0, cached] == [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert [length, length] == [usage["prompt_tokens"] for usage in usages]
    chunks = await client.stream(TEXT, {**asked, "stream_options": {"include_usage": True}})
    assert cached == chunks[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_another_cache_salt_has_nothing_cached(client: Client) -> None:
    async def cached(**salt: str) -> int:
        _, body = await client.post(TEXT, {"prompt": words(50), "max_tokens": 1, **GREEDY, **salt})
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached(cache_salt="acme"), await cached(cache_salt="acme")] == [0, 48]
    assert [await cached(cache_salt="zeta"), await cached(cache_salt="zeta")] == [0, 48]
    assert [await cached(), await cached()] == [0, 48]


async def test_a_seed_repeats_and_no_seed_does_not(client: Client) -> None:
    async def text(**seed: int) -> str:
        body = {"prompt": "The", "max_tokens": 24, "temperature": 1.2, "ignore_eos": True, **seed}
        return (await client.post(TEXT, body))[1]["choices"][0]["text"]

    assert await text(seed=1) == await text(seed=1)
    assert await text(seed=1) != await text(seed=2)
    assert await text() != await text()


async def test_several_choices_share_one_prompt(client: Client) -> None:
    asked = {"messages": HELLO, "max_tokens": 6, "temperature": 1.2, "ignore_eos": True, "seed": 5}
    _, one = await client.post(CHAT, asked)
    answers = [(await client.post(CHAT, {**asked, "n": 4}))[1] for _ in range(2)]
    choices = answers[0]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    texts = [choice["message"]["content"] for choice in choices]
    assert texts[0] == one["choices"][0]["message"]["content"]
    assert len(set(texts)) > 1
    assert texts == [choice["message"]["content"] for choice in answers[1]["choices"]]
    usage = answers[0]["usage"]
    assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24


async def test_a_prompt_is_computed_once_for_all_its_choices(client: Client) -> None:
    steps = client.worker.engine._engine.scheduler
    computed, commit = 0, steps.commit

    def count(plan: Any, sampled: Any) -> None:
        nonlocal computed
        computed += sum(item.count for item in plan.items)
        commit(plan, sampled)

    steps.commit = count
    _, body = await client.post(TEXT, {"prompt": words(40 * BLOCK), "n": 8, "max_tokens": 1, **GREEDY})
    assert len(body["choices"]) == 8
    assert computed <= 41 * BLOCK + 8 * BLOCK
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_several_prompts_are_answered_in_their_order(client: Client) -> None:
    prompts = [words(20, start=7), words(35, start=90), words(5)]
    asked = {"max_tokens": 5, **GREEDY}
    alone = [(await client.post(TEXT, {"prompt": prompt, **asked}))[1] for prompt in prompts]
    _, body = await client.post(TEXT, {"prompt": prompts, "n": 2, **asked})
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    texts = [answer["choices"][0]["text"] for answer in alone for _ in range(2)]
    assert [choice["text"] for choice in body["choices"]] == texts
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (60, 30)
    _, body = await client.post(TEXT, {"prompt": ["The", "A gateway"], **asked})
    assert len(body["choices"]) == 2


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": ["The", "A"]})])
async def test_each_chunk_of_a_stream_of_several_choices_has_the_index_of_its_choice(
    client: Client, path: str, prompt: dict[str, Any]
) -> None:
    asked = {**prompt, "n": 3, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    _, whole = await client.post(path, asked)
    *chunks, counts, done = await client.stream(path, {**asked, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        if path == CHAT:
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(piece["delta"].get("content", "") for piece in own)
            assert text == choice["message"]["content"]
        else:
            assert "".join(piece["text"] for piece in own) == choice["text"]
        assert [piece["finish_reason"] for piece in own] == [None] * (len(own) - 1) + ["length"]
    assert counts["choices"] == []
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert counts["usage"][count] == whole["usage"][count]


async def test_stop_strings_cut_the_answer_streamed_or_not(client: Client) -> None:
    asked = {"prompt": "The", "max_tokens": 40, **GREEDY}
    _, whole = await client.post(TEXT, asked)
    text = whole["choices"][0]["text"]
    stop = text[11:15]
    for value in (stop, ["never said", stop]):
        _, body = await client.post(TEXT, {**asked, "stop": value})
        assert (text[: text.index(stop)], "stop", stop) == (
            body["choices"][0]["text"],
            body["choices"][0]["finish_reason"],
            body["choices"][0]["matched_stop"],
        )
    *chunks, _ = await client.stream(TEXT, {**asked, "stop": stop})
    assert text[: text.index(stop)] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    ends = [
        (chunk["choices"][0]["finish_reason"], chunk["choices"][0].get("matched_stop")) for chunk in chunks
    ]
    assert ends == [(None, None)] * (len(chunks) - 1) + [("stop", stop)]
    said = await client.post(CHAT, {"messages": HELLO, "max_tokens": 40, **GREEDY})
    stop = said[1]["choices"][0]["message"]["content"][4:8]
    _, cut = await client.post(CHAT, {"messages": HELLO, "max_tokens": 40, "stop": stop, **GREEDY})
    assert cut["choices"][0]["matched_stop"] == stop


async def test_the_newer_name_of_the_limit_wins(client: Client) -> None:
    _, body = await client.post(
        CHAT, {"messages": HELLO, "max_completion_tokens": 3, "max_tokens": 9, **GREEDY}
    )
    assert body["usage"]["completion_tokens"] == 3


async def test_unknown_fields_and_harmless_values_are_accepted(client: Client) -> None:
    harmless = {
        "priority": 5,
        "extra_key": "k",
        "user": "me",
        "metadata": {"a": 1},
        "n": 1,
        "logprobs": False,
        "tools": [],
        "response_format": {"type": "text"},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "stop": None,
        "seed": None,
        "stream_options": None,
        "temperature": None,
    }
    status, _ = await client.post(CHAT, {"messages": HELLO, "max_tokens": 1, **harmless})
    assert status == 200


async def test_the_best_of_as_many_as_are_wanted_are_all_of_them(client: Client) -> None:
    status, body = await client.post(TEXT, {"prompt": "x", "max_tokens": 1, "n": 2, "best_of": 2})
    assert (status, len(body["choices"])) == (200, 2)


async def test_template_variables_reach_the_template(client: Client) -> None:
    asked = {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": {"enable_thinking": False}}
    assert (await client.post(CHAT, asked))[0] == 200
    status, body = await client.post(CHAT, {**asked, "chat_template_kwargs": {"messages": []}})
    assert (status, body["error"]["param"]) == (400, "chat_template_kwargs")


async def test_many_at_once_answer_as_they_would_alone(client: Client) -> None:
    bodies = [{"prompt": words(20 + n, start=n), "max_tokens": 12, **GREEDY} for n in range(12)]
    together = await asyncio.gather(*(client.post(TEXT, body) for body in bodies))
    alone = [await client.post(TEXT, body) for body in bodies]
    assert [b["choices"][0]["text"] for _, b in alone] == [b["choices"][0]["text"] for _, b in together]
