"""Server-sent events on their way through: whole frames go on as they came, usage is read in passing.

    bytes from the worker      data: {..}\\n\\ndata: {..}\\n\\nda | ta: {"choices":[],"usage":{..}}\\n\\n
    bytes to the client        data: {..}\\n\\ndata: {..}\\n\\n   | (withheld, unless it was asked for)

Chunk boundaries mean nothing. Only whole frames are passed on, so that a client never gets half a frame before an
error; since workers write whole frames, this holds almost nothing back. A frame is parsed only if it has a usage
object, which the byte pattern below finds: inside JSON strings quotes are escaped, so text cannot look like it.

A frame longer than FRAME_BYTES_MAX is not waited for: it passes as it comes, and nobody looks inside.
"""

import re

import msgspec

from gateway.relay.error_redaction import with_safe_errors, without_cached_tokens
from gateway.telemetry.record import Usage, read_usage

FRAME_BYTES_MAX = 1024**2

_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FRAME_END = re.compile(rb"\r?\n\r?\n")


class _UsageFrame(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[msgspec.Raw] | None = None


_DECODER = msgspec.json.Decoder(_UsageFrame)


class FrameFilter:
    """One stream. `usage`: the last that was reported; `frames`: data frames passed on, less `[DONE]`.

    `tells_cached`: its usage may say how much of the prompt was cached.
    """

    __slots__ = (
        "_last",
        "_passing",
        "_tail",
        "_tail_bytes",
        "_tells_cached",
        "_wants_usage",
        "frames",
        "usage",
    )

    def __init__(self, *, wants_usage: bool, tells_cached: bool = True) -> None:
        self._wants_usage = wants_usage
        self._tells_cached = tells_cached
        # In the pieces in which it came: joined once, when its end is there. `_last`: its last two bytes.
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._last = b""
        self._passing = False  # the rest of a frame that is too long to be kept
        self.usage: Usage | None = None
        self.frames = 0

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now."""
        if self._tail or self._passing:
            seam = self._last + chunk[:2]
            if not (_has_end(seam) or _has_end(chunk)):
                return self._more_of_the_same(chunk)
        passed = b""
        if self._passing:
            end = _FRAME_END.search(self._last + chunk)
            assert end is not None
            cut = end.end() - len(self._last)
            passed, chunk = chunk[:cut], chunk[cut:]
            self._passing, self._last = False, b""
            self.frames += 1
        elif self._tail:
            chunk = b"".join((*self._tail, chunk))
            self._keep(b"")
        return passed + self._frames_of(chunk)

    def end(self) -> bytes:
        """The stream has ended. What is left is not a whole frame, but it is the worker's last word."""
        tail = b"".join(self._tail)
        self._keep(b"")
        return with_safe_errors(self._kept(tail))

    def _frames_of(self, chunk: bytes) -> bytes:
        """The whole frames at the beginning of this; the rest is kept."""
        if not chunk.endswith(b"\n\n"):
            cut = _end_of_frames(chunk, len(chunk))
            chunk, rest = chunk[:cut], chunk[cut:]
            self._keep(rest)
        found = _USAGE.search(chunk)
        if found is not None:
            # Frames before it need no look.
            start = _end_of_frames(chunk, found.start())
            chunk = chunk[:start] + b"".join(self._kept(frame) for frame in _split(chunk[start:]))
        chunk = with_safe_errors(chunk)
        self.frames += chunk.count(b"\n\n") + chunk.count(b"\n\r\n") - chunk.endswith(_DONE)
        return chunk + self._too_much()

    def _more_of_the_same(self, chunk: bytes) -> bytes:
        """No frame ends in this."""
        self._last = (self._last + chunk[-2:])[-2:]
        if self._passing:
            return chunk
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        return self._too_much()

    def _keep(self, rest: bytes) -> None:
        self._tail, self._tail_bytes, self._last = [rest] if rest else [], len(rest), rest[-2:]

    def _too_much(self) -> bytes:
        """What is kept, if that is more than may be."""
        if self._tail_bytes <= FRAME_BYTES_MAX:
            return b""
        tail, self._tail, self._tail_bytes = self._tail, [], 0
        self._passing = True
        return b"".join(tail)

    def _kept(self, frame: bytes) -> bytes:
        """The frame, unless it is a usage frame that the client did not ask for."""
        if _USAGE.search(frame) is None:
            return frame
        payload = b"".join(line[5:] for line in frame.splitlines() if line.startswith(b"data:"))
        try:
            decoded = _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return frame
        self.usage = read_usage(decoded.usage) or self.usage
        if decoded.choices == [] and not self._wants_usage:
            return b""
        told = payload if self._tells_cached else without_cached_tokens(payload)
        return frame if told is payload else b"data: " + told + b"\n\n"


def _has_end(data: bytes) -> bool:
    return b"\n\n" in data or b"\n\r\n" in data


def _end_of_frames(data: bytes, before: int) -> int:
    """Where the last whole frame before this place ends."""
    lf, crlf = data.rfind(b"\n\n", 0, before), data.rfind(b"\n\r\n", 0, before)
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def _split(data: bytes) -> list[bytes]:
    """Whole frames, each with its end."""
    frames, start = [], 0
    for end in _FRAME_END.finditer(data):
        frames.append(data[start : end.end()])
        start = end.end()
    if start < len(data):
        frames.append(data[start:])
    return frames
