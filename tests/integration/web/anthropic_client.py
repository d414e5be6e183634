"""What a user of the official anthropic SDK does. test_anthropic_sdk.py runs it.

Usage: python anthropic_client.py BASE_URL KEY MODEL. Prints the SDK's version, and fails if anything is amiss.
"""

import asyncio
import sys
import time

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "What is it like in Oslo?"}]
COLD = {"temperature": 0}
ONE = {"type": "any", "disable_parallel_tool_use": True}
TOOL = {
    "name": "get_weather",
    "description": "What it is like outside",
    "input_schema": {
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["days", "unit"],
        "additionalProperties": False,
    },
}


class Reply(BaseModel):
    sure: bool


def expect(what: object) -> None:
    if not what:
        raise AssertionError("not as expected")


def create(client: Anthropic, model: str) -> str:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = client.messages.create(
        model=model, system=system, messages=MESSAGES, max_tokens=8, extra_body=COLD
    )
    expect((answer.type, answer.role) == ("message", "assistant"))
    expect(answer.id.startswith("msg_"))
    expect(answer._request_id.startswith("req-"))
    expect(answer.stop_reason in ("end_turn", "max_tokens"))
    expect(answer.usage.output_tokens > 0)
    counted = client.messages.count_tokens(model=model, system=system, messages=MESSAGES)
    used = answer.usage
    expect(counted.input_tokens == used.input_tokens + used.cache_read_input_tokens)
    stop = answer.content[0].text[3:6]
    cut = client.messages.create(
        model=model,
        system=system,
        messages=MESSAGES,
        max_tokens=8,
        stop_sequences=["never said", stop],
        extra_body=COLD,
    )
    expect((cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop))
    begun = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    goes_on = client.messages.create(model=model, messages=begun, max_tokens=4)
    expect(goes_on.usage.output_tokens > 0)
    return answer.content[0].text


def stream(client: Anthropic, model: str, text: str) -> None:
    with client.messages.stream(
        model=model, system="Be brief.", messages=MESSAGES, max_tokens=8, extra_body=COLD
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    expect(kinds[0] == "message_start")
    expect(kinds[-1] == "message_stop")
    expect("".join(block.text for block in final.content) == text)
    expect(final.usage.output_tokens > 0)
    raw = client.messages.create(model=model, messages=MESSAGES, max_tokens=4, stream=True)
    expect([event.type for event in raw][-2:] == ["message_delta", "message_stop"])


def tools(client: Anthropic, model: str) -> None:
    answer = client.messages.create(
        model=model, messages=MESSAGES, max_tokens=1000, tools=[TOOL], tool_choice=ONE
    )
    expect(answer.stop_reason == "tool_use")
    use = next(block for block in answer.content if block.type == "tool_use")
    expect(use.name == "get_weather")
    expect(1 <= use.input["days"] <= 30)
    # And the conversation goes on with what the SDK itself makes of the answer.
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "rain"}]}
    said = {"role": "assistant", "content": answer.content}
    again = client.messages.create(
        model=model,
        messages=[*MESSAGES, said, {"role": "user", "content": [result]}],
        max_tokens=4,
        tools=[TOOL],
    )
    expect(again.usage.input_tokens + again.usage.cache_read_input_tokens > answer.usage.input_tokens)
    with client.messages.stream(
        model=model,
        messages=MESSAGES,
        max_tokens=1000,
        tools=[TOOL],
        tool_choice={**ONE, "type": "tool", "name": "get_weather"},
    ) as events:
        kinds = {event.type for event in events}
        final = events.get_final_message()
    expect("input_json" in kinds)
    expect(final.stop_reason == "tool_use")
    expect(set(final.content[-1].input) == {"days", "unit"})


def parsed(client: Anthropic, model: str) -> None:
    answer = client.messages.parse(model=model, messages=MESSAGES, max_tokens=200, output_format=Reply)
    expect(isinstance(answer.parsed_output, Reply))


def models(client: Anthropic, model: str) -> None:
    listed = list(client.models.list())
    expect(model in [card.id for card in listed])
    expect(client.models.retrieve(model).type == "model")


