"""The access log: one JSON line per request, written by a thread, so that no request waits for the disk.

    event loop --put--> queue (LINES_WAITING_MAX) --thread--> many lines in one write --> file, or standard output
                  |
                  +-- full, or the file cannot be written: counted in `dropped`

The line of an inference request also has values of its record: model, worker, times, tokens, error code, trace.
Bodies, headers, queries, and paths other than the handler's are not logged. If the file was moved away (logrotate),
a new one is made.
"""

import logging
import os
import sys
import threading
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

import msgspec

from gateway.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

LINES_WAITING_MAX = 10_000
LINES_TOGETHER_MAX = 500
CLOSE_SECONDS_MAX = 2.0
STANDARD_OUTPUT = "-"

RECORDS_MAX = 1024
"""The most records that wait for their line; the oldest are dropped, since requests of batches have no line."""


class AccessLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that has ended; a text that is not known is empty."""

    seconds: float  # when the request came, since 1970
    tenant: str
    key_id: str
    method: str
    route: str  # the handler's path, with the names of its variables
    status: int  # 499 if the client left
    bytes: int  # of the answer, headers included
    ms: float
    request_id: str
    record: RequestRecord | None = None  # of an inference request


class AccessLog:
    """Writes access lines to `target`, which is a path or STANDARD_OUTPUT, in a thread of its own."""

    def __init__(self, target: str, lines_waiting_max: int = LINES_WAITING_MAX) -> None:
        self.dropped = 0
        """Lines that were not written."""

        self._target = target
        self._lines_waiting_max = lines_waiting_max
        self._waiting: SimpleQueue[AccessLine | None] = SimpleQueue()
        self._records: dict[str, RequestRecord] = {}
        self._descriptor: int | None = None
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def observe(self, record: RequestRecord) -> None:
        """Keep the record of a finished request for its line."""
        if len(self._records) >= RECORDS_MAX:
            del self._records[next(iter(self._records))]
        self._records[record.id] = record

    def take_record(self, request_id: str) -> RequestRecord | None:
        """Return the record of this request, once; None if it has none."""
        return self._records.pop(request_id, None)

    def put(self, line: AccessLine) -> None:
        """Queue a line and return at once, or drop it if the queue is full.

        Only the event loop queues lines, so the bound is exact.
        """
        if self._waiting.qsize() >= self._lines_waiting_max:
            self.dropped += 1
        else:
            self._waiting.put(line)

    def close(self) -> None:
        """Write the queued lines and stop the thread; block at most CLOSE_SECONDS_MAX."""
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        ended = False
        while not ended:
            lines = [self._waiting.get()]
            try:
                while len(lines) < LINES_TOGETHER_MAX:
                    lines.append(self._waiting.get_nowait())
            except Empty:
                pass
            ended = lines[-1] is None
            self._write([line for line in lines if line is not None])
        if self._descriptor is not None and self._target != STANDARD_OUTPUT:
            os.close(self._descriptor)

    def _write(self, lines: list[AccessLine]) -> None:
        try:
            data = b"".join(map(_encoded, lines))
            descriptor = self._opened()
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError as err:
            self.dropped += len(lines)
            if not self._failing:
                log.error("the access log cannot be written: %s", err.strerror or err)
            self._failing = True
        else:
            self._failing = False

    def _opened(self) -> int:
        """Return the open file, and open a new one if the old one was moved away."""
        if self._target == STANDARD_OUTPUT:
            return sys.stdout.fileno()
        if self._descriptor is not None:
            try:
                if os.path.samestat(os.fstat(self._descriptor), os.stat(self._target)):
                    return self._descriptor
            except FileNotFoundError:
                pass
            os.close(self._descriptor)
            self._descriptor = None
        self._descriptor = os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        return self._descriptor


def _encoded(line: AccessLine) -> bytes:
    fields = msgspec.structs.asdict(line)
    at = datetime.fromtimestamp(fields.pop("seconds"), UTC).isoformat(timespec="milliseconds")
    record = fields.pop("record")
    more = _recorded(record) if record is not None else {}
    return msgspec.json.encode({"at": at.replace("+00:00", "Z"), **fields, **more}) + b"\n"


def _recorded(record: RequestRecord) -> dict[str, str | int | float | bool | None]:
    """Return the line's fields of an inference request; None for steps that the request did not reach."""
    return {
        "code": record.code,
        "model": record.model,
        "class": record.service_class,
        "stream": record.stream,
        "worker": record.worker,
        "attempts": record.attempts,
        "queue_ms": _ms(record.queue_seconds),
        "ttft_ms": _ms(record.ttft_seconds),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "trace_id": f"{record.trace.trace_id:032x}" if record.trace is not None else None,
    }


def _ms(seconds: float | None) -> float | None:
    return round(1000 * seconds, 3) if seconds is not None else None
