"""The grammar of a request: its language and its text."""

from dataclasses import dataclass
from enum import StrEnum

from workers.engine.errors import RequestRefused

GRAMMAR_CHARS_MAX = 128 * 1024
"""A longer text is refused before it is parsed."""

JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""Whitespace between the parts of JSON. It is bounded because a model may repeat line breaks without end."""


class GrammarKind(StrEnum):
    """The language of a grammar's text."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    r"""A regular expression for the whole answer, in Rust's syntax: no look-around, no back-references.

    `\d` and `\w` are those of ASCII.
    """
    GRAMMAR = "grammar"
    """Lark, or EBNF as in GBNF (`root ::= ...`)."""
    LARK = "lark"
    """Lark with llguidance's extensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar for an answer; equal values are the same grammar."""

    kind: GrammarKind
    text: str

    def refused(self, why: str) -> RequestRefused:
        """Return the error for a client that sent this grammar."""
        return RequestRefused(f"The {self.kind} cannot be used: {why}", code="invalid_grammar")

    def check(self) -> None:
        """Raise RequestRefused if the text is too long to be parsed."""
        if len(self.text) > GRAMMAR_CHARS_MAX:
            raise self.refused(
                f"it has {len(self.text)} characters, and at most {GRAMMAR_CHARS_MAX} are read"
            )
