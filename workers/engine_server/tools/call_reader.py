"""Reads one tool call from text that arrives in pieces of any size.

    {"name": "get_weather", "arguments": {"city": "Oslo"}}
             ~~~~~~~~~~~~~                ~~~~~~~~~~~~~~~~ passed on as it arrives, once the name is known

Other keys are skipped. The reader checks only what it needs to find where values end. It does not check what stands
inside the arguments: only a grammar ensures that they are valid.
"""

import json
from collections.abc import Collection

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class _Value:
    """A scanner that finds the end of one JSON value."""

    def __init__(self) -> None:
        self.text = ""
        self.complete = False
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def push(self, character: str) -> bool:
        """Take the next character, and return whether it belongs to the value."""
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
    """The reader of one call."""

    def __init__(self, names: Collection[str]) -> None:
        """Start a call; `names` are the functions that may be called."""
        self.name: str | None = None
        self.begun = False
        """Whether the name is known and the arguments have begun; nothing is passed on before."""
        self.done = False
        """Whether the call is complete."""
        self.failed = False
        """Whether the text is no call, or calls an unknown function."""
        self._names = names
        self._expects = "{"
        self._key = ""
        self._value = _Value()
        self._held = ""
        """Arguments that arrived before the name."""

    def push(self, text: str) -> tuple[str, str]:
        """Return the arguments that can be passed on, and the text behind a call that is done or has failed."""
        passed_on = ""
        for place, character in enumerate(text):
            if self.done or self.failed:
                return passed_on, text[place:]
            self._step(character)
            if self._held and self.name is not None and not self.failed:
                self.begun = True
                passed_on, self._held = passed_on + self._held, ""
        return passed_on, ""

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
        """Take one character of the arguments."""
        if self._value.text == character and character != "{":
            self.failed = True
        self._held += character

    def _take_whole(self, text: str) -> None:
        """Take a key or a value that has ended."""
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
