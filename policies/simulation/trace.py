"""Traces of requests: when each prompt came, how long it was, and which prefix it shared with others.

The format is Mooncake's (FAST'25), one JSON object a line: `timestamp` in ms, `input_length` and `output_length` in
tokens, `hash_ids` of blocks of 512 tokens. Ids are chained: two prompts with an equal id are equal up to the end of
that block. The last, partial block has an id too. `tenant`, `session` and `service_class` may follow; other fields
are ignored.

Timestamps may be coarse (the published ones are whole multiples of 3 s). Requests with equal timestamps are spread
at random over the time to the next possible timestamp: otherwise a replay would be a series of bursts that never
happened.
"""

from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
from xxhash import xxh3_64_intdigest

BLOCK_TOKENS = 512
MODEL = "model"
"""The name of the only model, that of all requests of a trace."""

TRACE_BYTES_MAX = 2**30
GZIPPED = b"\x1f\x8b"


class TraceInvalid(ValueError):
    """A trace cannot be read; the text has the line and the cause."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a trace."""

    at: float
    """Arrival, in seconds since the trace began."""
    prompt_tokens: int
    output_tokens: int
    blocks: "array[int]"
    """Chained ids of the prompt's blocks, an array of u64."""
    tenant: str = ""
    session: str = ""
    """Equal for the turns of one conversation; empty if not known."""
    service_class: str = ""
    """Its service class; empty if not known: chat."""

    def cut(self, prompt_tokens: int, output_tokens: int) -> "TraceRequest":
        """Return the same request with so many tokens, which must not be more than it has."""
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
    service_class: str = ""


def read_trace(path: Path) -> list[TraceRequest]:
    """Read all requests of a file, in order of time; the first comes at 0. Raises TraceInvalid."""
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
    """Return the requests with times counted from the first one; a part of a trace may begin late."""
    began = requests[0].at
    if not began:
        return requests
    return [msgspec.structs.replace(request, at=request.at - began) for request in requests]


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write requests in the same format, so that other tools can replay them."""
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
                "service_class": request.service_class,
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
        service_class=line.service_class,
    )


def paced(requests: Sequence[TraceRequest], *, speed: float = 1.0, seed: int = 0) -> list[TraceRequest]:
    """Return the trace as it is replayed: coarse timestamps spread, then all of it `speed` times as fast."""
    random, width = Random(seed), _bucket_seconds(requests)
    spread = [
        msgspec.structs.replace(request, at=(request.at + width * random.random()) / speed)
        for request in requests
    ]
    return sorted(spread, key=lambda request: request.at)


def isolated(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Return the requests with blocks that no two tenants share, as a gateway keeps isolated tenants apart."""
    salts = {tenant: xxh3_64_intdigest(tenant.encode()) for tenant in {each.tenant for each in requests}}
    return [
        msgspec.structs.replace(
            request, blocks=array("Q", (block ^ salts[request.tenant] for block in request.blocks))
        )
        for request in requests
    ]


def _bucket_seconds(requests: Sequence[TraceRequest]) -> float:
    """Return the least distance of two timestamps, in seconds, if timestamps are coarse; otherwise 0."""
    times = sorted({request.at for request in requests})
    if len(times) < 2 or len(times) == len(requests):
        return 0.0
    width = min(later - earlier for earlier, later in pairwise(times))
    # If only a few timestamps are equal, they are so by chance.
    return width if len(times) < 0.9 * len(requests) else 0.0


def ideal_hit_ratio(requests: Iterable[TraceRequest]) -> float:
    """Return the share of the prompt tokens that an endless cache would have held."""
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
