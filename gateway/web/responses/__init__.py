"""OpenAI's Responses API, translated to and from chat completions.

Every worker is called with chat completions, even one that has a responses route of its own. An engine keeps
responses in its memory, readable by any caller that has the id, and the conversation could continue only at that
worker. The gateway stores responses in its database for their tenant, and any worker can continue the conversation.

POST /v1/responses is served by `_serve_response` of gateway/web/inference_handlers.py, which makes the
ResponsesExchange of exchange.py and passes it to the pipeline.

- What does a request look like, and how does it become a chat completion request? wire.py, items.py,
  messages.py, request_translation.py
- How do tools become functions, and which stored items does a reference name? tools.py, references.py
- How does a chat completion become a response, or a stream of events? answers.py, events.py,
  streamed_items.py
- Which items does `previous_response_id` name? `_previous_items` of dialect.py, with conversation_items of
  references.py; those of a conversation come from continued_conversation.py
- How do these work together in one exchange, also in the background? dialect.py, exchange.py
- How are stored responses shown, cancelled and deleted? stored_responses.py
- How are conversations kept, continued and compacted? conversations.py, continued_conversation.py, compaction.py
"""
