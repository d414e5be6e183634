"""What a user of litellm does. Usage: python litellm_client.py openai|anthropic."""

import sys

import litellm
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
)

base_url = BASE_URL if sys.argv[1] == "openai" else BASE_URL.removesuffix("/v1")
model = f"{sys.argv[1]}/{MODEL}"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def complete(content, key=API_KEY, **more):
    messages = [{"role": "user", "content": content}]
    return litellm.completion(model, messages, api_base=base_url, api_key=key, max_retries=0, **more)


results["chat"] = complete("Hello").choices[0].message.content
results["stream"] = "".join(
    chunk.choices[0].delta.content or "" for chunk in complete("Hello", stream=True) if chunk.choices
)
call = complete(USE_ADD, tools=[ADD]).choices[0].message
results["tools"] = (
    litellm.completion(
        model,
        [
            {"role": "user", "content": USE_ADD},
            call,
            {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "5"},
        ],
        tools=[ADD],
        api_base=base_url,
        api_key=API_KEY,
    )
    .choices[0]
    .message.content
)
image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
results["image"] = complete([{"type": "text", "text": "What is this?"}, image]).choices[0].message.content
for _ in complete("count slowly one two three four", stream=True):
    break
results["wrong_key"] = status_of(lambda: complete("Hello", "wrong"))
results["over_quota"] = status_of(lambda: complete("Hello", SPENT_KEY))
try:
    complete(TOO_LONG)
except litellm.ContextWindowExceededError as err:
    results["too_long"] = str(err)
print_results()
