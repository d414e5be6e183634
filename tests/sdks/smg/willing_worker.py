"""A worker that does what smg's tests expect of a good model, as far as a few rules go."""

import json
import re
from typing import Any

from tests.fakes.obedient_worker import ObedientWorker, Seen, answer_of, calling, smallest, text_of

NAMES = re.compile(r"\b[A-Z][\w-]*(?: [A-Z][\w-]*)*")
THOUGHT = "Let me think."


class WillingWorker(ObedientWorker):
    """An ObedientWorker that calls the tools that fit the question, remembers all that was said, and can think."""

    def message_for(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the message that answers a request, and its finish reason."""
        message, reason = answer_of(body)
        messages = body.get("messages") or []
        if message["content"] is None or not messages or "response_format" in body:
            return message, reason
        if messages[-1]["role"] == "user":
            if calls := _fitting_calls(body, text_of(messages[-1]["content"])):
                return calling(calls), "tool_calls"
            said = [text_of(each["content"]) for each in messages if each["role"] == "user"]
            message["content"] = "You said: " + " ".join(said)
        thinks = (body.get("chat_template_kwargs") or {}).get(
            "enable_thinking", "R1" in body["model"] or "gpt-oss" in body["model"]
        )
        if thinks and body.get("separate_reasoning", True):
            message["reasoning_content"] = THOUGHT
        return {"reasoning_content": None} | message, reason

    def _frame(self, seen: Seen, choices: list[dict[str, Any]], **more: Any) -> bytes:
        for choice in choices:
            choice["delta"] = {"reasoning_content": None} | choice["delta"]
        return super()._frame(seen, choices, **more)


def _fitting_calls(body: dict[str, Any], question: str) -> dict[str, str]:
    """Return the arguments of the functions that have a word of their name in the question, by their names."""
    if body.get("tool_choice") not in (None, "auto"):
        return {}
    calls = {}
    names = NAMES.findall(question)
    for tool in body.get("tools") or ():
        function = tool["function"]
        if any(len(word) > 4 and word in question.lower() for word in function["name"].split("_")):
            arguments = smallest(function["parameters"])
            filled = {name: names[-1] if value == "text" else value for name, value in arguments.items()}
            calls[function["name"]] = json.dumps(filled)
    return calls
