"""A grammar as a request brings it: of which kind, and its text."""

from dataclasses import dataclass
from enum import StrEnum

from workers.engine.errors import RequestRefused

GRAMMAR_CHARS_MAX = 128 * 1024
"""A larger text is refused before anybody reads it."""

JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""Between the parts of JSON. Bounded: a model that has lost its way likes to write line breaks for ever."""


class GrammarKind(StrEnum):
    """In which language the text is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    """The whole answer matches it. Rust's syntax: no look-around, no back-references."""
    GRAMMAR = "grammar"
    """Lark, or EBNF as in GBNF (`root ::= ...`)."""
    LARK = "lark"
    """Lark, and llguidance's additions to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What an answer must look like; equal values are the same grammar. RequestRefused names `param`."""

    kind: GrammarKind
    text: str

    def refused(self, why: str) -> RequestRefused:
        """The error for a client that sent this grammar."""
        return RequestRefused(f"The {self.kind} cannot be used: {why}", code="invalid_grammar")

    def check(self) -> None:
        """Is it short enough to be looked at?"""
        if len(self.text) > GRAMMAR_CHARS_MAX:
            raise self.refused(
                f"it has {len(self.text)} characters, and at most {GRAMMAR_CHARS_MAX} are read"
            )
