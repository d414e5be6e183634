r"""The formats in which models write tool calls, by the names that vLLM and SGLang give them.

    hermes       <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>     Hermes, Qwen 2.5 and 3
    llama3_json  {"name": "f", "parameters": {...}}; {...}                        Llama 3.1 and later
    mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}, {...}]           Mistral, up to tokenizer v7

The format is detected from the chat template, which writes the calls of earlier turns in the same way.
"""

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.engine.grammar.grammar import JSON_WHITESPACE

CALLS_MAX = 32
"""Most calls of one answer that a grammar constrains."""

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How one family of models writes tool calls.

    An answer of two calls is the text `first`, a call, `join`, a call, `last`.
    """

    name: str
    first: str
    """The text before the first call."""
    join: str
    """The text between two calls."""
    last: str
    """The text after the last call."""
    arguments: str
    """The JSON key of a call's arguments."""
    begin: tuple[str, ...]
    """The markers that begin calls in an answer."""
    end: str = ""
    """The marker that ends calls."""
    separators: str = ""
    """Characters that may be between calls."""
    at_start: bool = False
    """Whether calls are only at the answer's beginning, where they need no marker."""
    id_length: int = 24
    """Characters of a call's id."""

    def new_id(self) -> str:
        """Return a random id for a new call."""
        if self.id_length < 10:
            # Mistral's templates accept only letters and digits when a later turn repeats the id.
            return "".join(secrets.choice(_LETTERS) for _ in range(self.id_length))
        return f"call_{secrets.token_hex(self.id_length // 2)}"

    def grammar(
        self, functions: Mapping[str, Mapping[str, Any]], special: Mapping[str, int], *, several: bool
    ) -> str:
        """Return a Lark grammar for at least one call of these functions.

        Args:
            functions: The schema of the parameters by function name.
            special: The special token of each marker that is one. The grammar writes such a marker by its token's
                number, because llguidance does not accept its text.
            several: Whether more than one call is allowed.
        """
        lark = [f"call_{number}" for number in range(len(functions))]
        further = f" ({_written(self.join, special)} call){{0,{CALLS_MAX - 1}}}" if several else ""
        around = (_written(self.first, special), "call" + further, _written(self.last, special))
        rules = ["start: " + " ".join(part for part in around if part), "call: " + " | ".join(lark)]
        for rule, (name, schema) in zip(lark, functions.items(), strict=True):
            begin = json.dumps(f'{{"name": {json.dumps(name)}, "{self.arguments}": ')
            bounded = {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
            rules.append(f'{rule}: {begin} %json {json.dumps(bounded)} "}}"')
        return "\n".join(rules)


HERMES = CallFormat(
    name="hermes",
    first="<tool_call>\n",
    join="\n</tool_call>\n<tool_call>\n",
    last="\n</tool_call>",
    arguments="arguments",
    begin=("<tool_call>",),
    end="</tool_call>",
)
LLAMA3 = CallFormat(
    name="llama3_json",
    first="",
    join="; ",
    last="",
    arguments="parameters",
    begin=("<|python_tag|>",),
    separators=";",
    at_start=True,
)
MISTRAL = CallFormat(
    name="mistral",
    first="[TOOL_CALLS][",
    join=", ",
    last="]",
    arguments="arguments",
    begin=("[TOOL_CALLS]",),
    end="]",
    separators="[,",
    id_length=9,
)

FORMATS: Mapping[str, CallFormat] = {
    "hermes": HERMES,
    "qwen": HERMES,
    "qwen25": HERMES,
    "llama3_json": LLAMA3,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
}
"""The formats by the names of vLLM's and SGLang's parsers."""

# Markers in templates of unsupported formats that resemble the ones above.
_UNSUPPORTED_MARKERS = ("<function=", "[ARGS]", "<|tool_call|>", "<arg_key>", "<｜tool")


def detect_format(template: str) -> CallFormat | None:
    """Return the format that a chat template writes.

    A template without tools gets the Hermes format. None is a format that is not supported.
    """
    if any(mark in template for mark in _UNSUPPORTED_MARKERS):
        return None
    for mark, call_format in (("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA3)):
        if mark in template:
            return call_format
    if '"parameters": ' in template:
        return LLAMA3
    return None if "tools" in template else HERMES


def _written(text: str, special: Mapping[str, int]) -> str:
    """Return a text in Lark, with its special tokens written by number."""
    parts: Sequence[str] = [text]
    for marker, token in special.items():
        parts = [piece for part in parts for piece in _split(part, marker, f"<[{token}]>")]
    return " ".join(part if part.startswith("<[") else json.dumps(part) for part in parts if part)


def _split(part: str, marker: str, token: str) -> list[str]:
    if part.startswith("<["):
        return [part]
    pieces = part.split(marker)
    return [piece for number, text in enumerate(pieces) for piece in ((token, text) if number else (text,))]
