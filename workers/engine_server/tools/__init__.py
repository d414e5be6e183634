"""Tool calls in OpenAI's shape.

`formats` describes how models write tool calls, `call_reader` and `call_parser` find the calls in an answer while
it is generated, and `plan` decides which tools a request may call.
"""
