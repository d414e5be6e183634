"""A worker that needs almost no CPU, for measuring the gateway before it.

    python -m tests.benchmarks.fast_worker [MODEL ...]

Answers are made once, as bytes. Three fields of a request are read: `max_tokens` is the number of chunks of a
stream, `seed` the milliseconds between them, and `min_tokens` the milliseconds of prefill; a worker computes one
prompt after the other. Without a pause between chunks each chunk still leaves in a write of its own, one per turn
of the loop, as engines send them: a gateway must not be flattered by 64 chunks in one read. Two workers listen,
on two ports.
"""

import asyncio
import gc
import re
import sys
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import cast

import orjson
import uvloop

WORKERS = 2

HINT_BYTES = 512
"""The fields stand in so many bytes at the beginning of a body, or at its end where the order is another one."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
WORDS = ("the", "gateway", "counts", "every", "token", "that", "passes", "and", "forgets", "its", "text")

LAST_CHUNK = b"\r\n0\r\n\r\n"
"""The end of a body in chunks, as Envoy sends bodies; JSON contains no line breaks of this kind."""

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding:\s*chunked", re.IGNORECASE)
_CHUNKS = re.compile(rb'"max_tokens":\s*(\d+)')
_GAP = re.compile(rb'"seed":\s*(\d+)')
_PREFILL = re.compile(rb'"min_tokens":\s*(\d+)')
_STREAM = re.compile(rb'"stream":\s*true')


class Prefills:
    """The prefills of one worker: each begins when the one before it has ended, unless its caller has left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Connection, float]] = deque()
        self._busy = False

    def add(self, connection: "Connection", seconds: float) -> None:
        self._waiting.append((connection, seconds))
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = False
        while self._waiting and not self._busy:
            connection, seconds = self._waiting.popleft()
            if connection.open:
                self._busy = True
                self._loop.call_later(seconds, self._end, connection)

    def _end(self, connection: "Connection") -> None:
        connection.begin()
        self._begin()


class Connection(asyncio.Protocol):
    """The connection of one caller, with one request after the other."""

    def __init__(
        self, pages: dict[bytes, bytes], loop: asyncio.AbstractEventLoop, prefills: Prefills
    ) -> None:
        self._pages = pages
        self._loop = loop
        self._prefills = prefills
        self._parts: list[bytes] = []
        self._missing = 0
        self._chunked = False
        self._chunks = 0
        self._sent = 0
        self._gap_seconds = 0.0
        self._started_at = 0.0
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        if self._chunked:
            self._parts.append(data)
            # The end may have come in two pieces.
            if b"".join(self._parts[-2:]).endswith(LAST_CHUNK):
                self._answer_parts()
            return
        if not self._missing:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                raise ValueError("the head of a request came in pieces")
            length = _LENGTH.search(data, 0, end)
            if length is None and _CHUNKED.search(data, 0, end) is not None:
                self._parts.append(data)
                self._chunked = True
                if data.endswith(LAST_CHUNK):
                    self._answer_parts()
                return
            self._missing = (int(length[1]) if length is not None else 0) - (len(data) - end - 4)
            if not self._missing:
                self._answer(data)
                return
            self._parts.append(data)
            return
        self._missing -= len(data)
        self._parts.append(data)
        if not self._missing:
            self._answer_parts()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sent = self._chunks
        self.open = False

    def begin(self) -> None:
        """Begin the answer: the prefill has ended."""
        self._started_at = self._loop.time()
        self._next(STREAM_HEAD)

    def _answer_parts(self) -> None:
        request = b"".join(self._parts)
        self._parts.clear()
        self._chunked = False
        self._answer(request)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET"):
            path = request.split(b" ", 2)[1]
            self._transport.write(self._pages.get(path, self._pages[b""]))
            return
        hints = request if len(request) < 3 * HINT_BYTES else _ends(request)
        if _STREAM.search(hints) is None:
            self._transport.write(self._pages[b"POST"])
            return
        chunks, gap = _CHUNKS.search(hints), _GAP.search(hints)
        self._chunks = int(chunks[1]) if chunks is not None else 16
        self._gap_seconds = int(gap[1]) / 1000 if gap is not None else 0.0
        self._sent = 0
        prefill = _PREFILL.search(hints)
        if prefill is None:
            self.begin()
        else:
            self._prefills.add(self, int(prefill[1]) / 1000)

    def _next(self, before: bytes = b"") -> None:
        if self._sent >= self._chunks:
            return
        data = before + CHUNKS[self._sent % len(CHUNKS)]
        self._sent += 1
        last = self._sent == self._chunks
        self._transport.write(data + stream_end(self._chunks) if last else data)
        if last:
            return
        if self._gap_seconds:
            self._loop.call_at(self._started_at + self._sent * self._gap_seconds, self._next)
        else:
            self._loop.call_soon(self._next)


def _ends(request: bytes) -> bytes:
    body = request.find(b"\r\n\r\n")
    return request[body : body + HINT_BYTES] + request[-HINT_BYTES:]


def _page(value: object, status: bytes = b"200 OK") -> bytes:
    body = orjson.dumps(value)
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _frame(data: bytes) -> bytes:
    """Return one server-sent event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _chunk(choices: list[object], usage: object = None) -> bytes:
    head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench"}
    return _frame(orjson.dumps({**head, "choices": choices, **({"usage": usage} if usage else {})}))


def _pages(models: Sequence[str]) -> dict[bytes, bytes]:
    """Return the answers by path; "POST" is the answer to an inference request, "" to any unknown path."""
    message = {"role": "assistant", "content": " ".join(WORDS)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1_700_000_000, "model": "bench"}
    info = {"max_total_num_tokens": 10_000_000, "chunked_prefill_size": 8192, "instance_id": "one"}
    return {
        b"POST": _page({**head, "choices": [choice], "usage": _usage(16)}),
        b"/ready": _page({}),
        b"/health": _page({}),
        b"/server_info": _page(info),
        b"/get_server_info": _page(info),
        b"/v1/models": _page({"object": "list", "data": [{"id": m, "object": "model"} for m in models]}),
        b"": _page({"error": {"message": "unknown"}}, b"404 Not Found"),
    }


def _usage(output_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": 50,
        "completion_tokens": output_tokens,
        "total_tokens": 50 + output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@cache
def stream_end(chunks: int) -> bytes:
    """Return the end of a stream of so many chunks: the finish reason, the usage, and the mark of the end."""
    return _ENDED + _chunk([], _usage(chunks)) + _frame(b"[DONE]") + b"0\r\n\r\n"


CHUNKS = [
    _chunk([{"index": 0, "delta": {"content": f" {word}"}, "logprobs": None, "finish_reason": None}])
    for word in WORDS
]
_ENDED = _chunk([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}])


async def serve(models: Sequence[str]) -> None:
    """Serve on free ports until cancelled."""
    loop, pages = asyncio.get_running_loop(), _pages(models)
    servers = [
        await loop.create_server(
            lambda prefills=prefills: Connection(pages, loop, prefills),  # type: ignore[misc]
            "127.0.0.1",
            0,
            backlog=1024,
        )
        for prefills in [Prefills(loop) for _ in range(WORKERS)]
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print("workers ready at", ",".join(f"http://127.0.0.1:{port}" for port in ports), flush=True)
    gc.freeze()
    gc.disable()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:] or ["bench"]))
