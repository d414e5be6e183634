"""The text of one answer, as it grows.

    tokens --bytes--> UTF-8 decoder --text--> stop matcher --text--> client
                      keeps an unfinished     keeps what may be the
                      character               beginning of a stop string

What was given out is never taken back: all pieces joined are the text of the whole, up to the first stop string.
"""

import codecs
from collections.abc import Sequence

from workers.engine.tokenization.token_bytes import TokenBytes


class _Stop:
    """How much of a stop string the end of a text is (Knuth, Morris and Pratt 1977).

    A character costs the same however long the string is: clients choose it, and all pay for it.
    """

    __slots__ = ("_falls", "reached", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.reached = 0
        self._falls = [0, 0]
        """For each length reached, the longest shorter one that the same end of the text is, too."""
        length = 0
        for character in text[1:]:
            length = self._next(length, character)
            self._falls.append(length)

    def push(self, character: str) -> bool:
        """Read one more character; True when the string is complete."""
        self.reached = self._next(self.reached, character)
        return self.reached == len(self.text)

    def _next(self, length: int, character: str) -> int:
        while length and self.text[length] != character:
            length = self._falls[length]
        return length + (self.text[length] == character)


class StopStringMatcher:
    """Cuts a text at the stop string that completes first; of several that complete together, at the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""
        self.met: str | None = None
        """The one that completed."""

    @property
    def stopped(self) -> bool:
        return self.met is not None

    def push(self, text: str) -> str:
        """What may be given out now. Nothing any more once `stopped`."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        seen, text = len(self._held), self._held + text
        for end in range(seen, len(text)):
            if whole := [stop.text for stop in self._stops if stop.push(text[end])]:
                self.met, self._held = max(whole, key=len), ""
                return text[: end + 1 - len(self.met)]
        free = len(text) - max(stop.reached for stop in self._stops)
        self._held = text[free:]
        return text[:free]

    def end(self) -> str:
        """The text is over: what was held is no beginning of a stop string after all."""
        held, self._held = self._held, ""
        return held


class Detokenizer:
    """Tokens in, text out."""

    def __init__(
        self,
        pieces: TokenBytes,
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
        self._stops = StopStringMatcher(stops)
        self._too_early = min_tokens
        self._shown_ids = shown_ids

    @property
    def stop(self) -> str | None:
        """The stop string that has appeared, if one has."""
        return self._stops.met

    def push(self, token: int) -> str:
        """What one more token lets out; may be empty."""
        piece = (
            self._pieces.written_bytes(token) if token in self._shown_ids else self._pieces.text_bytes(token)
        )
        text = self._characters.decode(piece)
        if self._too_early > 0:
            self._too_early -= 1
            return text
        return self._stops.push(text)

    def end(self) -> str:
        """What was still held when the last token has come."""
        return self._stops.push(self._characters.decode(b"", final=True)) + self._stops.end()
