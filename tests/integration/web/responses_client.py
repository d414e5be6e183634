"""What a user of the official openai SDK does with the Responses API. See test_openai_sdk.py.

Usage: python responses_client.py BASE_URL KEY MODEL. Prints the SDK's version, and fails if anything is amiss.
"""

import json
import sys
import time

import openai
from openai import OpenAI
from pydantic import BaseModel

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "What it is like outside",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 30}},
        "required": ["days"],
        "additionalProperties": False,
    },
}


class Reply(BaseModel):
    sure: bool


def expect(what: object) -> None:
    if not what:
        raise AssertionError("not as expected")


def conversation(client: OpenAI, model: str) -> None:
    first = client.responses.create(
        model=model, instructions="Be brief.", input="Hello there", max_output_tokens=6, temperature=0
    )
    expect(first.object == "response")
    expect(first.status in ("completed", "incomplete"))
    expect(first.output[-1].type == "message")
    expect(first.output_text == first.output[-1].content[0].text)
    expect(first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens)
    counted = client.responses.input_tokens.count(model=model, instructions="Be brief.", input="Hello there")
    expect(counted.input_tokens == first.usage.input_tokens)
    second = client.responses.create(
        model=model,
        input="And then?",
        previous_response_id=first.id,
        max_output_tokens=6,
        metadata={"a": "b"},
    )
    expect(second.previous_response_id == first.id)
    expect(second.usage.input_tokens > first.usage.input_tokens)
    found = client.responses.retrieve(second.id)
    expect(found.output_text == second.output_text)
    expect(found.metadata == {"a": "b"})
    items = list(client.responses.input_items.list(second.id))
    expect([item.content[0].text for item in items] == ["And then?"])
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
    sent = client.responses.create(model=model, input=said, max_output_tokens=4)
    items = list(client.responses.input_items.list(sent.id, order="asc"))
    expect([(item.role, item.content[0].text) for item in items] == [("user", "Hello"), ("assistant", "Hi.")])
    named = [{"type": "item_reference", "id": item.id} for item in (*items, *second.output)]
    third = client.responses.create(
        model=model, input=[*named, {"role": "user", "content": "Go on"}], max_output_tokens=4
    )
    items = list(client.responses.input_items.list(third.id, order="asc"))
    expect([item.id for item in items[:-1]] == [item["id"] for item in named])
    client.responses.delete(second.id)
    try:
        client.responses.retrieve(second.id)
    except openai.NotFoundError:
        pass
    else:
        expect(False)


def streamed(client: OpenAI, model: str) -> None:
    asked = {"model": model, "input": "Hello there", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(store=False, **asked)
    events = list(client.responses.create(stream=True, **asked))
    expect([event.sequence_number for event in events] == list(range(len(events))))
    expect(events[0].type == "response.created")
    expect(events[-1].response.output_text == whole.output_text)
    expect("".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text)
    expect(client.responses.retrieve(events[0].response.id).output_text == whole.output_text)


def background(client: OpenAI, model: str) -> None:
    asked = {"model": model, "input": "Hello there", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(store=False, **asked)
    begun = client.responses.create(background=True, **asked)
    expect(begun.status == "queued")
    until = time.monotonic() + 60
    while (found := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        expect(time.monotonic() < until)
        time.sleep(0.1)
    expect(found.output_text == whole.output_text)
    live = list(client.responses.create(background=True, stream=True, **asked))
    again = list(client.responses.retrieve(live[0].response.id, stream=True, starting_after=3))
    expect([event.sequence_number for event in again] == list(range(4, len(live))))
    expect(again[-1].response.output_text == whole.output_text)
    expect(client.responses.cancel(begun.id).status == found.status)


def tools(client: OpenAI, model: str) -> None:
    asked = {"model": model, "tools": [TOOL], "parallel_tool_calls": False, "max_output_tokens": 1000}
    answer = client.responses.create(input="What is it like in Oslo?", tool_choice="required", **asked)
    call = next(item for item in answer.output if item.type == "function_call")
    expect(1 <= json.loads(call.arguments)["days"] <= 30)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again = client.responses.create(
        previous_response_id=answer.id, **{**asked, "input": [result], "max_output_tokens": 4}
    )
    expect(again.usage.input_tokens > answer.usage.input_tokens)
    free = {"type": "custom", "name": "note", "description": "Writes down a text"}
    chosen = {"type": "custom", "name": "note"}
    events = list(
        client.responses.create(
            model=model,
            input="Note it",
            tools=[free],
            tool_choice=chosen,
            max_output_tokens=1000,
            stream=True,
        )
    )
    noted = events[-1].response.output[-1]
    expect((noted.type, noted.name) == ("custom_tool_call", "note"))
    expect([e.input for e in events if e.type == "response.custom_tool_call_input.done"] == [noted.input])
    result = {"type": "custom_tool_call_output", "call_id": noted.call_id, "output": "done"}
    after = client.responses.create(
        model=model,
        input=[result],
        previous_response_id=events[-1].response.id,
        tools=[free],
        max_output_tokens=4,
    )
    expect(after.usage.input_tokens > events[-1].response.usage.input_tokens)
    with client.responses.stream(
        input="And in Rome?", tool_choice={"type": "function", "name": "get_weather"}, **asked
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    expect("response.function_call_arguments.delta" in kinds)
    expect(final.output[-1].type == "function_call")
    parsed = client.responses.parse(model=model, input="Are you?", text_format=Reply, max_output_tokens=200)
    expect(isinstance(parsed.output_parsed, Reply))


def refused(client: OpenAI, model: str) -> None:
    for wrong, param in (
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": []}, "input"),
        (
            {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
        ),
        ({"input": [{"type": "computer_call", "id": "cc_1"}]}, "input[0].type"),
    ):
        try:
            client.responses.create(model=model, **wrong)
        except openai.BadRequestError as err:
            expect(err.param == param)
        else:
            expect(False)


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = OpenAI(base_url=url, api_key=key)
    for part in (conversation, streamed, background, tools, refused):
        part(client, model)
    print(openai.__version__)


if __name__ == "__main__":
    main()
