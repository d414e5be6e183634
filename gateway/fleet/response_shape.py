"""The shape of a worker's whole answers: fields that streams leave out, being null or empty, and their order.

    whole   {"id": "a", "choices": [{"message": {"content": "Hi", "refusal": null}}], "service_tier": null}
    stream  {"id": "a", "choices": [{"delta": {"content": "Hi"}}]}

Which fields these are differs with the engine, its version and its flags; a fixed table would soon be wrong. So the
first whole answer of each API that a worker gives after its start is passed on as it came, and its shape is kept;
answers that are put together from streams later get the same shape.

Field names and blank values are kept, never the text of an answer; of other values only the fingerprint of the
engine's build, which is equal in all answers. Where names may be a client's own (tokens below `logprobs`, keys of
`metadata`), no shape is learnt: the names would appear in the answers of other clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.domain.request import Surface

NAMES_MAX = 64
"""Fields that are learnt of one object."""

NAME_LENGTH_MAX = 64
"""Length of the longest field name that is learnt."""

FINGERPRINT = "system_fingerprint"
"""The field that names the engine's build and settings."""

FINGERPRINT_LENGTH_MAX = 128

LEVELS: Mapping[str, Any] = {
    "choices": {"message": {}},
    "usage": {"prompt_tokens_details": {}, "completion_tokens_details": {}},
}
"""The objects whose field names are the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectShape:
    """The fields of one JSON object in a whole answer."""

    names: tuple[str, ...]
    """All field names, in their order."""
    blank: Mapping[str, Any]
    """The fields that were null or an empty list, and the engine's fingerprint."""
    inner: Mapping[str, "ObjectShape"]
    """The shapes of the objects in it, by field name."""

    def filled(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object with the blank fields that it lacks, in this order; unknown fields come last."""
        whole: dict[str, Any] = {}
        for name in self.names:
            if name in value and (value[name] is not None or name not in self.blank):
                whole[name] = self._filled_inside(name, value[name])
            elif name in self.blank:
                whole[name] = self.blank[name]
        return {**whole, **{name: field for name, field in value.items() if name not in whole}}

    def _filled_inside(self, name: str, value: Any) -> Any:
        shape = self.inner.get(name)
        if shape is None:
            return value
        if isinstance(value, list):
            return [shape.filled(item) if isinstance(item, dict) else item for item in value]
        return shape.filled(value) if isinstance(value, dict) else value


class ResponseShapes:
    """The shapes of one worker's whole answers, by API."""

    def __init__(self) -> None:
        self._known: dict[Surface, ObjectShape] = {}

    def of(self, surface: Surface) -> ObjectShape | None:
        """Return the shape of the API's whole answers; None if none was seen yet."""
        return self._known.get(surface)

    def learn(self, surface: Surface, body: bytes) -> None:
        """Keep the shape of the API's first whole answer; a body that is no JSON answer is ignored."""
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
        """Forget all shapes: the worker may be another version when it is up again."""
        self._known.clear()


def _shape(value: Mapping[str, Any], levels: Mapping[str, Any]) -> ObjectShape:
    names = tuple(name for name in value if len(name) <= NAME_LENGTH_MAX)[:NAMES_MAX]
    inner = {name: _first_object(value[name]) for name in names if name in levels}
    return ObjectShape(
        names=names,
        blank={name: value[name] for name in names if _is_alike_in_all_answers(name, value[name])},
        inner={name: _shape(one, levels[name]) for name, one in inner.items() if one is not None},
    )


def _is_alike_in_all_answers(name: str, value: Any) -> bool:
    if name == FINGERPRINT:
        return isinstance(value, str | None) and len(value or "") <= FINGERPRINT_LENGTH_MAX
    return value is None or value == []


def _first_object(value: Any) -> dict[str, Any] | None:
    """Return the object; of a list the first, since choices are alike; None if there is none."""
    one = value[0] if isinstance(value, list) and value else value
    return one if isinstance(one, dict) else None
