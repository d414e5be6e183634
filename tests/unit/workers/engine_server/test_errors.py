"""Refusals: status, OpenAI's error object with all four keys, the field by name, no traceback."""

import asyncio
import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from workers.engine.scheduler.plan import SampledTokens, StepPlan

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
Client = Any
Serve = Callable[..., Any]


def error_of(body: Any) -> dict[str, Any]:
    assert {"error"} == body.keys()
    assert {"message", "type", "param", "code"} == body["error"].keys()
    assert "Traceback" not in body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{}]}, "messages"),
        ({"messages": [{"role": 7, "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["text"]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 8192}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 10**30}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"rid": ["a"]}, "rid"),
        ({"rid": ""}, "rid"),
        ({"rid": "two words"}, "rid"),
        ({"rid": "line\nbreak"}, "rid"),
        ({"rid": "x" * 257}, "rid"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 1.5}, "n"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format",
        ),
        ({"regex": "("}, "regex"),
        ({"ebnf": "root ::= ((("}, "ebnf"),
        ({"json_schema": "{"}, "json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structural_tag": "x"}, "structural_tag"),
        ({"regex": "a", "guided_regex": "b"}, "guided_regex"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f"}}] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {"name": "g"}}},
            "tool_choice",
        ),
        (
            {
                "tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "required", "regex": "a"}, "regex"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_tokens": 2}, "min_tokens"),
        (
            {"messages": [{"role": "user", "content": " "}], "continue_final_message": True},
            "continue_final_message",
        ),
        (
            {"messages": [{"role": "assistant", "content": []}], "continue_final_message": True},
            "continue_final_message",
        ),
        ({"continue_final_message": "x"}, "continue_final_message"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"prompt_logprobs": 3}, "prompt_logprobs"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
async def test_the_refusal_of_a_bad_chat_request_names_the_field(
    client: Client, changes: dict[str, Any], param: str
) -> None:
    status, body = await client.post(CHAT, {"messages": HELLO, "max_tokens": 1, **changes})
    error = error_of(body)
    assert (400, "invalid_request_error", param) == (status, error["type"], error["param"])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], [512]]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1, "a"]]}, "prompt"),
        ({"prompt": [True, False]}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [512]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 0}, "logprobs"),
        ({"echo": True, "prompt": [512]}, "prompt"),
        ({"echo": True, "prompt": [10**30]}, "prompt"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"suffix": "x"}, "suffix"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"best_of": 3}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"regex": "[^\\x00-\\U0010ffff]"}, "regex"),
    ],
)
async def test_the_refusal_of_a_bad_text_request_names_the_field(
    client: Client, changes: dict[str, Any], param: str
) -> None:
    status, body = await client.post(TEXT, {"prompt": "x", "max_tokens": 1, **changes})
    error = error_of(body)
    assert (400, param) == (status, error["param"])


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/abort_request"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"5", b'"text"', b"\xff\xfe", b'{"prompt": "\\ud83d"}', b"[" * 100_000],
)
async def test_a_body_that_is_no_json_object_is_a_400(client: Client, path: str, body: bytes) -> None:
    async with client.session.post(client.url + path, data=body) as response:
        assert response.status == 400
        error_of(await response.json())


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("prompt", b'"\xff"', None),
        ("unknown", b'"\xff"', None),
        ("logit_bias", b'{"1":1e999}', "logit_bias"),
        ("logit_bias", b'"\xff"', "logit_bias"),
        ("tools", b"[1e999]", "tools"),
        ("temperature", b"1e999", "temperature"),
        ("response_format", b"[" * 2000 + b"]" * 2000, "response_format"),
    ],
)
async def test_a_value_that_cannot_be_read_is_a_400(
    client: Client, field: str, value: bytes, param: str | None
) -> None:
    body = b'{"max_tokens": 1, "prompt": "x", "%s": %s}' % (field.encode(), value)
    async with client.session.post(client.url + TEXT, data=body) as response:
        assert response.status == (200 if field == "unknown" else 400), await response.text()
        if response.status == 400:
            error = error_of(await response.json())
            assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_required_field_that_is_missing_is_named(client: Client) -> None:
    for path, field in ((CHAT, "messages"), (TEXT, "prompt")):
        status, body = await client.post(path, {"max_tokens": 1})
        assert (400, field) == (status, error_of(body)["param"])


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "status"),
    [(60, 4, 200), (61, 4, 400), (64, 1, 400), (100, 1, 400), (1, 64, 400)],
)
async def test_the_refusal_of_a_prompt_that_is_too_long_has_both_numbers(
    serving: Serve, prompt: int, max_tokens: int, status: int
) -> None:
    async with serving(context_length=64) as client:
        got, body = await client.post(TEXT, {"prompt": [9] * prompt, "max_tokens": max_tokens})
        assert status == got
        if status == 400:
            error = error_of(body)
            assert error["code"] == "context_length_exceeded"
            assert "64" in error["message"]
            assert str(prompt + max_tokens) in error["message"]


