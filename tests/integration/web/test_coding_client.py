"""A coding client of Anthropic's, as it speaks on the wire, with base URL and key alone."""

import json

from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.web.test_messages_api import names

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
CACHED = {"type": "ephemeral"}
SYSTEM = [
    {"type": "text", "text": "x-billing-header: version=2", "cache_control": None},
    {"type": "text", "text": "You are a coding assistant.", "cache_control": CACHED},
    {"type": "text", "text": "The directory is /src.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]
TOOLS = [
    {
        "name": name,
        "description": f"{name}s a file",
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
        "cache_control": CACHED,
        "eager_input_streaming": True,
    }
    for name in ("Read", "Write")
]
TRANSCRIPT = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nBe careful.\n</system-reminder>"},
            {"type": "text", "text": "Look at a.py", "cache_control": CACHED},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "It is in a file.", "signature": "c2ln"},
            {"type": "text", "text": "I will read it."},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a.py"}},
            {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"path": "b.py"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "print()"}],
            },
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": "no such file",
                "is_error": True,
                "cache_control": CACHED,
            },
        ],
    },
]
BODY = {
    "model": "m",
    "messages": TRANSCRIPT,
    "system": SYSTEM,
    "tools": TOOLS,
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "user_0_account__session_1"},
    "max_tokens": 32000,
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "temperature": 1,
    "stream": True,
}


def post(running, path, body):
    headers = {**HEADERS, "Authorization": f"Bearer {running.keys['acme'].text}"}
    return running.http.post(f"{running.url}{path}?beta=true", json=body, headers=headers)


async def test_its_transcript_reaches_the_worker_as_a_chat_and_its_stream_comes_back(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, "/v1/messages", BODY) as response:
            text = await response.text()
            assert response.status == 200, text
        async with post(running, "/v1/messages/count_tokens", _counted()) as response:
            assert (await response.json())["input_tokens"] > 20
        # Before anything else it asks whether it is let in at all.
        quota = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
        async with post(running, "/v1/messages", quota) as response:
            assert (response.status, (await response.json())["type"]) == (200, "message")
        async with post(running, "/v1/messages", {**BODY, "model": "unknown"}) as response:
            assert (response.status, (await response.json())["error"]["type"]) == (404, "not_found_error")
        await running.until(lambda: running.idle)
    asked = worker.seen[0].body
    assert [message["role"] for message in asked["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    calls = asked["messages"][2]["tool_calls"]
    assert [(call["id"], json.loads(call["function"]["arguments"])) for call in calls] == [
        ("toolu_1", {"path": "a.py"}),
        ("toolu_2", {"path": "b.py"}),
    ]
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["Read", "Write"]
    assert (asked["max_tokens"], asked["temperature"], asked["stream"]) == (32000, 1, True)
    # What is Anthropic's own business stays here.
    assert not {"context_management", "metadata", "thinking", "system"} & set(asked)
    assert "cache_control" not in json.dumps(asked)
    assert names(text)[0] == "message_start"
    assert names(text)[-1] == "message_stop"


def _counted():
    return {name: BODY[name] for name in ("model", "messages", "system", "tools", "thinking")}
