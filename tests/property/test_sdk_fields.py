"""Every field that the SDKs' own types know reaches the worker, is translated, or is refused by its name.

The types are walked as the installed SDKs have them, so that a new version's fields are looked at, too.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import Surface
from gateway.web.anthropic.request_translation import decode_message_request
from gateway.web.openai.inference_requests import GATEWAY_OWNED, decode_openai_request
from gateway.web.responses import items
from gateway.web.responses.request_translation import decode_responses_body, to_chat_request
from workers.adapter import WorkerCall, WorkerTarget
from workers.adapters.openai import OpenAIAdapter
from workers.adapters.sglang import SglangAdapter
from workers.adapters.vllm import VllmAdapter

TOOLS = Path(__file__).parents[2] / ".tools"
ADAPTERS = {
    kind.__name__: kind(WorkerTarget(id="w", url="http://w"))
    for kind in (OpenAIAdapter, SglangAdapter, VllmAdapter)
}
PASSED_ON = {
    Surface.CHAT: "openai.types.chat.completion_create_params CompletionCreateParamsNonStreaming",
    Surface.COMPLETIONS: "openai.types.completion_create_params CompletionCreateParamsNonStreaming",
    Surface.EMBEDDINGS: "openai.types.embedding_create_params EmbeddingCreateParams",
    Surface.MODERATIONS: "openai.types.moderation_create_params ModerationCreateParams",
    Surface.SPEECH: "openai.types.audio.speech_create_params SpeechCreateParams",
}
MESSAGES = "anthropic.types.message_create_params MessageCreateParamsNonStreaming"
RESPONSES = "openai.types.responses.response_create_params ResponseCreateParamsNonStreaming"
TEXT = re.compile(r"<[^<>\s]+>")


def bodies(sdk, kind):
    """Every alternative of every field is in one of them."""
    return [body for found, body in bodies_of_all_kinds(sdk) if found == kind]


@cache
def bodies_of_all_kinds(sdk):
    """The type and the body, of all the SDK's types that are looked at: it is imported once."""
    kinds = [MESSAGES] if sdk == "anthropic" else [*PASSED_ON.values(), RESPONSES]
    if not (TOOLS / sdk).is_dir():
        pytest.skip(f"{sdk} is not installed; `make test` puts it into .tools")
    written = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sdk_fields.py")), *kinds],
        env={**os.environ, "PYTHONPATH": str(TOOLS / sdk)},
        capture_output=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in written.splitlines()]


def alone(sdk, kind, base):
    """(a field, the smallest body with one of its alternatives)"""
    seen = set()
    for body in bodies(sdk, kind):
        for name, value in body.items():
            if name != "model" and (key := (name, json.dumps(value))) not in seen:
                seen.add(key)
                yield name, {**base, name: value}


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("sdk", ["openai-2", "openai-3"])
@pytest.mark.parametrize("surface", PASSED_ON, ids=lambda surface: surface.value)
def test_every_field_reaches_the_worker_as_it_was(sdk, surface, kind):
    fields = set()
    for body in bodies(sdk, PASSED_ON[surface]):
        # What of it is a token id or how many answers there are is checked; the rest is between client and worker.
        sent = {**body, "model": "m"}
        request = decode_openai_request(surface, json.dumps(sent).encode())
        call = WorkerCall(id="r", path="p", fields=request.fields, model="m", stream=False)
        got = json.loads(msgspec.json.encode(ADAPTERS[kind].body(call)))
        assert {name: got.get(name) for name in sent} == sent
        assert sent.keys() <= ADAPTERS[kind].request_fields[f"v1/{surface.value}"]
        assert got.keys() - sent.keys() <= {"rid", "request_id"}
        fields |= sent.keys()
    assert not fields & GATEWAY_OWNED
    assert len(fields) > 1