async def test_a_chat_that_is_too_long_names_its_messages(serving: Serve) -> None:
    async with serving(context_length=64) as client:
        messages = [{"role": "user", "content": "word " * 100}]
        for limit in ({}, {"max_tokens": 4}):
            status, body = await client.post(CHAT, {"messages": messages, **limit})
            error = error_of(body)
            assert (status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")


async def test_another_model_is_not_found(client: Client) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "x"})):
        status, answer = await client.post(path, {"model": "gpt-9", **body})
        error = error_of(answer)
        assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
    status, answer = await client.get("/v1/models/gpt-9")
    assert (status, error_of(answer)["code"]) == (404, "model_not_found")


async def test_unknown_urls_and_methods_answer_in_json(client: Client) -> None:
    assert await status_and_code(client.get("/v2/nothing")) == (404, "not_found")
    assert await status_and_code(client.get(CHAT)) == (405, "method_not_allowed")
    assert await status_and_code(client.post("/v1/models", {})) == (405, "method_not_allowed")


async def status_and_code(answer: Any) -> tuple[int, str]:
    status, body = await answer
    return status, error_of(body)["code"]


async def test_a_body_over_the_limit_is_a_413(client: Client) -> None:
    body = b'{"prompt": "' + b"x" * (32 * 1024 * 1024) + b'"}'
    async with client.session.post(client.url + TEXT, data=body) as response:
        assert response.status == 413
        assert error_of(await response.json())["code"] == "payload_too_large"
    assert (await client.get("/health"))[0] == 200


async def test_a_full_queue_is_a_503_with_the_time_to_come_back(serving: Serve) -> None:
    async with serving(max_running_requests=1, waiting_max=1) as client:
        long = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
        running = asyncio.create_task(client.post(TEXT, long))
        await client.until(num_running_reqs=1)
        waiting = asyncio.create_task(client.post(TEXT, long))
        await client.until(num_waiting_reqs=1)
        async with client.session.post(client.url + TEXT, json={**long, "stream": True}) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert error_of(await response.json())["code"] == "overloaded"
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        await client.until_idle()


