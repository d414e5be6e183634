"""Floor 1: how to talk to, watch, launch and be an engine.

`engine` is our own inference engine, `engine_server` serves it over HTTP, and `chat_template` turns messages
into the text that an engine reads.
"""
