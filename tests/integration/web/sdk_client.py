"""What a user of the official openai SDK does. test_openai_sdk.py runs it with one version after another.

Usage: python sdk_client.py BASE_URL KEY MODEL. Prints the SDK's version, and raises if anything is not as expected.
"""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]


def expect(what: object) -> None:
    if not what:
        raise AssertionError("not as expected")


def chat(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    expect(answer.object == "chat.completion")
    expect(answer.choices[0].finish_reason in ("stop", "length"))
    expect(answer.choices[0].message.role == "assistant")
    expect(answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens)
    expect(answer.usage.prompt_tokens_details.cached_tokens >= 0)
    expect(answer._request_id.startswith("req-"))


def stream(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, temperature=0, stream=True
        )
    )
    expect("".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content)
    expect([c.choices[0].finish_reason for c in chunks][-1] in ("stop", "length"))
    expect(all(c.choices for c in chunks))
    asked = list(
        client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    expect(asked[-1].choices == [])
    expect(asked[-1].usage.completion_tokens > 0)


def completions(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=4, temperature=0)
    expect(answer.object == "text_completion")
    pieces = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=4, temperature=0, stream=True
    )
    expect("".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text)


def models(client: OpenAI, model: str) -> None:
    expect(model in [card.id for card in client.models.list()])
    expect(client.models.retrieve(model).id == model)


def errors(client: OpenAI, url: str, key: str, model: str) -> None:
    for wrong, kind, code in (
        (
            lambda: client.chat.completions.create(model="none", messages=MESSAGES),
            openai.NotFoundError,
            "model_not_found",
        ),
        (
            lambda: client.chat.completions.create(model=model, messages=[]),
            openai.BadRequestError,
            "invalid_request",
        ),
        (
            lambda: OpenAI(base_url=url, api_key="wrong").models.list(),
            openai.AuthenticationError,
            "invalid_api_key",
        ),
    ):
        try:
            wrong()
        except kind as err:
            expect(err.code == code)
            expect(err.request_id)
        else:
            expect(False)


async def many_at_once(url: str, key: str, model: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key=key) as client:

        async def one(number: int) -> str | None:
            """How the stream ended. Its text may be empty: a model of random weights may end at once."""
            request, ending = {"role": "user", "content": f"Question {number}"}, None
            async for chunk in await client.chat.completions.create(
                model=model, messages=[MESSAGES[0], request], max_tokens=6, stream=True
            ):
                ending = chunk.choices[0].finish_reason or ending
            return ending

        endings = await asyncio.gather(*(one(number) for number in range(8)))
        expect(all(ending in ("stop", "length") for ending in endings))


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = OpenAI(base_url=url, api_key=key)
    chat(client, model)
    stream(client, model)
    completions(client, model)
    models(client, model)
    errors(client, url, key, model)
    asyncio.run(many_at_once(url, key, model))
    print(openai.__version__)


if __name__ == "__main__":
    main()