def left_out(sdk, kind, base, read):
    """Where texts stand that are neither in what a worker is asked nor refused; and what is refused."""
    lost, refused, passed = set(), set(), set()
    for name, body in alone(sdk, kind, base):
        text = json.dumps(body)
        try:
            asked = read(text.encode())
        except BadRequest as err:
            refused.add((name, err.param.partition("[")[0].partition(".")[0]))
            continue
        passed.add(name)
        lost |= set(TEXT.findall(text)) - set(TEXT.findall(msgspec.json.encode(dict(asked.fields)).decode()))
    assert all(name == said for name, said in refused)
    return {place.strip("<>") for place in lost}, {name for name, _ in refused}, passed


MESSAGE = {
    "model": "m",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "<tool_choice:tool.name>", "input_schema": {}}],
}
NOT_FOR_A_MODEL = {
    r"container(\.|$)": "code runs at Anthropic's",
    r"(diagnostics|inference_geo|user_profile_id|workspace_id)\b": "of Anthropic's service",
    r".*\.citations:": "where an earlier answer had found what it says",
    r".*:(thinking\.signature|redacted_thinking\.data)$": "read by their author alone",
    r".*\.(toolset_name|tool_id)$": "of tools that run at Anthropic's",
    r"tools(:\w+)?\.input_examples\b": "templates have no place for it",
    r"tools:web_(fetch|search)_\d+\.": "of tools that run at Anthropic's",
    r".*_result\.encrypted_(content|stdout)$": "read at Anthropic's alone",
    r".*:web_fetch_result\.content:document\.source:base64\.data$": "of a file whose text is not known",
}


def with_calls_and_results(body):
    """The body with the other half of each call of a tool that ran at Anthropic's; one half alone is left out."""
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"].endswith("_tool_result")]
        calls = [block["id"] for block in blocks if block["type"] == "server_tool_use"]
        if message["role"] == "assistant":
            asked = [{"type": "server_tool_use", "id": each, "name": "n", "input": {}} for each in results]
            told = [{"type": "web_search_tool_result", "tool_use_id": each, "content": []} for each in calls]
            message["content"] = [*asked, *blocks, *told] if asked or told else message["content"]
    return body


def read_chat(body):
    return decode_message_request(json.dumps(with_calls_and_results(json.loads(body))).encode()).chat


def test_of_messages_nothing_is_left_out_that_a_model_should_read():
    lost, refused, passed = left_out("anthropic", MESSAGES, MESSAGE, read_chat)
    assert [
        place for place in sorted(lost) if not any(re.match(left, place) for left in NOT_FOR_A_MODEL)
    ] == []
    assert refused <= {"messages", "tools"}
    assert {"messages", "system", "tools", "tool_choice", "thinking", "metadata", "stop_sequences"} <= passed


RESPONSE = {
    "model": "m",
    "input": "hi",
    "tools": [{"type": "function", "name": "<tool_choice:function.name>"}],
}
NOT_IN_A_CHAT = {
    r"(conversation|metadata|previous_response_id|context_management)\b": "the gateway's own to keep",
    r"input.*\.(id|caller_id|namespace)$": "of items that are kept here",
    r"input:function_call_output\.name$": "said by the call",
    r"input.*:(output_text\.(annotations|logprobs)\b)": "of an earlier answer, beside its text",
    r"input:reasoning\.encrypted_content$": "read by its author alone",
    r"input:reasoning\.summary\b": "where the thought itself is there",
    r"input.*\.(file_id|file_url)$": "where the file itself is there",
    r"reasoning\.mode$": "of OpenAI's own models",
    r"tools:function\.output_schema\b": "templates have no place for it",
    r"tools\.(filters|user_location)\b": "of the web search, which runs at OpenAI's",
    r"tools:(code_interpreter|file_search|image_generation|mcp|shell|tool_search)\.": "of tools left out",
}


def read_response(body):
    read, fields = decode_responses_body(body)
    return to_chat_request(read, fields, [], items.input_items(read.input, "resp_1")).chat


def test_of_responses_nothing_is_left_out_that_a_model_should_read():
    lost, refused, passed = left_out("openai-3", RESPONSES, RESPONSE, read_response)
    assert [place for place in sorted(lost) if not any(re.match(left, place) for left in NOT_IN_A_CHAT)] == []
    assert refused <= {"conversation", "prompt", "tools", "tool_choice", "input"}
    assert {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "max_output_tokens",
    } <= passed
