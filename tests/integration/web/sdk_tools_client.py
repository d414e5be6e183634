"""What a user of the official openai SDK does with tools, schemas and log probabilities. See test_openai_sdk.py.

Usage: python sdk_tools_client.py BASE_URL KEY MODEL. Prints the SDK's version, and fails if anything is amiss.
"""

import json
import sys
from typing import Literal

import openai
from openai import OpenAI
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "What is it like in Oslo?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What it is like outside",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1, "maximum": 30},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["days", "unit"],
            "additionalProperties": False,
        },
    },
}


class Reply(BaseModel):
    mood: Literal["calm", "tired"]
    sure: bool


def expect(what: object) -> None:
    if not what:
        raise AssertionError("not as expected")


def valid(call: object) -> None:
    arguments = json.loads(call.function.arguments)
    expect(call.type == "function")
    expect(call.function.name == "get_weather")
    expect(arguments.keys() == {"days", "unit"})
    expect(1 <= arguments["days"] <= 30)


def required(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=1000,
    )
    choice = answer.choices[0]
    expect(choice.finish_reason == "tool_calls")
    expect(choice.message.content is None)
    (call,) = choice.message.tool_calls
    valid(call)
    # And the conversation goes on with what the SDK itself makes of the answer.
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    again = client.chat.completions.create(
        model=model, messages=[*MESSAGES, choice.message, result], tools=[TOOL], max_tokens=4
    )
    expect(again.usage.prompt_tokens > answer.usage.prompt_tokens)


def streamed(client: OpenAI, model: str) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, tools=[TOOL], tool_choice=named, max_tokens=1000
    ) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    expect("tool_calls.function.arguments.delta" in kinds)
    expect(choice.finish_reason == "tool_calls")
    valid(choice.message.tool_calls[0])


def parsed(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model, messages=MESSAGES, response_format=Reply, max_tokens=1000, temperature=2
    )
    expect(isinstance(answer.choices[0].message.parsed, Reply))
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=1000, extra_body={"regex": "[0-9]{3}"}
    )
    expect(whole.choices[0].message.content.isdigit())


def likely(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    expect(all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in content))
    text = client.completions.create(model=model, prompt="Once", max_tokens=4, logprobs=1, echo=False)
    expect(len(text.choices[0].logprobs.tokens) == len(text.choices[0].logprobs.token_logprobs) > 0)


def refused(client: OpenAI, model: str) -> None:
    for wrong in (
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}},
    ):
        try:
            client.chat.completions.create(model=model, messages=MESSAGES, **wrong)
        except openai.BadRequestError as err:
            expect(err.param)
        else:
            expect(False)


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = OpenAI(base_url=url, api_key=key)
    for part in (required, streamed, parsed, likely, refused):
        part(client, model)
    print(openai.__version__)


if __name__ == "__main__":
    main()
