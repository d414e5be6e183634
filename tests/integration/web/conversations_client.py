"""What a user of the official openai SDK does with conversations and compaction. See test_openai_sdk.py.

Usage: python conversations_client.py BASE_URL KEY MODEL. Prints the SDK's version, and fails if anything is amiss.
"""

import sys

import openai
from openai import OpenAI


def expect(what: object) -> None:
    if not what:
        raise AssertionError("not as expected")


def missing(call: object) -> None:
    try:
        call()
    except openai.NotFoundError:
        return
    raise AssertionError("it still exists")


def objects(client: OpenAI) -> None:
    said = {"type": "message", "role": "user", "content": "Hello"}
    made = client.conversations.create(metadata={"topic": "a"}, items=[said])
    expect(made.object == "conversation")
    expect(client.conversations.retrieve(made.id) == made)
    expect(client.conversations.update(made.id, metadata={"topic": "b"}).metadata == {"topic": "b"})
    expect(client.conversations.retrieve(made.id).metadata == {"topic": "b"})
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
    added = client.conversations.items.create(made.id, items=[call, result])
    expect([item.type for item in added.data] == ["function_call", "function_call_output"])
    listed = list(client.conversations.items.list(made.id, limit=2))
    expect([item.type for item in listed] == ["function_call_output", "function_call", "message"])
    forward = list(client.conversations.items.list(made.id, order="asc", limit=1))
    expect([item.id for item in forward] == [item.id for item in reversed(listed)])
    message = client.conversations.items.retrieve(listed[-1].id, conversation_id=made.id)
    expect((message.role, message.content[0].text) == ("user", "Hello"))
    expect(client.conversations.items.delete(listed[0].id, conversation_id=made.id).id == made.id)
    missing(lambda: client.conversations.items.retrieve(listed[0].id, conversation_id=made.id))
    expect(client.conversations.delete(made.id).deleted)
    missing(lambda: client.conversations.retrieve(made.id))
    missing(lambda: client.conversations.items.list(made.id))


def continued(client: OpenAI, model: str) -> None:
    conversation = client.conversations.create()
    asked = {"model": model, "max_output_tokens": 6, "temperature": 0, "conversation": conversation.id}
    first = client.responses.create(input="Hello there", **asked)
    expect(first.conversation.id == conversation.id)
    second = list(client.responses.create(input="And then?", stream=True, **asked))[-1].response
    expect(second.usage.input_tokens > first.usage.input_tokens)
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    expect([item.role for item in items] == ["user", "assistant", "user", "assistant"])
    expect(items[1].id == first.output[-1].id)
    expect(items[3].content[0].text == second.output_text)
    try:
        client.responses.create(input="x", previous_response_id=first.id, **asked)
    except openai.BadRequestError as err:
        expect(err.param == "previous_response_id")
    else:
        expect(False)
    missing(lambda: client.responses.create(input="x", **{**asked, "conversation": "conv_none"}))


def compacted(client: OpenAI, model: str) -> None:
    said = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "Go on."},
    ]
    # The summary of a model with random weights would go on to the end of its context.
    short = client.responses.compact(model=model, input=said, extra_body={"max_output_tokens": 32})
    expect(short.object == "response.compaction")
    expect([item.type for item in short.output] == ["message", "message", "compaction"])
    expect(short.usage.input_tokens > 0)
    items = [item.model_dump(exclude_unset=True) for item in short.output]
    after = client.responses.create(
        model=model, input=[*items, {"role": "user", "content": "Now?"}], max_output_tokens=4
    )
    expect(after.usage.input_tokens > 0)


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = OpenAI(base_url=url, api_key=key)
    objects(client)
    continued(client, model)
    compacted(client, model)
    print(openai.__version__)


if __name__ == "__main__":
    main()
