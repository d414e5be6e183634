"""The incremental detokenizer: from the tokens of an answer to its text, up to the first stop string.

    tokens --bytes--> UTF-8 decoder --text--> stop matcher --text--> client
                      keeps an unfinished     keeps what may be the
                      character, or a run     beginning of a stop string
                      of fallback bytes

Text that was returned is never revoked: all parts joined are the text of the answer, up to the first stop string.
"""

import codecs
from collections.abc import Sequence

from workers.engine.tokenization.token_bytes import TokenBytes

RUN_BYTES_MAX = 48
"""Longest run of fallback bytes that is held back: a text in a script without tokens still arrives in parts."""


class _StopAutomaton:
    """The search for one stop string, character by character (Knuth, Morris and Pratt 1977).

    A character costs the same however long the string is: clients choose it, and every request of the batch waits.
    """

    __slots__ = ("_falls", "reached", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.reached = 0
        self._falls = [0, 0]
        """For each matched length, the longest shorter prefix of the string that the text also ends with."""
        length = 0
        for character in text[1:]:
            length = self._next(length, character)
            self._falls.append(length)

    def push(self, character: str) -> bool:
        """Read one more character; return True when the string is complete."""
        self.reached = self._next(self.reached, character)
        return self.reached == len(self.text)

    def _next(self, length: int, character: str) -> int:
        while length and self.text[length] != character:
            length = self._falls[length]
        return length + (self.text[length] == character)


class StopStringMatcher:
    """Cuts a text at the stop string that completes first; of several that complete together, at the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_StopAutomaton(stop) for stop in stops]
        self._held = ""
        self.met: str | None = None
        """The stop string that completed, or None."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has completed."""
        return self.met is not None

    def push(self, text: str) -> str:
        """Read more text, and return the text that no stop string can cut any more; none once `stopped`."""
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
        """Return the text that was held back as a possible beginning of a stop string: the text has ended."""
        held, self._held = self._held, ""
        return held


class Detokenizer:
    """The incremental detokenizer of one answer, which stops at the first stop string."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        stops: Sequence[str],
        *,
        min_tokens: int = 0,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Create a detokenizer.

        Args:
            token_bytes: the bytes of each token.
            stops: the stop strings.
            min_tokens: the text of so many first tokens is not searched for stop strings.
            shown_ids: the special tokens that are part of the text; others are left out.
        """
        self._token_bytes = token_bytes
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._run = b""
        """Fallback bytes that are not decoded yet, since the next one may make all of them invalid."""
        self._stops = StopStringMatcher(stops)
        self._unsearched_tokens = min_tokens
        self._shown_ids = shown_ids

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.met

    def push(self, token: int) -> str:
        """Decode one more token, and return the text that is now certain, which may be empty."""
        text = self._decode(token)
        if self._unsearched_tokens > 0:
            self._unsearched_tokens -= 1
            return text
        return self._stops.push(text)

    def end(self) -> str:
        """Return the text that was still held back after the last token."""
        last = self._end_run() + self._characters.decode(b"", final=True)
        return self._stops.push(last) + self._stops.end()

    def _decode(self, token: int) -> str:
        """Return the text that is certain after this token."""
        if self._token_bytes.is_fallback_byte(token):
            self._run += self._token_bytes.text_bytes(token)
            return self._end_run() if len(self._run) >= RUN_BYTES_MAX else ""
        shown = token in self._shown_ids
        piece = self._token_bytes.written_bytes(token) if shown else self._token_bytes.text_bytes(token)
        # A token without text, as a special one, does not end a run.
        return (self._end_run() if piece else "") + self._characters.decode(piece)

    def _end_run(self) -> str:
        """Return the text of the run of fallback bytes: its characters, or a replacement for each byte."""
        run, self._run = self._run, b""
        try:
            return run.decode()
        except UnicodeDecodeError as error:
            unfinished = error.reason == "unexpected end of data" and len(run) >= RUN_BYTES_MAX
            if unfinished:
                # The run continues: its last character is complete with the next bytes.
                self._run = run[error.start :]
                return run[: error.start].decode()
            return "\N{REPLACEMENT CHARACTER}" * len(run)
