"""Limits on the shape of a JSON body: its number of values, its depth, and its size in memory once decoded.

Thirty megabytes of `[],[],[],...` are within the limit of bytes, but would stall the event loop for half a minute
and take gigabytes. Brackets, colons, commas and quotes are therefore counted as bytes, slice by slice, before the
body is decoded. Only if a long text has very many of them are they counted again, without the contents of strings.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import msgspec

from gateway.domain.errors import BadRequest

CONTAINERS_MAX = 100_000
"""The most objects and arrays in one body."""
KEYS_MAX = 200_000
"""The most keys in all objects of one body."""
FIELDS_MAX = 512
"""The most top-level fields of one body."""
STRINGS_MAX = 500_000
"""The most strings in one body, including keys."""
VALUES_MAX = 2_000_000
"""The most commas in one body; a prompt may be a million token ids."""
DIGITS_MAX = 100
"""The most digits of a number in a long body; Python's time to parse them grows with their square."""
DEPTH_MAX = 64
"""The most levels of nesting in one field."""

SLICE_BYTES = 256 * 1024
"""The bytes that are counted in one call, which holds the GIL until it returns."""

BYTE_COPIES = 4
"""How many times a request's text is in memory: as received, decoded, rendered, and on its way to a worker."""
CONTAINER_BYTES = 100
KEY_BYTES = 128
VALUE_BYTES = 64
"""The memory of an empty container, a key and a short value as Python objects: measured, and rounded up."""
SMALL_BODY_BYTES_MAX = 2048
SMALL_REQUEST_BYTES = 16 * 1024
"""The memory of a request with a small body, whatever its shape."""
LARGE_BYTES = 1024 * 1024
"""Above this, the memory is estimated again without the contents of strings, if they may be most of it."""
SHORT_BYTES_MAX = 2 * CONTAINERS_MAX
"""A body up to this length cannot have too many values."""

MARKS_COUNTED_MAX = 1024
"""Marks of one kind up to which it is quicker to search for each of them than to examine every byte."""

_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_NO_MARKS = bytes(set(range(256)) - set(b'{[:,"'))
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (DIGITS_MAX + 1)


class _Counts(NamedTuple):
    """The marks of JSON in a text."""

    containers: int
    keys: int
    commas: int
    quotes: int

    def plus(self, more: "_Counts") -> "_Counts":
        return _Counts(*map(add, self, more))

    @property
    def too_many(self) -> bool:
        return (
            self.containers > CONTAINERS_MAX
            or self.keys > KEYS_MAX
            or self.commas > VALUES_MAX
            or self.quotes > 2 * STRINGS_MAX
        )

    @property
    def memory_bytes(self) -> int:
        """The memory of the values themselves, without their texts."""
        return self.containers * CONTAINER_BYTES + self.keys * KEY_BYTES + self.commas * VALUE_BYTES


def check_values(body: bytes, value_copies: int = 1) -> int:
    """Return an estimate, usually too high, of the memory that a request takes once its body is decoded.

    `value_copies` is how many times its values are in memory. Raises BadRequest for a body with too many values, or
    with a number of too many digits.
    """
    size = len(body)
    if size <= SMALL_BODY_BYTES_MAX:
        return SMALL_REQUEST_BYTES
    texts = size * BYTE_COPIES
    counts = _counts_of_few(body) if size <= SHORT_BYTES_MAX else None
    if counts is None:
        counts = _counts(body)
    values = counts.memory_bytes
    if values > max(texts, LARGE_BYTES) or (size > SHORT_BYTES_MAX and counts.too_many):
        counts = _counts_outside_strings(body)
        values = counts.memory_bytes
        if counts.too_many:
            raise _too_many("The body has")
    if size > SHORT_BYTES_MAX:
        _check_digits(body)
    return SMALL_REQUEST_BYTES + texts + values * value_copies


def check_parsed_strings(strings: Sequence[str], param: str) -> None:
    """Raise BadRequest if strings of a body that are parsed as JSON have too many values or too deep nesting.

    Strings with together at most SHORT_BYTES_MAX characters pass: they are parsed in no time, and their parsers
    refuse what is too deep.
    """
    if sum(map(len, strings)) <= SHORT_BYTES_MAX:
        return
    total = _Counts(0, 0, 0, 0)
    for string in strings:
        text = string.encode("utf-8", "surrogatepass")
        total = total.plus(_counts_outside_strings(text))
        if total.too_many:
            raise _too_many(f"The JSON texts in {param} have")
        if value_is_deep(text):
            raise _too_deep(param)
        _check_digits(text)


def too_many_fields() -> BadRequest:
    """Return the error for a body with more than FIELDS_MAX fields."""
    return BadRequest(f"The body has more than {FIELDS_MAX} fields.")


