"""Compacts a conversation to its user messages and one item with a summary that the model writes.

The summary belongs to the tenant, so `encrypted_content` holds it encoded, not encrypted. A client may read it, and
any gateway can continue from it.
"""

from typing import Any

import msgspec

from gateway.domain.errors import BadRequest, WorkerError
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.web.bodies.body_decoding import decode_in_thread_if_long
from gateway.web.openai import chat_completions
from gateway.web.responses import answers
from gateway.web.responses.dialect import ResponsesDialect
from gateway.web.responses.items import compaction_item, input_items, item_object, new_item_id
from gateway.web.responses.request_translation import decode_responses_body, to_chat_request

Json = dict[str, Any]

REQUEST = (
    "Summarise this conversation so that it can be continued from your summary alone. Keep every decision, fact, "
    "name, path and number that later turns may need, what was done, and what is still to do. "
    "Write only the summary."
)
"""The message by which the model is prompted for the summary."""


class CompactionDialect(ResponsesDialect):
    """The dialect of POST /v1/responses/compact, which stores nothing."""

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the chat completion request for the summary.

        Raises BadRequest, NotFound, PreviousResponseNotFound, ResponsesUnavailable.
        """
        self._tenant = tenant.id
        read, fields = await decode_in_thread_if_long(body, decode_responses_body)
        if read.stream or read.background:
            raise BadRequest("A compaction is neither streamed nor in the background.", param="stream")
        read = msgspec.structs.replace(read, tools=None, tool_choice=None, text=None, include=None)
        previous, own = await self._items(read, body)
        if not previous and not read.input:
            raise BadRequest("The request must have an input.", param="input")
        ask = input_items(REQUEST, self._id)
        asked = self._asked = await decode_in_thread_if_long(
            body, lambda _: to_chat_request(read, fields, [*previous, *own], ask)
        )
        return asked.chat

    async def answer_body(self, body: bytes) -> bytes:
        """Return the user messages of the conversation and its summary."""
        assert self._asked is not None
        chat = chat_completions.decode_chat_completion(body)
        output, _ = answers.output_items(chat, self._id, self._asked.tools)
        texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
        if not texts:
            raise WorkerError
        earlier = self._asked.context[: self._asked.own_from]
        users = [
            item_object(item) for item in earlier if (item["type"], item.get("role")) == ("message", "user")
        ]
        usage = chat.parsed_usage
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "response.compaction",
                "created_at": int(self._wall()),
                "output": [*users, compaction_item(new_item_id("compaction", self._id), texts[0])],
                "usage": answers.usage_object(usage) if usage is not None else None,
            }
        )
