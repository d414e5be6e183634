"""Splits an answer into text and tool calls while it is generated.

    text      Let me look.  <tool_call> {"name": "f", "arguments": {"a": 1}} </tool_call>
    pieces    "Let me look."             f, begun      {"a"  : 1}

Text that may become a marker is held back until that is certain. Text that looked like a call and is none comes out
as text, complete; but a call that has begun is never taken back. Whitespace around calls is dropped.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from workers.engine_server.tools.call_reader import CallReader
from workers.engine_server.tools.formats import CallFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A part of call number `index`: the first has `id` and `name`, the others have only arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Mode = Literal["start", "plain", "text", "between", "call", "silence"]
"""What the text is at the moment: the answer's beginning; text to its end; text; between calls; a call; dropped."""

ParsedPiece = str | CallDelta
"""Text, or a part of a tool call."""


class CallParser:
    """The parser of one answer."""

    def __init__(self, call_format: CallFormat, names: Collection[str], *, only_first: bool = False) -> None:
        """Start an answer.

        Args:
            call_format: How the model writes calls.
            names: The functions that may be called; a call of any other name is text.
            only_first: Whether everything after the first call is dropped.
        """
        self.calls = 0
        """Calls that have begun."""
        self._format = call_format
        self._names = names
        self._only_first = only_first
        self._mode: Mode = "start" if call_format.at_start else "text"
        self._text = ""
        self._raw = ""
        """Everything since the marker or the last call: it is text if no call follows."""
        self._space = ""
        """Whitespace held back until text follows it."""
        self._reader = CallReader(names)

    def push(self, text: str) -> list[ParsedPiece]:
        """Take the next text of the answer, and return the pieces that are certain now."""
        self._text += text
        pieces: list[ParsedPiece] = []
        while self._look(pieces):
            pass
        return pieces

    def _look(self, pieces: list[ParsedPiece]) -> bool:
        """Parse the text in the present mode; return whether the rest can be parsed at once."""
        match self._mode:
            case "start":
                return self._in_start(pieces)
            case "plain":
                return self._in_plain(pieces)
            case "text":
                return self._in_text(pieces)
            case "between":
                return self._in_between(pieces)
            case "call":
                return self._in_call(pieces)
            case "silence":
                return self._in_silence(pieces)

    def end(self) -> list[ParsedPiece]:
        """End the answer, and return the text that was held back."""
        pieces: list[ParsedPiece] = []
        inside = self._reader.begun or (self._mode == "between" and self.calls > 0)
        if self._mode != "silence" and not inside:
            self._emit(pieces, self._raw + self._text)
        if self._space and not self.calls:
            pieces.append(self._space)
        self._raw = self._text = self._space = ""
        return pieces

    # One method per mode; each returns whether the rest of the text can be looked at again at once.

    def _in_start(self, pieces: list[ParsedPiece]) -> bool:
        """Decide at the answer's beginning: it starts with a call, or it has none."""
        text = self._text.lstrip()
        if any(begin.startswith(text) and begin != text for begin in self._format.begin):
            return False
        begin = next((begin for begin in self._format.begin if text.startswith(begin)), None)
        if begin is None and not text.startswith("{"):
            self._mode = "plain"
        else:
            cut = len(self._text) - len(text) + len(begin or "")
            self._enter(cut)
        return True

    def _in_plain(self, pieces: list[ParsedPiece]) -> bool:
        self._emit(pieces, self._text)
        self._text = ""
        return False

    def _in_text(self, pieces: list[ParsedPiece]) -> bool:
        found = [(at, begin) for begin in self._format.begin if (at := self._text.find(begin)) >= 0]
        if found:
            at, begin = min(found)
            self._emit(pieces, self._text[:at])
            self._text = self._text[at:]
            self._enter(len(begin))
            return True
        hold = max(_overlap(self._text, begin) for begin in self._format.begin)
        self._emit(pieces, self._text[: len(self._text) - hold])
        self._text = self._text[len(self._text) - hold :]
        return False

    def _in_between(self, pieces: list[ParsedPiece]) -> bool:
        """Look for the next call behind a marker or behind a call."""
        rest = self._text.lstrip(self._format.separators + " \t\r\n")
        self._move_to_raw(len(self._text) - len(rest))
        end = self._format.end
        if not rest or (end and end != rest and end.startswith(rest)):
            return False
        if end and rest.startswith(end):
            self._text, self._raw, self._mode = rest[len(end) :], "", "text"
        elif rest.startswith("{"):
            self._reader, self._mode = CallReader(self._names), "call"
        else:
            self._give_up(pieces)
        return True

    def _in_call(self, pieces: list[ParsedPiece]) -> bool:
        reader, begun = self._reader, self._reader.begun
        arguments, rest = reader.push(self._text)
        self._move_to_raw(len(self._text) - len(rest))
        if reader.failed and not reader.begun:
            self._give_up(pieces)
            return True
        if reader.done and not reader.begun:
            reader.begun, arguments = True, "{}"
        if reader.begun and not begun:
            self._space = ""
            pieces.append(CallDelta(index=self.calls, id=self._format.new_id(), name=reader.name))
            self.calls += 1
        if arguments:
            pieces.append(CallDelta(index=self.calls - 1, arguments=arguments))
        if reader.done or reader.failed:
            self._raw, self._mode = "", "silence" if self._only_first else "between"
            self._reader = CallReader(self._names)
        return bool(rest)

    def _in_silence(self, pieces: list[ParsedPiece]) -> bool:
        self._text = ""
        return False

    def _enter(self, marker_length: int) -> None:
        self._move_to_raw(marker_length)
        self._mode = "between"

    def _move_to_raw(self, length: int) -> None:
        self._raw += self._text[:length]
        self._text = self._text[length:]

    def _give_up(self, pieces: list[ParsedPiece]) -> None:
        self._emit(pieces, self._raw)
        self._raw, self._mode = "", "plain" if self._format.at_start else "text"
        self._reader = CallReader(self._names)

    def _emit(self, pieces: list[ParsedPiece], text: str) -> None:
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        if stripped:
            pieces.append(stripped)


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that begins `marker` without completing it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
