"""Traces: which prompts came when, and what they had in common.

The format is Mooncake's (FAST'25), one JSON object a line: `timestamp` in ms, `input_length`, `output_length` in
tokens, `hash_ids` of blocks of 512 tokens. Ids are chained: two prompts with an equal id are equal up to its end.
The last, partial block has an id too. `tenant` and `session` may follow; other fields are ignored.

Timestamps may be coarse (the published ones are whole multiples of 3 s). Requests that share one are spread over
the time to the next possible one, by lot, or every replay would be a series of bursts that never happened.
"""

from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec

BLOCK_TOKENS = 512
TRACE_BYTES_MAX = 2**30
GZIPPED = b"\x1f\x8b"


class TraceInvalid(ValueError):
    """A trace that cannot be read; says which line, and why."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. `at`: seconds since the trace began. `blocks`: chained ids, array of u64.

    `session`: equal for the turns of one conversation; empty if nobody knows.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: "array[int]"
    tenant: str = ""
    session: str = ""

    def cut(self, prompt_tokens: int, output_tokens: int) -> "TraceRequest":
        """The same request, no longer than this."""
        if (prompt_tokens, output_tokens) == (self.prompt_tokens, self.output_tokens):
            return self
        blocks = self.blocks[: -(-prompt_tokens // BLOCK_TOKENS)]
        return msgspec.structs.replace(
            self, prompt_tokens=prompt_tokens, output_tokens=output_tokens, blocks=blocks
        )


class _Line(msgspec.Struct, gc=False):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    tenant: str = ""
    session: str | int = ""


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a file, in order of time; the first comes at 0. Raises TraceInvalid."""
    try:
        if path.stat().st_size > TRACE_BYTES_MAX:
            raise TraceInvalid(f"{path} is larger than {TRACE_BYTES_MAX} bytes")
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as err:
        raise TraceInvalid(f"{path} cannot be read: {err.strerror}") from err
    if lines and lines[0].startswith(GZIPPED):
        raise TraceInvalid(f"{path} is compressed: gunzip it first")
    decoder = msgspec.json.Decoder(_Line)
    requests: list[TraceRequest] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            requests.append(_request(decoder.decode(text)))
        except (msgspec.DecodeError, OverflowError, ValueError) as err:
            raise TraceInvalid(f"{path}, line {number}: {err}") from err
    if not requests:
        raise TraceInvalid(f"{path} has no requests")
    return _from_its_beginning(sorted(requests, key=lambda request: request.at))


def _from_its_beginning(requests: list[TraceRequest]) -> list[TraceRequest]:
    """A part of a trace, or one with the time of day, would else be waited for as long as its clock had run."""
    began = requests[0].at
    if not began:
        return requests
    return [msgspec.structs.replace(request, at=request.at - began) for request in requests]


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """The same format, so that other tools can replay it."""
    encoder = msgspec.json.Encoder()
    lines = (
        encoder.encode(
            {
                "timestamp": round(1000 * request.at),
                "input_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.blocks),
                "tenant": request.tenant,
                "session": request.session,
            }
        )
        for request in requests
    )
    path.write_bytes(b"\n".join(lines) + b"\n")


def _request(line: _Line) -> TraceRequest:
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if line.input_length < 1 or line.output_length < 0 or line.timestamp < 0:
        raise ValueError("lengths and timestamps must not be negative, and a prompt has a token")
    if len(line.hash_ids) != blocks:
        raise ValueError(
            f"a prompt of {line.input_length} tokens has {blocks} blocks, not {len(line.hash_ids)}"
        )
    return TraceRequest(
        at=line.timestamp / 1000,
        prompt_tokens=line.input_length,
        # Engines generate at least one token.
        output_tokens=max(1, line.output_length),
        blocks=array("Q", line.hash_ids),
        tenant=line.tenant,
        session=str(line.session),
    )


def paced(requests: Sequence[TraceRequest], *, speed: float = 1.0, seed: int = 0) -> list[TraceRequest]:
    """The trace as it is replayed: coarse timestamps spread, then all of it `speed` times as fast."""
    random, width = Random(seed), _bucket_seconds(requests)
    spread = [
        msgspec.structs.replace(request, at=(request.at + width * random.random()) / speed)
        for request in requests
    ]
    return sorted(spread, key=lambda request: request.at)


def _bucket_seconds(requests: Sequence[TraceRequest]) -> float:
    """The least distance of two timestamps, if several requests share one; otherwise they are fine as they are."""
    times = sorted({request.at for request in requests})
    if len(times) < 2 or len(times) == len(requests):
        return 0.0
    width = min(later - earlier for earlier, later in pairwise(times))
    # Where only a few coincide they did so by chance.
    return width if len(times) < 0.9 * len(requests) else 0.0


def ideal_hit_ratio(requests: Iterable[TraceRequest]) -> float:
    """Prompt tokens that an endless cache would have held, of all prompt tokens."""
    seen: set[int] = set()
    held_tokens = tokens = 0
    for request in requests:
        held = 0
        while held < len(request.blocks) and request.blocks[held] in seen:
            held += 1
        seen.update(request.blocks[held:])
        held_tokens += min(held * BLOCK_TOKENS, request.prompt_tokens)
        tokens += request.prompt_tokens
    return held_tokens / tokens if tokens else 0.0