def errors(client: Anthropic, url: str, model: str) -> None:
    stranger = Anthropic(base_url=url, api_key="wrong")
    for wrong, kind, name in (
        (
            lambda: client.messages.create(model="none", messages=MESSAGES, max_tokens=1),
            anthropic.NotFoundError,
            "not_found_error",
        ),
        (
            lambda: client.messages.create(model=model, messages=[], max_tokens=1),
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
        (
            lambda: stranger.messages.create(model=model, messages=MESSAGES, max_tokens=1),
            anthropic.AuthenticationError,
            "authentication_error",
        ),
    ):
        try:
            wrong()
        except kind as err:
            expect(err.body["error"]["type"] == name)
            expect(err.request_id)
        else:
            expect(False)


def batches(client: Anthropic, model: str) -> None:
    for of in (client.messages.batches, client.beta.messages.batches):
        body = {"model": model, "messages": MESSAGES, "max_tokens": 4}
        made = of.create(
            requests=[
                {"custom_id": "good", "params": body},
                {"custom_id": "bad", "params": {**body, "model": "none"}},
            ]
        )
        expect((made.type, made.request_counts.processing) == ("message_batch", 2))
        expect(made._request_id.startswith("req-"))
        while (batch := of.retrieve(made.id)).processing_status != "ended":
            time.sleep(0.1)
        counts = batch.request_counts
        expect((counts.processing, counts.succeeded, counts.errored) == (0, 1, 1))
        expect(batch.created_at <= batch.ended_at < batch.expires_at)
        results = {entry.custom_id: entry.result for entry in of.results(made.id)}
        expect(results["good"].message.usage.output_tokens > 0)
        expect(results["good"].message.content[0].type == "text")
        expect(results["bad"].type == "errored")
        expect(results["bad"].error.error.type == "not_found_error")
        more = [of.create(requests=[{"custom_id": "a", "params": body}]).id for _ in range(2)]
        expect([entry.id for entry in of.list(limit=1)][:3] == [*more[::-1], made.id])
        newer = of.list(limit=1, before_id=made.id)
        expect([entry.id for entry in newer.data] == more[:1])
        long = {**body, "max_tokens": 2000, "stop_sequences": ["never said"]}
        begun = of.create(requests=[{"custom_id": f"row-{at}", "params": long} for at in range(200)])
        expect(of.cancel(begun.id).processing_status == "canceling")
        while (stopped := of.retrieve(begun.id)).processing_status != "ended":
            time.sleep(0.1)
        expect(stopped.cancel_initiated_at is not None)
        expect(stopped.request_counts.canceled > 100)
        expect(of.delete(made.id).type == "message_batch_deleted")
        for gone in (of.retrieve, of.results, of.cancel, of.delete):
            try:
                gone(made.id)
            except anthropic.NotFoundError as err:
                expect(err.body["error"]["type"] == "not_found_error")
            else:
                expect(False)
    try:
        client.messages.batches.create(requests=[{"custom_id": "not an id", "params": body}])
    except anthropic.BadRequestError as err:
        expect("requests.0" in str(err))
    else:
        expect(False)


async def batches_at_once(url: str, key: str, model: str) -> None:
    params = {"model": model, "messages": MESSAGES, "max_tokens": 2}
    async with AsyncAnthropic(base_url=url, api_key=key) as client:
        made = await client.messages.batches.create(
            requests=[{"custom_id": f"row-{number}", "params": params} for number in range(20)]
        )
        while (await client.messages.batches.retrieve(made.id)).processing_status != "ended":
            await asyncio.sleep(0.1)
        results = [entry async for entry in await client.messages.batches.results(made.id)]
        expect({entry.result.type for entry in results} == {"succeeded"})
        expect(len(results) == 20)


async def many_at_once(url: str, key: str, model: str) -> None:
    # The other way to present a key, which Claude Code uses with ANTHROPIC_AUTH_TOKEN.
    async with AsyncAnthropic(base_url=url, auth_token=key, api_key=None) as client:

        async def one(number: int) -> str | None:
            request = {"role": "user", "content": f"Question {number}"}
            async with client.messages.stream(model=model, messages=[request], max_tokens=6) as events:
                return (await events.get_final_message()).stop_reason

        expect(set(await asyncio.gather(*map(one, range(6)))) <= {"end_turn", "max_tokens"})


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = Anthropic(base_url=url, api_key=key)
    stream(client, model, create(client, model))
    tools(client, model)
    parsed(client, model)
    models(client, model)
    errors(client, url, model)
    batches(client, model)
    asyncio.run(many_at_once(url, key, model))
    asyncio.run(batches_at_once(url, key, model))
    print(anthropic.__version__)


if __name__ == "__main__":
    main()
