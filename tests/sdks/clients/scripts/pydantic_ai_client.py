"""What a user of pydantic-ai does. Usage: python pydantic_ai_client.py openai|responses|anthropic."""

import asyncio
import base64
import sys

from client_results import (
    API_KEY,
    BASE_URL,
    MODEL,
    PIXEL,
    SPENT_KEY,
    TOO_LONG,
    USE_ADD,
    print_results,
    results,
    status_in,
)
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent


class Place(BaseModel):
    city: str
    days: int


def model_with(key):
    if sys.argv[1] == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        url = BASE_URL.removesuffix("/v1")
        return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=key))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if sys.argv[1] == "openai" else OpenAIResponsesModel
    return kind(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=key))


async def refusal(key, text):
    try:
        await Agent(model_with(key)).run(text)
    except Exception as err:
        return status_in(err), str(err)
    return None, ""


async def main():
    model = model_with(API_KEY)
    agent = Agent(model)
    results["chat"] = (await agent.run("Hello")).output
    async with agent.run_stream("Hello") as streamed:
        results["stream"] = "".join([text async for text in streamed.stream_text(delta=True)])
    with_tools = Agent(model)

    @with_tools.tool_plain
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    results["tools"] = (await with_tools.run(USE_ADD)).output
    results["schema"] = (await Agent(model, output_type=Place).run("Where?")).output.model_dump()
    image = BinaryContent(data=base64.b64decode(PIXEL), media_type="image/png")
    results["image"] = (await agent.run(["What is this?", image])).output
    async with agent.run_stream("count slowly one two three four") as streamed:
        async for _ in streamed.stream_text():
            break
    results["wrong_key"] = (await refusal("wrong", "Hello"))[0]
    results["over_quota"] = (await refusal(SPENT_KEY, "Hello"))[0]
    results["too_long"] = (await refusal(API_KEY, TOO_LONG))[1]


asyncio.run(main())
print_results()
