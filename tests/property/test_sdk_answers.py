"""Translated answers have every field that the SDKs' own types require, with the right types."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import msgspec
import pytest

from gateway.domain.errors import Overloaded
from gateway.web.anthropic import answers as messages
from gateway.web.error_response import anthropic_error_body
from gateway.web.openai import chat_completions
from gateway.web.responses import answers as responses
from gateway.web.responses import items, wire
from gateway.web.responses.events import ResponseEvents
from gateway.web.responses.tools import ChatTools
from tests.unit.gateway.web.anthropic import test_events
from tests.unit.gateway.web.responses import test_items

TOOLS = Path(__file__).parents[2] / ".tools"
SAID = {
    "role": "assistant",
    "content": "Look.",
    "reasoning_content": "hm",
    "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
}
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


@pytest.fixture(scope="module")
def faults():
    """Return a function that says what an SDK's type does not take; each SDK is imported once, by a process."""
    with ExitStack() as stack:

        @cache
        def reader(sdk):
            if not (TOOLS / sdk).is_dir():
                pytest.skip(f"{sdk} is not installed; `make test` puts it into .tools")
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("sdk_answers.py"))],
                env={**os.environ, "PYTHONPATH": str(TOOLS / sdk)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            return stack.enter_context(process)

        def found_by(sdk, kind, answers):
            told = []
            for answer in answers:
                print(json.dumps([*kind.split(), answer]), file=reader(sdk).stdin, flush=True)
                told.append(json.loads(reader(sdk).stdout.readline()))
            return [(fault, answer) for fault, answer in zip(told, answers, strict=True) if fault]

        yield found_by


def chat(**choice):
    body = {"model": "m", "choices": [{"message": SAID, "finish_reason": "stop", **choice}], "usage": USAGE}
    return chat_completions.decode_chat_completion(json.dumps(body).encode())


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "content_filter"])
def test_a_message(faults, finish):
    made = messages.message_object(chat(finish_reason=finish), "msg_1", ())
    assert faults("anthropic", "anthropic.types Message", [made]) == []


def test_a_messages_events(faults):
    made = [
        event
        for name, event in test_events.translated(*test_events.STREAM)
        if name != "ping"  # The SDK reads past it.
    ]
    assert len({event["type"] for event in made}) == 6
    assert faults("anthropic", "anthropic.types RawMessageStreamEvent", made) == []


def test_an_error(faults):
    made = json.loads(anthropic_error_body(Overloaded(1), "req-1"))
    assert faults("anthropic", "anthropic.types ErrorResponse", [made]) == []


ASKED = wire.ResponsesBody(
    model="m",
    input="hi",
    instructions="Be brief.",
    tools=[
        wire.FunctionTool(name="f", parameters={"type": "object"}, strict=True),
        wire.CustomTool(
            name="g", format=wire.CustomToolFormat(type="grammar", syntax="lark", definition="s: /a/")
        ),
        wire.NamespaceTool(name="n", description="more", tools=[wire.CustomTool(name="u")]),
    ],
    tool_choice=wire.FunctionToolChoice(name="f"),
    text=wire.TextOptions(
        format=wire.TextFormat(type="json_schema", name="s", schema={"type": "object"}), verbosity="low"
    ),
    reasoning=wire.ReasoningOptions(effort="low"),
    max_output_tokens=4,
    metadata={"a": "b"},
    max_tool_calls=3,
    prompt_cache_key="k",
    safety_identifier="s",
    service_tier="flex",
    top_logprobs=2,
    user="u",
)


@pytest.mark.parametrize("sdk", ["openai-2", "openai-3"])
@pytest.mark.parametrize("body", [wire.ResponsesBody(model="m", input="hi"), ASKED], ids=["bare", "full"])
def test_a_response_and_its_events(faults, sdk, body):
    tools = ChatTools(msgspec.to_builtins(body.tools))
    opening = responses.new_response("resp_1", 1.0, body, tools.offered, stored=True)
    output, choice = responses.output_items(chat(), "resp_1", tools)
    whole = [
        responses.finished_response(opening, output, finish, choice_usage, 2.0)
        for finish in ("stop", "length")
        for choice_usage in (chat().parsed_usage, None)
    ]
    made = json.loads(
        msgspec.json.encode([opening, *whole, responses.failed_response(opening, Overloaded(1))])
    )
    assert choice.finish_reason == "stop"
    assert [made[0][name] for name in responses.ECHOED_FIELDS] == [
        getattr(body, name) for name in responses.ECHOED_FIELDS
    ]
    assert faults(sdk, "openai.types.responses Response", made) == []
    events = ResponseEvents(opening, tools)
    text = events.begin() + b"".join(map(events.feed, test_items.STREAM))
    closing, output = events.close()
    text += closing + events.last(
        responses.finished_response(events.response, output, events.finish_reason, events.usage, 2.0)
    )
    found = [json.loads(part.split("\ndata: ")[1]) for part in text.decode().split("\n\n")[:-1]]
    kinds = {event["type"] for event in found}
    assert len(kinds) > 10
    assert ("response.custom_tool_call_input.done" in kinds) is (body is ASKED)
    assert faults(sdk, "openai.types.responses ResponseStreamEvent", found) == []


@pytest.mark.parametrize("sdk", ["openai-2", "openai-3"])
def test_the_input_items_of_a_response(faults, sdk):
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    given = [
        *({"role": role, "content": "Hi"} for role in ("user", "assistant", "system", "developer")),
        {"role": "user", "content": [{"type": "input_text", "text": "Look."}, image]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image]},
        {"type": "custom_tool_call", "call_id": "d", "name": "t", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "y"},
    ]
    own = items.input_items([msgspec.Raw(json.dumps(item).encode()) for item in given], "resp_1")
    made = [items.item_object(item) for item in own]
    assert faults(sdk, "openai.types.responses ResponseItem", made) == []
