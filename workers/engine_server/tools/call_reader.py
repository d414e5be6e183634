"""Reads one tool call from text that comes in pieces of any size.

    {"name": "get_weather", "arguments": {"city": "Oslo"}}
             ~~~~~~~~~~~~~                ~~~~~~~~~~~~~~~~ handed on as it comes, once the name is known

Other keys are skipped. It checks as much as it needs to know where things end; what stands inside the arguments is
the model's affair, unless a grammar held it.
"""

import json
from collections.abc import Collection

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class _Value:
    """Finds the end of one JSON value."""

    def __init__(self) -> None:
        self.text = ""
        self.complete = False
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def push(self, character: str) -> bool:
        """Does the character belong to the value?"""
        if not self._quoted and not self._depth and self.text and character in ",}]" + _SPACE:
            # Numbers, true, false and null end where something else begins.
            self.complete = True
            return False
        self.text += character
        if self._quoted:
            self._in_quotes(character)
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        self.complete = not self._quoted and not self._depth and character in '"}]'
        return True

    def _in_quotes(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = False


class CallReader:
    """One call. It is `begun` when its name is known and the arguments have begun; nothing is handed on before."""

    def __init__(self, names: Collection[str]) -> None:
        """A call of any other name than these `failed`."""
        self.name: str | None = None
        self.begun = False
        self.done = False
        self.failed = False
        self._names = names
        self._expects = "{"
        self._key = ""
        self._value = _Value()
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """The arguments that can be handed on, and the text behind the call once it is `done` or has `failed`."""
        handed = ""
        for place, character in enumerate(text):
            if self.done or self.failed:
                return handed, text[place:]
            self._step(character)
            if self._held and self.name is not None and not self.failed:
                self.begun = True
                handed, self._held = handed + self._held, ""
        return handed, ""

    def _step(self, character: str) -> None:
        if self._expects in ("key", "value"):
            if not self._value.text:
                if character in _SPACE:
                    return
                if character in "}]:," or (self._expects == "key" and character != '"'):
                    self.failed = True
                    return
            belongs = self._value.push(character)
            if belongs and self._expects == "value" and self._key in _ARGUMENTS:
                self._take(character)
            if self._value.complete:
                self._take_whole(self._value.text)
                self._value = _Value()
            if belongs:
                return
        if character in _SPACE:
            return
        if character not in self._expects:
            self.failed = True
        elif character == "}":
            self.done = self.name is not None
            self.failed = not self.done
        else:
            self._expects = {"{": "key", ",": "key", ":": "value"}[character]

    def _take(self, character: str) -> None:
        """One character of the arguments."""
        if self._value.text == character and character != "{":
            self.failed = True
        self._held += character

    def _take_whole(self, text: str) -> None:
        """A key or a value has ended."""
        if self._expects == "key":
            self._expects = ":"
            self._key = _string(text) or ""
            self.failed = self.failed or not self._key
            return
        self._expects = ",}"
        if self._key == "name":
            self.name = _string(text)
            self.failed = self.failed or self.name not in self._names


def _string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
