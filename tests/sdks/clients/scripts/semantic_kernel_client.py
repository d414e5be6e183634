"""What a user of semantic-kernel does."""

import asyncio

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
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory, ChatMessageContent, ImageContent, TextContent
from semantic_kernel.functions import kernel_function


class Place(BaseModel):
    city: str
    days: int


class Numbers:
    @kernel_function
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


def service_with(key):
    client = AsyncOpenAI(base_url=BASE_URL, api_key=key, max_retries=0)
    return OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)


def history(text):
    asked = ChatHistory()
    asked.add_user_message(text)
    return asked


async def refusal(key, text):
    try:
        await service_with(key).get_chat_message_content(history(text), OpenAIChatPromptExecutionSettings())
    except Exception as err:
        return status_in(err), f"{err} {err.__cause__}"
    return None, ""


async def main():
    service, settings = service_with(API_KEY), OpenAIChatPromptExecutionSettings()
    results["chat"] = str(await service.get_chat_message_content(history("Hello"), settings))
    pieces = [
        str(piece) async for piece in service.get_streaming_chat_message_content(history("Hello"), settings)
    ]
    results["stream"] = "".join(pieces)
    kernel = Kernel()
    kernel.add_plugin(Numbers(), "n")
    tools = OpenAIChatPromptExecutionSettings(function_choice_behavior=FunctionChoiceBehavior.Auto())
    asked = history(USE_ADD.replace("use add", "use n-add"))
    results["tools"] = str(await service.get_chat_message_content(asked, tools, kernel=kernel))
    typed = OpenAIChatPromptExecutionSettings(response_format=Place)
    results["schema"] = str(await service.get_chat_message_content(history("Where?"), typed))
    image = ImageContent(data_uri=f"data:image/png;base64,{PIXEL}")
    shown = ChatHistory()
    shown.add_message(ChatMessageContent(role="user", items=[TextContent(text="What is this?"), image]))
    results["image"] = str(await service.get_chat_message_content(shown, settings))
    results["wrong_key"] = (await refusal("wrong", "Hello"))[0]
    results["over_quota"] = (await refusal(SPENT_KEY, "Hello"))[0]
    results["too_long"] = (await refusal(API_KEY, TOO_LONG))[1]


asyncio.run(main())
print_results()
