"""Cuts an answer into text and tool calls while it comes.

    text      Let me look.  <tool_call> {"name": "f", "arguments": {"a": 1}} </tool_call>
    pieces    "Let me look."             f, begun      {"a"  : 1}

What only may become a marker is held until that is sure. What looked like a call and is none comes out as text,
whole; but a call that has begun is never taken back. Space around calls is nobody's text.
"""

from collections.abc import Collection
from dataclasses import dataclass

from workers.engine_server.tools.call_reader import CallReader
from workers.engine_server.tools.formats import CallFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A part of call number `index`. The first one has `id` and `name`, the others only arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


ParsedPiece = str | CallDelta


class CallParser:
    """One answer. `calls` counts those that have begun."""

    def __init__(self, form: CallFormat, names: Collection[str], *, only_first: bool = False) -> None:
        self.calls = 0
        self._form = form
        self._names = names
        self._only_first = only_first
        self._mode = "start" if form.at_start else "text"
        self._text = ""
        self._raw = ""
        """Everything since the marker or the last call: it is text, should no call come of it."""
        self._space = ""
        self._reader = CallReader(names)

    def push(self, text: str) -> list[ParsedPiece]:
        """What is certain now."""
        self._text += text
        pieces: list[ParsedPiece] = []
        while getattr(self, f"_in_{self._mode}")(pieces):
            pass
        return pieces

    def end(self) -> list[ParsedPiece]:
        """What was held; the answer is over."""
        pieces: list[ParsedPiece] = []
        inside = self._reader.begun or (self._mode == "between" and self.calls > 0)
        if self._mode != "silence" and not inside:
            self._say(pieces, self._raw + self._text)
        if self._space and not self.calls:
            pieces.append(self._space)
        self._raw = self._text = self._space = ""
        return pieces

    # What to do in each mode; true when there may be more to do at once.

    def _in_start(self, pieces: list[ParsedPiece]) -> bool:
        """The answer is a call from its beginning, or it has none."""
        text = self._text.lstrip()
        if any(begin.startswith(text) and begin != text for begin in self._form.begin):
            return False
        begin = next((begin for begin in self._form.begin if text.startswith(begin)), None)
        if begin is None and not text.startswith("{"):
            self._mode = "plain"
        else:
            cut = len(self._text) - len(text) + len(begin or "")
            self._enter(cut)
        return True

    def _in_plain(self, pieces: list[ParsedPiece]) -> bool:
        self._say(pieces, self._text)
        self._text = ""
        return False

    def _in_text(self, pieces: list[ParsedPiece]) -> bool:
        found = [(at, begin) for begin in self._form.begin if (at := self._text.find(begin)) >= 0]
        if found:
            at, begin = min(found)
            self._say(pieces, self._text[:at])
            self._text = self._text[at:]
            self._enter(len(begin))
            return True
        hold = max(_overlap(self._text, begin) for begin in self._form.begin)
        self._say(pieces, self._text[: len(self._text) - hold])
        self._text = self._text[len(self._text) - hold :]
        return False

    def _in_between(self, pieces: list[ParsedPiece]) -> bool:
        """Behind a marker, and behind a call."""
        rest = self._text.lstrip(self._form.separators + " \t\r\n")
        self._move_to_raw(len(self._text) - len(rest))
        end = self._form.end
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
            pieces.append(CallDelta(index=self.calls, id=self._form.new_id(), name=reader.name))
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
        self._say(pieces, self._raw)
        self._raw, self._mode = "", "plain" if self._form.at_start else "text"
        self._reader = CallReader(self._names)

    def _say(self, pieces: list[ParsedPiece], text: str) -> None:
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            pieces.append(said)


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` without completing it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
