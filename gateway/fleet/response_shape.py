"""What a worker's whole answers have that its streams leave out: fields that are null or empty, and their order.

    whole   {"id": "a", "choices": [{"message": {"content": "Hi", "refusal": null}}], "service_tier": null}
    stream  {"id": "a", "choices": [{"delta": {"content": "Hi"}}]}

Which fields these are differs with the engine, its version and its flags, and its next version has others: a table
of them would be wrong soon. So the first plain answer of each API that a worker gives after its start is passed as
it came, and its shape is kept; what is put together later has the same shape.

Names and blanks are kept, never what an answer says. Where a name may be somebody's own (a token below `logprobs`,
a key of `metadata`), nobody looks: it would come back in the answers of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.domain.request import Surface

NAMES_MAX = 64
NAME_LENGTH_MAX = 64

LEVELS: Mapping[str, Any] = {
    "choices": {"message": {}},
    "usage": {"prompt_tokens_details": {}, "completion_tokens_details": {}},
}
"""Objects whose fields are the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectShape:
    """Of one object. `names`: its fields in their order; `blank`: those that were null or an empty list."""

    names: tuple[str, ...]
    blank: Mapping[str, Any]
    inner: Mapping[str, "ObjectShape"]

    def filled(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The same with every blank that it lacks, in this order; what is unknown comes last."""
        whole: dict[str, Any] = {}
        for name in self.names:
            if name in said:
                whole[name] = self._inside(name, said[name])
            elif name in self.blank:
                whole[name] = self.blank[name]
        return {**whole, **{name: value for name, value in said.items() if name not in whole}}

    def _inside(self, name: str, value: Any) -> Any:
        shape = self.inner.get(name)
        if shape is None:
            return value
        if isinstance(value, list):
            return [shape.filled(item) if isinstance(item, dict) else item for item in value]
        return shape.filled(value) if isinstance(value, dict) else value


class ResponseShapes:
    """Of one worker's answers, by API."""

    def __init__(self) -> None:
        self._known: dict[Surface, ObjectShape] = {}

    def of(self, surface: Surface) -> ObjectShape | None:
        """None: no whole answer of it has been seen."""
        return self._known.get(surface)

    def learn(self, surface: Surface, body: bytes) -> None:
        """A whole answer that the worker gave; what is none teaches nothing."""
        if surface in self._known:
            return
        try:
            whole = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        choices = whole.get("choices")
        if isinstance(choices, list) and choices:
            self._known[surface] = _shape(whole, LEVELS)

    def forget(self) -> None:
        """It has gone: who comes back may be another version."""
        self._known.clear()


def _shape(said: Mapping[str, Any], levels: Mapping[str, Any]) -> ObjectShape:
    names = tuple(name for name in said if len(name) <= NAME_LENGTH_MAX)[:NAMES_MAX]
    inner = {name: _first(said[name]) for name in names if name in levels}
    return ObjectShape(
        names=names,
        blank={name: said[name] for name in names if said[name] is None or said[name] == []},
        inner={name: _shape(one, levels[name]) for name, one in inner.items() if one is not None},
    )


def _first(value: Any) -> dict[str, Any] | None:
    """Of a list its first: choices are alike."""
    one = value[0] if isinstance(value, list) and value else value
    return one if isinstance(one, dict) else None
