"""Reads the payloads of server-sent events, wherever the stream was cut into chunks."""

import re

from gateway.domain.errors import StreamInterrupted

PAYLOAD_BYTES_MAX = 16 * 1024**2

DATA = b"data:"

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class SsePayloadReader:
    """Reads the `data` lines of whole events in a stream; the payload `[DONE]` is left out."""

    def __init__(self) -> None:
        self.done = False
        """Whether `[DONE]` has come."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that are complete now. Raises StreamInterrupted for an event without end."""
        if self._pieces:
            if _EVENT_END.search(self._last + data) is None:
                self._keep(data)
                return []
            data = b"".join((*self._pieces, data))
            self._pieces, self._size = [], 0
        *events, rest = _EVENT_END.split(data) if b"\r" in data else data.split(b"\n\n")
        if rest:
            self._keep(rest)
        return self._payloads(events)

    def end(self) -> list[bytes]:
        """Return the last payload, where the blank line that ends an event is missing."""
        last = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return self._payloads([last])

    def _payloads(self, events: list[bytes]) -> list[bytes]:
        payloads: list[bytes] = []
        for event in events:
            if DATA not in event:
                continue  # A comment, or nothing: a worker may send very many of them.
            payload = _payload(event)
            if payload == b"[DONE]":
                self.done = True
            elif payload:
                payloads.append(payload)
        return payloads

    def _keep(self, data: bytes) -> None:
        """Keep the beginning of an event, and its last three bytes, in which its end may begin."""
        self._pieces.append(data)
        self._size += len(data)
        self._last = (self._last + data[-3:])[-3:] if len(self._pieces) > 1 else data[-3:]
        if self._size > PAYLOAD_BYTES_MAX:
            raise StreamInterrupted


def _payload(event: bytes) -> bytes:
    if event.startswith(DATA) and b"\n" not in event and b"\r" not in event:
        return event[5:].strip()  # Nearly all events are one line.
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(DATA)]
    return b"\n".join(lines)
