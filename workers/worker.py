"""A worker at one moment, for routing and dispatch: its health, its load, its speed, and what it can do."""

from enum import StrEnum

import msgspec

from radix_cache.match import WorkerId


class Health(StrEnum):
    """The health state of a worker; gateway/fleet/worker_health.py has the table of transitions."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    DRAINING = "draining"


class Role(StrEnum):
    """What a worker does of a request: all of it, or only the prompt (prefill) or only the answer (decode)."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class DisaggregationProfile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a worker takes part in disaggregated serving, as the prefill or the decode half of a pair."""

    role: Role
    """PREFILL or DECODE."""
    kind: str
    """Kind of the worker; a prefill worker can hand over to decode workers of the same kind."""
    serves_alone: bool
    """Whether a decode worker of this kind can compute a prompt itself."""
    splits_multiple: bool
    """Whether a request of several answers, or one that echoes something of the prompt, can be split."""


class Speed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast a worker computes, as measured from its answers."""

    ms_per_token: float = 0.1
    """Prefill time of one uncached token."""
    fixed_ms: float = 20.0
    """What every request costs besides its tokens."""
    step_ms: float = 20.0
    """Time between two tokens of a running stream."""


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of one worker at one moment, as input of a routing policy."""

    id: WorkerId
    health: Health = Health.UP
    tokens_queued: int = 0
    """Estimated uncached prompt tokens that were sent and have not brought a first token."""
    away_tokens: int = 0
    """Of the queued tokens, those that are not there: the worker is at home in another cell of gateways."""
    tokens_computed: int = 0
    """How many of the queued tokens are computed by now, estimated from the time that has passed."""
    streams: int = 0
    """Requests under way."""
    requests_awaiting: int = 0
    """Requests that wait in the gateway for this worker, as most of their prompt is cached there."""
    kv_tokens: int = 0
    """Prompt and expected output tokens of all requests under way."""
    kv_tokens_max: int | None = None
    """Tokens that fit into the KV cache; None if the worker does not report it."""
    chunk_tokens: int = 8192
    """Prefill tokens that the worker computes in one step (its chunk budget)."""
    speed: Speed = Speed()
    disaggregation: DisaggregationProfile | None = None
    """Its half of a prefill/decode pair; None for a worker that serves whole requests."""
    age_seconds: float | None = None
    """Time since the worker joined, recovered or restarted; None: so long ago that it does not matter."""
