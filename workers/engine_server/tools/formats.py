"""How models write tool calls, by the names that vLLM and SGLang give to it.

    hermes       <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>     Hermes, Qwen 2.5 and 3
    llama3_json  {"name": "f", "parameters": {...}}; {...}                        Llama 3.1 and later
    mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}, {...}]           Mistral, up to tokenizer v7

Which one it is can be read from the chat template, which writes the calls of earlier turns in the same way.
"""

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.engine.grammar.grammar import JSON_WHITESPACE

CALLS_MAX = 32
"""Of one answer, where a grammar holds it."""

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """`first call join call last` is an answer of two calls."""

    name: str
    first: str
    join: str
    last: str
    arguments: str
    """The key of the arguments."""
    begin: tuple[str, ...]
    """What begins calls in an answer."""
    end: str = ""
    separators: str = ""
    at_start: bool = False
    """Calls stand at the answer's beginning, also without a marker, or nowhere."""
    id_length: int = 24

    def new_id(self) -> str:
        """A new call's id."""
        if self.id_length < 10:
            # Mistral's templates refuse an id of any other form in a later turn.
            return "".join(secrets.choice(_LETTERS) for _ in range(self.id_length))
        return f"call_{secrets.token_hex(self.id_length // 2)}"

    def grammar(
        self, functions: Mapping[str, Mapping[str, Any]], special: Mapping[str, int], *, several: bool
    ) -> str:
        """A Lark grammar for at least one call of these functions (name to the schema of its parameters).

        `special`: tokens by which a marker must be written, as llguidance does not take their text for them.
        """
        lark = [f"call_{number}" for number in range(len(functions))]
        more = f" ({_written(self.join, special)} call){{0,{CALLS_MAX - 1}}}" if several else ""
        around = (_written(self.first, special), "call" + more, _written(self.last, special))
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
"""By the names of vLLM's and SGLang's parsers."""

# Formats of other models, which have something in common with the ones above.
_OTHERS = ("<function=", "[ARGS]", "<|tool_call|>", "<arg_key>", "<｜tool")


def detected(template: str) -> CallFormat | None:
    """The format of a chat template's text; Hermes where it knows no tools, None where it knows another format."""
    if any(mark in template for mark in _OTHERS):
        return None
    for mark, form in (("<tool_call>", HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA3)):
        if mark in template:
            return form
    if '"parameters": ' in template:
        return LLAMA3
    return None if "tools" in template else HERMES


def _written(text: str, special: Mapping[str, int]) -> str:
    """A text in Lark, its special tokens by their numbers."""
    parts: Sequence[str] = [text]
    for marker, token in special.items():
        parts = [piece for part in parts for piece in _split(part, marker, f"<[{token}]>")]
    return " ".join(part if part.startswith("<[") else json.dumps(part) for part in parts if part)


def _split(part: str, marker: str, token: str) -> list[str]:
    if part.startswith("<["):
        return [part]
    pieces = part.split(marker)
    return [piece for number, text in enumerate(pieces) for piece in ((token, text) if number else (text,))]
