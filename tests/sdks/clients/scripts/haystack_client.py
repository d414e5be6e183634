"""What a user of Haystack does."""

import os

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
    status_of,
    text_of,
)

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ImageContent
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel


class Place(BaseModel):
    city: str
    days: int


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def generator_with(key, **more):
    return OpenAIChatGenerator(
        api_base_url=BASE_URL, api_key=Secret.from_token(key), model=MODEL, max_retries=0, **more
    )


def ask(content, key=API_KEY, **more):
    message = ChatMessage.from_user(content) if isinstance(content, str) else content
    return generator_with(key, **more).run([message])["replies"][0].text


results["chat"] = ask("Hello")
pieces = []
ask("Hello", streaming_callback=lambda chunk: pieces.append(chunk.content))
results["stream"] = "".join(pieces)
agent = Agent(chat_generator=generator_with(API_KEY), tools=[create_tool_from_function(add)])
results["tools"] = agent.run(messages=[ChatMessage.from_user(USE_ADD)])["messages"][-1].text
results["schema"] = ask("Where?", generation_kwargs={"response_format": Place})
image = ImageContent(base64_image=PIXEL, mime_type="image/png")
results["image"] = ask(ChatMessage.from_user(content_parts=["What is this?", image]))
results["wrong_key"] = status_of(lambda: ask("Hello", "wrong"))
results["over_quota"] = status_of(lambda: ask("Hello", SPENT_KEY))
results["too_long"] = text_of(lambda: ask(TOO_LONG))
print_results()
