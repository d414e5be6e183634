"""Requests as bytes, made before the clock runs; answers are only searched for their beginning and end."""

import re
from collections.abc import Iterator
from random import Random

import orjson

from tests.benchmarks.subjects import Subject
from workers.engine.tiny_text import sentences

POOL_SENTENCES = 20_000
POOL_SEED = 7
LAST_CHUNK = b"\r\n0\r\n\r\n"
STREAM_END = b"[DONE]\n\n" + LAST_CHUNK

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


class BadAnswer(Exception):
    """An unexpected answer; the text says in one line what came."""


class Answer:
    """A reader of one answer with the expected status; `begun` tells whether its body has begun."""

    __slots__ = ("_end", "_first", "_head", "_missing", "_tail", "begun")

    def __init__(self, status: int = 200) -> None:
        self._first = b"HTTP/1.1 %d" % status
        self._head = b""
        self._missing: int | None = None  # bytes left of a body of known length
        self._tail = b""  # the last bytes of a chunked body
        self._end = STREAM_END  # with which it has to end
        self.begun = False

    def feed(self, data: bytes) -> bool:
        """Add bytes and return whether the answer is complete. Raises BadAnswer."""
        if not self.begun:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0 or len(data) == end + 4:
                self._head = data
                return False
            if not data.startswith(self._first):
                raise BadAnswer(data[:1000].decode(errors="replace"))
            self.begun = True
            length = _LENGTH.search(data, 0, end)
            if b"application/json" in data[:end]:
                self._end = LAST_CHUNK  # Envoy sends whole answers in chunks too.
            if length is not None:
                self._missing = int(length[1]) - (len(data) - end - 4)
                return self._missing == 0
        elif self._missing is not None:
            self._missing -= len(data)
            return self._missing == 0
        self._tail = (self._tail + data)[-len(STREAM_END) :]
        if self._tail.endswith(LAST_CHUNK):
            if not self._tail.endswith(self._end):
                raise BadAnswer("the stream ended before its end")
            return True
        return False


class Texts:
    """Prompts of so many characters, each new from its first character on, and the same in every run."""

    def __init__(self) -> None:
        self._pool = " ".join(sentences(POOL_SEED, POOL_SENTENCES))
        self._random = Random(POOL_SEED)

    def new(self, characters: int) -> str:
        text = f"{self._random.getrandbits(48):012x} "
        start = self._random.randrange(len(self._pool) - characters)
        return text + self._pool[start : start + characters - len(text)]

    def repeated(self, characters: int) -> str:
        """Return a text of any length."""
        text = f"{self._random.getrandbits(48):012x} "
        return (text + self._pool * (characters // len(self._pool) + 1))[:characters]

    def ids(self, count: int) -> list[int]:
        """Return a prompt of so many token ids."""
        return self._random.choices(range(10, 500), k=count)

    def forever(self, characters: int) -> Iterator[str]:
        while True:
            yield self.new(characters)


def request(
    subject: Subject, text: str, *, chunks: int | None = None, gap_ms: int = 0, prefill_ms: int = 0
) -> bytes:
    """Return a chat completion for this subject; with `chunks` a stream of so many chunks."""
    fields: dict[str, object] = {"model": subject.model, "max_tokens": chunks or 16}
    if chunks is not None:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if gap_ms:
            fields["seed"] = gap_ms
        if prefill_ms:
            fields["min_tokens"] = prefill_ms
    fields["messages"] = [{"role": "user", "content": text}]
    return _sent(subject, "chat/completions", fields)


def request_of_ids(subject: Subject, ids: list[int]) -> bytes:
    """Return a text completion of token ids."""
    return _sent(subject, "completions", {"model": subject.model, "max_tokens": 16, "prompt": ids})


def _sent(subject: Subject, path: str, fields: dict[str, object]) -> bytes:
    body = orjson.dumps(fields)
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nhost: {subject.host}:{subject.port}\r\n"
        f"authorization: Bearer {subject.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
