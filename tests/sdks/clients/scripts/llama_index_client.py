"""What a user of LlamaIndex does."""

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
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Place(BaseModel):
    city: str
    days: int


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def llm_with(key):
    return OpenAILike(
        model=MODEL,
        api_base=BASE_URL,
        api_key=key,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )


llm = llm_with(API_KEY)
results["chat"] = str(llm.complete("Hello"))
results["stream"] = "".join(part.delta or "" for part in llm.stream_complete("Hello"))
results["tools"] = llm.predict_and_call([FunctionTool.from_defaults(add)], USE_ADD).response
results["schema"] = llm.as_structured_llm(Place).complete("Where?").raw.model_dump()
image = ImageBlock(url=f"data:image/png;base64,{PIXEL}")
asked = ChatMessage(role="user", blocks=[TextBlock(text="What is this?"), image])
results["image"] = llm.chat([asked]).message.content
for _ in llm.stream_complete("count slowly one two three four"):
    break
results["wrong_key"] = status_of(lambda: llm_with("wrong").complete("Hello"))
results["over_quota"] = status_of(lambda: llm_with(SPENT_KEY).complete("Hello"))
results["too_long"] = text_of(lambda: llm.complete(TOO_LONG))
print_results()
