"""The text of one answer, as it grows.

    tokens --bytes--> UTF-8 decoder --text--> stop matcher --text--> client
                      keeps an unfinished     keeps what may be the
                      character               beginning of a stop string

What was given out is never taken back: all pieces joined are the text of the whole, up to the first stop string.
"""

import codecs
from collections.abc import Sequence

from workers.engine.pieces import PieceTable


class StopMatcher:
    """Cuts a text at the stop string that completes first; of several that complete together, at the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may be given out now. Nothing any more once `stopped`."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        text = self._held + text
        cut = self._cut(text)
        if cut is not None:
            self.stopped, self._held = True, ""
            return text[:cut]
        hold = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def end(self) -> str:
        """The text is over: what was held is no beginning of a stop string after all."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> int | None:
        found = [(begin + len(stop), begin) for stop in self._stops if (begin := text.find(stop)) >= 0]
        return min(found)[1] if found else None


class Transcript:
    """Tokens in, text out."""

    def __init__(
        self,
        pieces: PieceTable,
        stops: Sequence[str],
        *,
        min_tokens: int = 0,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """No stop string begins in what the first `min_tokens` tokens let out.

        Special tokens are left out, except `shown_ids`.
        """
        self._pieces = pieces
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopMatcher(stops)
        self._too_early = min_tokens
        self._shown_ids = shown_ids

    @property
    def stopped(self) -> bool:
        """Has a stop string appeared?"""
        return self._stops.stopped

    def push(self, token: int) -> str:
        """What one more token lets out; may be empty."""
        piece = self._pieces.written(token) if token in self._shown_ids else self._pieces.piece(token)
        text = self._characters.decode(piece)
        if self._too_early > 0:
            self._too_early -= 1
            return text
        return self._stops.push(text)

    def end(self) -> str:
        """What was still held when the last token has come."""
        return self._stops.push(self._characters.decode(b"", final=True)) + self._stops.end()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
