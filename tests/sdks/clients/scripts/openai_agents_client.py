"""What a user of openai-agents does. Usage: python openai_agents_client.py responses|chat."""

import asyncio
import os
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

os.environ["OPENAI_BASE_URL"] = BASE_URL
os.environ["OPENAI_API_KEY"] = API_KEY
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)  # traces would go to OpenAI
if sys.argv[1] == "chat":
    set_default_openai_api("chat_completions")


class Place(BaseModel):
    city: str
    days: int


@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent_with(key):
    from agents import OpenAIChatCompletionsModel, OpenAIResponsesModel

    kind = OpenAIChatCompletionsModel if sys.argv[1] == "chat" else OpenAIResponsesModel
    client = AsyncOpenAI(base_url=BASE_URL, api_key=key, max_retries=0)
    return Agent(name="a", model=kind(MODEL, client))


async def status(agent, text):
    try:
        await Runner.run(agent, text)
    except Exception as err:
        return status_in(err), str(err)
    return None, ""


async def main():
    agent = Agent(name="assistant", model=MODEL)
    results["chat"] = (await Runner.run(agent, "Hello")).final_output
    streamed = Runner.run_streamed(agent, "Hello")
    deltas = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    results["stream"] = "".join(deltas)
    with_tools = Agent(name="assistant", model=MODEL, tools=[add])
    results["tools"] = (await Runner.run(with_tools, USE_ADD)).final_output
    typed = Agent(name="assistant", model=MODEL, output_type=Place)
    results["schema"] = (await Runner.run(typed, "Where?")).final_output.model_dump()
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
    ]
    results["image"] = (await Runner.run(agent, [{"role": "user", "content": content}])).final_output
    slow = Runner.run_streamed(agent, "count slowly one two three four")
    async for event in slow.stream_events():
        if event.type == "raw_response_event":
            slow.cancel()
            break
    results["wrong_key"] = (await status(agent_with("wrong"), "Hello"))[0]
    results["over_quota"] = (await status(agent_with(SPENT_KEY), "Hello"))[0]
    results["too_long"] = (await status(agent_with(API_KEY), TOO_LONG))[1]


asyncio.run(main())
print_results()