def check_depth(body: bytes, messages: object, fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise BadRequest for a body that is nested too deeply.

    Args:
        body: The whole body.
        messages: The decoded messages of a chat; None if the body has none, or they are decoded later.
        fields: The top-level fields as raw JSON; `messages` and `prompt` are checked when they are decoded.
    """
    if len(body) <= SLICE_BYTES:
        bound = DEPTH_MAX + 1
        without = body.replace(b"[", b"", bound).replace(b"{", b"", bound)
        if len(body) - len(without) <= DEPTH_MAX:
            return  # Nearly every body has too few brackets for so many levels.
    if messages is not None and _deeper(messages, DEPTH_MAX):
        raise _too_deep("messages")
    for name, value in fields.items():
        if name not in ("messages", "prompt") and value_is_deep(bytes(value)):
            raise _too_deep(name)


def value_is_deep(value: bytes) -> bool:
    """Return whether a value of valid JSON is nested too deeply.

    All brackets outside strings are replaced by one kind; each round removes the innermost level.
    """
    if value.count(b"[") + value.count(b"{") <= DEPTH_MAX:
        return False
    brackets = b"".join(
        b"".join(parts).translate(_ONE_KIND, _NO_BRACKETS) for parts in _outside_strings(value)
    )
    for _ in range(DEPTH_MAX):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _outside_strings(text: bytes) -> Iterator[list[bytes]]:
    """Yield the parts of a valid JSON text outside of strings, one list per slice."""
    quoted = escaped = False
    for at in range(0, len(text), SLICE_BYTES):
        piece = text[at + escaped : at + SLICE_BYTES].replace(b"\\\\", b"")
        escaped = piece.endswith(b"\\")  # This backslash escapes the first byte of the next slice.
        parts = piece.replace(b'\\"', b"").split(b'"')
        yield parts[quoted::2]
        quoted ^= len(parts) % 2 == 0


def _counts_outside_strings(text: bytes) -> _Counts:
    total = _Counts(0, 0, 0, 0)
    for parts in _outside_strings(text):
        total = total.plus(_counts(b"".join(parts))).plus(_Counts(0, 0, 0, 2 * len(parts)))
    return total


def _check_digits(text: bytes) -> None:
    """Raise BadRequest for a number with more than DIGITS_MAX digits."""
    if _has_long_number(text) and any(_has_long_number(b"".join(parts)) for parts in _outside_strings(text)):
        raise BadRequest(f"A number of the body has more than {DIGITS_MAX} digits.")


def _has_long_number(text: bytes) -> bool:
    return any(
        _LONG_NUMBER in text[at : at + SLICE_BYTES + DIGITS_MAX].translate(_ONE_DIGIT)
        for at in range(0, len(text), SLICE_BYTES)
    )


def _too_many(subject: str) -> BadRequest:
    return BadRequest(
        f"{subject} more than {CONTAINERS_MAX} objects and arrays, more than {KEYS_MAX} keys, more than "
        f"{STRINGS_MAX} strings, or more than {VALUES_MAX} values."
    )


def _counts_of_few(text: bytes) -> _Counts | None:
    """Return the marks of a text without its quotes; None if it has too many for this way of counting."""
    counts = [_few(text, mark) for mark in (b"{", b"[", b":", b",")]
    if max(counts) >= MARKS_COUNTED_MAX:
        return None
    braces, brackets, colons, commas = counts
    return _Counts(braces + brackets, colons, commas, 0)


def _few(text: bytes, mark: bytes) -> int:
    """Return how often a mark is in a text, at most MARKS_COUNTED_MAX.

    `replace` skips what is between two marks many bytes at a time; `count` examines each byte.
    """
    return len(text) - len(text.replace(mark, b"", MARKS_COUNTED_MAX))


def _counts(text: bytes) -> _Counts:
    # One pass keeps only the bytes that are counted; otherwise each count would be a pass over the whole text.
    marks = b"".join(
        text[at : at + SLICE_BYTES].translate(None, _NO_MARKS) for at in range(0, len(text), SLICE_BYTES)
    )
    return _Counts(
        _count(marks, b"{") + _count(marks, b"["),
        _count(marks, b":"),
        _count(marks, b","),
        _count(marks, b'"'),
    )


def _count(text: bytes, byte: bytes) -> int:
    if len(text) <= SLICE_BYTES:
        return text.count(byte)
    return sum(text.count(byte, at, at + SLICE_BYTES) for at in range(0, len(text), SLICE_BYTES))


def _too_deep(name: str) -> BadRequest:
    # The name is the client's, and may be long.
    return BadRequest(f"{name[:100]} is nested more than {DEPTH_MAX} levels deep.", param=name[:100])


def _deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels of nesting than the given number."""
    if levels == 0:
        return True
    for inner in value.values() if isinstance(value, dict) else value:
        kind = type(inner)
        if (kind is dict or kind is list) and _deeper(inner, levels - 1):
            return True
    return False
