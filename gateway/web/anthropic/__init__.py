"""Anthropic's Messages API over chat completions.

Every worker is asked in chat completions, also one that has a messages route of its own. SGLang's takes no cache
salt (0.5.23), so tenants would share a cache; and engines translate to chat completions themselves, each in its own
way. One translation, here, gives one prompt: a conversation has the same blocks whichever API it came by.

Read wire.py, requests.py (a body to a chat request), answers.py and events.py (back again), dialect.py.
"""
