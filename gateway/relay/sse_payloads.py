"""Server-sent events to the JSON in them, however the stream was cut."""

import re

from gateway.domain.errors import StreamInterrupted

PAYLOAD_BYTES_MAX = 16 * 1024**2

_END = re.compile(rb"\r?\n\r?\n")


class Payloads:
    """What the data lines of whole events say, less `[DONE]`. `done`: that has come."""

    def __init__(self) -> None:
        self.done = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now. Raises StreamInterrupted for one without end."""
        if self._pieces:
            if _END.search(self._last + data) is None:
                self._keep(data)
                return []
            data = b"".join((*self._pieces, data))
            self._pieces, self._size = [], 0
        *events, rest = _END.split(data) if b"\r" in data else data.split(b"\n\n")
        if rest:
            self._keep(rest)
        return self._said(events)

    def end(self) -> list[bytes]:
        """What came last, where the blank line that ends an event is missing."""
        last = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return self._said([last])

    def _said(self, events: list[bytes]) -> list[bytes]:
        payloads = [payload for event in events if (payload := _payload(event))]
        self.done = self.done or b"[DONE]" in payloads
        return [payload for payload in payloads if payload != b"[DONE]"]

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self._last = (self._last + data[-3:])[-3:] if len(self._pieces) > 1 else data[-3:]
        if self._size > PAYLOAD_BYTES_MAX:
            raise StreamInterrupted


def _payload(event: bytes) -> bytes:
    if event.startswith(b"data:") and b"\n" not in event and b"\r" not in event:
        return event[5:].strip()  # One line, as nearly all are.
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)