async def test_a_bug_is_a_500_without_its_cause(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(client.worker.engine.tokenizer, "encode", broken)
    status, body = await client.post(TEXT, {"prompt": "x"})
    error = error_of(body)
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert "secret" not in error["message"]


async def test_a_failed_engine_is_reported_by_every_path(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("secret detail")

    steps = 0
    real = client.worker.engine._engine.step

    def fail_at_the_third() -> Any:
        nonlocal steps
        steps += 1
        return broken() if steps == 3 else real()

    monkeypatch.setattr(client.worker.engine._engine, "step", fail_at_the_third)
    # Greedy: a sampled token may be a part of a character, which no chunk shows yet.
    body = {"prompt": "x", "max_tokens": 9, "ignore_eos": True, "temperature": 0}
    *chunks, last = await client.stream(TEXT, body)
    # Begun, then broken: the error is a frame, and there is no [DONE].
    assert chunks[0]["object"] == "text_completion"
    assert error_of(last)["code"] == "engine_failed"
    assert await status_and_code(client.post(TEXT, {"prompt": "x"})) == (503, "engine_failed")
    assert await status_and_code(client.get("/health")) == (503, "engine_failed")
    assert await status_and_code(client.get("/ready")) == (503, "engine_failed")


def fail_at(client: Client, monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let the model fail in the steps with these numbers, from 1."""
    runner = client.worker.engine._engine._runner
    steps, real = itertools.count(1), runner.run

    def run(plan: StepPlan) -> list[SampledTokens]:
        if next(steps) in numbers:
            raise torch.OutOfMemoryError("secret detail")
        return real(plan)

    monkeypatch.setattr(runner, "run", run)


async def test_a_failed_step_is_a_503_that_may_be_sent_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(client, monkeypatch, 1, 2)
    asked = {"prompt": "x", "max_tokens": 9, "ignore_eos": True}
    for stream in (True, False):
        async with client.session.post(client.url + TEXT, json=asked | {"stream": stream}) as response:
            error = error_of(await response.json())
            assert (response.status, error["code"]) == (503, "step_failed")
            assert response.headers["Retry-After"] == "1"
            assert "secret" not in error["message"]
    assert await client.get("/health") == (200, {"status": "ok"})
    status, body = await client.post(TEXT, asked)
    assert (status, body["usage"]["completion_tokens"]) == (200, 9)
    await client.until_idle()


async def test_a_step_that_fails_in_the_middle_ends_the_stream_with_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(client, monkeypatch, 4)
    body = {"prompt": "x", "max_tokens": 9, "ignore_eos": True, "temperature": 0}
    *chunks, last = await client.stream(TEXT, body)
    assert 1 <= len(chunks) <= 3  # A slow reader gets the tokens of several steps at once.
    assert error_of(last)["code"] == "step_failed"
    await client.until_idle()


async def test_three_failed_steps_in_a_row_make_the_worker_unready(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(client, monkeypatch, 1, 2, 3)
    for code in ("step_failed", "step_failed", "engine_failed"):
        assert await client.get("/ready") == (200, {"status": "ok"})
        assert await status_and_code(client.post(TEXT, {"prompt": "x"})) == (503, code)
    assert await status_and_code(client.get("/ready")) == (503, "engine_failed")


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_choices_of_a_failed_engine_fail_together_and_quietly(
    client: Client, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = 0
    real = client.worker.engine._engine.step

    def fail_at_the_fourth() -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            raise MemoryError("secret detail")
        return real()

    monkeypatch.setattr(client.worker.engine._engine, "step", fail_at_the_fourth)
    asked = {"prompt": ["x", "y"], "n": 2, "max_tokens": 9, "ignore_eos": True, "stream": stream}
    async with client.session.post(client.url + TEXT, json=asked) as response:
        # A status, or a frame if something had been sent already.
        text = await response.text()
    assert '"code":"engine_failed"' in text
    assert "[DONE]" not in text
    gc.collect()
    assert [record.name for record in caplog.records] == ["radixgate.engine"]


async def test_a_model_without_a_template_refuses_chats_only(
    serving: Serve, tmp_path: Any, model: Any
) -> None:
    for file in model.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    async with serving(model=tmp_path) as client:
        assert await status_and_code(client.post(CHAT, {"messages": HELLO})) == (400, "no_chat_template")
        assert (await client.post(TEXT, {"prompt": "x"}))[0] == 200


async def test_the_largest_seed_serves_several_choices(client: Client) -> None:
    asked = {"prompt": "x", "max_tokens": 3, "n": 3, "seed": 2**63 - 1}
    status, body = await client.post(TEXT, asked)
    assert (status, len(body["choices"])) == (200, 3)
