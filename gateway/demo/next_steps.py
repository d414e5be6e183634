"""The text that the demo prints at its end: addresses of the gateway, and requests by curl and by both SDKs."""

from pathlib import Path

QUESTION = "What is prefix caching?"
"""The question of all examples."""


def next_steps(*, url: str, admin_url: str, settings_file: Path, key: str, model: str) -> str:
    """Return how to use the running gateway.

    Args:
        url: URL of the listener for tenants.
        admin_url: URL of the listener for operators.
        settings_file: the settings of the gateway.
        key: an API key.
        model: name of a model that is served.
    """
    messages = f'[{{"role": "user", "content": "{QUESTION}"}}]'
    return f"""\
The gateway keeps running at {url}; Ctrl-C ends everything.

  console         {admin_url}/ui/
  metrics         {admin_url}/metrics
  settings        {settings_file}

  curl {url}/v1/chat/completions \\
    -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": {messages}, "max_tokens": 32}}'

  from openai import OpenAI

  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  for chunk in client.chat.completions.create(
      model="{model}", stream=True, max_tokens=32, messages={messages}
  ):
      print(chunk.choices[0].delta.content or "", end="")

  from anthropic import Anthropic

  client = Anthropic(base_url="{url}", api_key="{key}")
  with client.messages.stream(model="{model}", max_tokens=32, messages={messages}) as stream:
      for text in stream.text_stream:
          print(text, end="")
"""
