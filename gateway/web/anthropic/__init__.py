"""Anthropic's Messages API, translated to and from chat completions.

Every worker is asked in chat completions, also a worker that has a messages route of its own. SGLang's route takes
no cache salt (0.5.23), so that tenants would share a cache; and engines translate to chat completions themselves,
each in its own way. One translation in the gateway makes one prompt: a conversation has the same blocks whichever
API it came by.

- What does a request look like, and how does it become a chat completion request? wire.py, request_translation.py,
  tools.py
- How does a chat completion become a message, or a stream of events? answers.py, events.py
- How do these work together in one exchange? dialect.py
- How are message batches read, and managed? batch_body.py, batches.py
"""
