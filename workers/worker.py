"""A worker as the rest of the house sees it: its health, its load, and what it can do, at one moment."""

from enum import StrEnum

import msgspec

from radix_cache.match import WorkerId


class Health(StrEnum):
    """States of a worker; health.py has the table of moves between them."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    DRAINING = "draining"


class Role(StrEnum):
    """What a worker does of a request: all of it, or its prompt or its answer alone."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class Half(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that is one half of a pair. Halves of one `kind` can hand over to each other.

    `alone`: a decode worker can compute a prompt itself. `several`: also a request of several answers, or one that
    is answered with something of the prompt, can be split.
    """

    role: Role
    kind: str
    alone: bool
    several: bool


class Speed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast a worker computes, as measured from its answers.

    `ms_per_token`: prefill time of one uncached token. `fixed_ms`: what every request costs besides.
    `step_ms`: the gap between tokens of a running stream.
    """

    ms_per_token: float = 0.1
    fixed_ms: float = 20.0
    step_ms: float = 20.0


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker at one moment.

    `tokens_queued`: estimated uncached prompt tokens that were sent and have not brought a first token.
    `tokens_computed`: how many of them it has computed by now, as far as one can tell from the time that has
    passed. `streams`: requests under way. `kv_tokens`: prompt and expected output tokens of all of them.
    `kv_tokens_max`: room for KV, None where it does not tell. `chunk_tokens`: its prefill budget a step.
    `age_seconds`: since it joined, came back or started anew; None: so long ago that it does not matter. `half`:
    None where it serves whole requests.
    """

    id: WorkerId
    health: Health = Health.UP
    tokens_queued: int = 0
    tokens_computed: int = 0
    streams: int = 0
    kv_tokens: int = 0
    kv_tokens_max: int | None = None
    chunk_tokens: int = 8192
    speed: Speed = Speed()
    half: Half | None = None
    age_seconds: float | None = None
