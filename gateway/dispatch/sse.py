"""Server-sent events on their way through: whole frames go on as they came, usage is read in passing.

    bytes from the worker      data: {..}\\n\\ndata: {..}\\n\\nda | ta: {"choices":[],"usage":{..}}\\n\\n
    bytes to the client        data: {..}\\n\\ndata: {..}\\n\\n   | (withheld, unless it was asked for)

Chunk boundaries mean nothing. Only whole frames are passed on, so that a client never gets half a frame before an
error; since workers write whole frames, this holds almost nothing back. A frame is parsed only if it has a usage
object, which the byte pattern below finds: inside JSON strings quotes are escaped, so text cannot look like it.
"""

import re

import msgspec

from gateway.telemetry.record import Usage

FRAME_BYTES_MAX = 16 * 1024**2

_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FRAME_END = re.compile(rb"\r?\n\r?\n")


class FrameTooLarge(Exception):
    """A frame is longer than FRAME_BYTES_MAX; nobody sends such a thing in good faith."""


class _UsageFrame(msgspec.Struct):
    usage: Usage | None = None
    choices: list[msgspec.Raw] | None = None


_DECODER = msgspec.json.Decoder(_UsageFrame)


class FrameFilter:
    """One stream. `usage`: the last that was reported; `frames`: data frames passed on, less `[DONE]`."""

    __slots__ = ("_tail", "_wants_usage", "frames", "usage")

    def __init__(self, *, wants_usage: bool) -> None:
        self._wants_usage = wants_usage
        self._tail = b""
        self.usage: Usage | None = None
        self.frames = 0

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now. Raises FrameTooLarge."""
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        if not chunk.endswith(b"\n\n"):
            chunk = self._whole_frames(chunk)
        found = _USAGE.search(chunk)
        if found is not None:
            # Frames before it need no look.
            start = _end_of_frames(chunk, found.start())
            chunk = chunk[:start] + b"".join(self._kept(frame) for frame in _split(chunk[start:]))
        self.frames += chunk.count(b"\n\n") + chunk.count(b"\n\r\n") - chunk.endswith(_DONE)
        return chunk

    def end(self) -> bytes:
        """The stream has ended. What is left is not a whole frame, but it is the worker's last word."""
        tail, self._tail = self._tail, b""
        return self._kept(tail)

    def _whole_frames(self, data: bytes) -> bytes:
        """Keeps back what follows the last frame end."""
        cut = _end_of_frames(data, len(data))
        self._tail = data[cut:]
        if len(self._tail) > FRAME_BYTES_MAX:
            raise FrameTooLarge
        return data[:cut]

    def _kept(self, frame: bytes) -> bytes:
        """The frame, unless it is a usage frame that the client did not ask for."""
        if _USAGE.search(frame) is None:
            return frame
        payload = b"".join(line[5:] for line in frame.splitlines() if line.startswith(b"data:"))
        try:
            decoded = _DECODER.decode(payload)
        except msgspec.DecodeError:
            return frame
        if decoded.usage is not None:
            self.usage = decoded.usage
        return b"" if decoded.choices == [] and not self._wants_usage else frame


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
