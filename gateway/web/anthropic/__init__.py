"""Anthropic's Messages API, translated to and from chat completions.

Every worker is called with chat completions, even one that has a messages route of its own. SGLang's route takes no
cache salt (0.5.23), so tenants would share a cache. Engines translate to chat completions themselves, each in its
own way; with one translation in the gateway a conversation has the same blocks whichever API it came through.

- What does a request look like, and how does it become a chat completion request? wire.py, request_translation.py,
  tools.py, server_tools.py
- How does a chat completion become a message, or a stream of events? answers.py, events.py; its headers:
  answer_headers.py
- How do these work together in one exchange? dialect.py
- How are message batches read, and managed? batch_body.py, batches.py
"""
