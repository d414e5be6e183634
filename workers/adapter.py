"""WorkerAdapter: the promise of whoever talks to one worker.

    async with adapter.stream(call) as answer:        # entered when the first bytes are there
        async for chunk in answer.chunks(): ...

* `WorkerUnreachable` before the first byte of an answer: nothing has been sent to the client, so another worker may
  try. It says what kind of failure it is; what a client did wrong never counts against a worker.
* `StreamBroken` after the first byte. Nothing else is raised (cancellation apart).
* An answer may be a refusal (status 4xx, its body perhaps empty): that is an answer, and the worker lives.
* Leaving the context early, for whatever reason, makes the worker stop.

Every adapter passes tests/conformance/test_worker_adapter.py.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

import msgspec

from radix_cache.blocks import Tokens
from radix_cache.match import WorkerId
from workers.kv_events.source import EventSource
from workers.load_reports.engine_loads import EngineLoad
from workers.load_reports.load_feed import LoadSource
from workers.worker import Role


class Failure(Enum):
    """Why there is no answer.

    `ILL`: not connected, hung up, timed out, its gateway failed; counts against the worker's health. `UNCLEAR`: it
    failed inside (500), by its own fault or over this very request; what another worker makes of the request will
    tell. `BUSY`: full or starting. `REFUSED`: it does not serve this gateway, as with a wrong key.
    """

    ILL = "ill"
    UNCLEAR = "unclear"
    BUSY = "busy"
    REFUSED = "refused"


class WorkerUnreachable(Exception):
    """No answer. `retry_after_seconds`: what a busy worker asks for, if it says; `limited`: it is asked too much
    (429). `worker`: whose failure it is, where several had a part in it."""

    def __init__(
        self,
        reason: str,
        *,
        failure: Failure = Failure.ILL,
        timed_out: bool = False,
        retry_after_seconds: float | None = None,
        limited: bool = False,
        worker: WorkerId | None = None,
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.timed_out = timed_out
        self.retry_after_seconds = retry_after_seconds
        self.limited = limited
        self.worker = worker


class StreamBroken(Exception):
    """The answer broke off after its first byte."""


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of a form (multipart/form-data). `field`: its name up to a bracket or a dot, as in `include[]`.
    `head`: its header lines, each with its end. `body`: its content."""

    field: str
    head: bytes
    body: bytes | bytearray


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as a worker gets it.

    `path`: below the worker's URL, as `v1/chat/completions`. `fields`: top-level JSON fields of the body, each as
    raw JSON. `form`: where the body is a form its parts in their order, of which those go to the worker whose field
    is one of `fields`. `model`: the name it goes by at the worker. `cache_salt`: opaque; empty for the shared
    cache. Seconds bound each kind of silence. `priority`: the lowest goes first; None where the engine knows none.
    `rank`: the data-parallel rank that is to answer; None: the engine chooses, or has one. `ids`: the prompt's
    tokens as a JSON array, for adapters that know how to send them in its place. `sent`: called when its bytes
    begin to go out, and by then the worker may compute something.
    """

    id: str
    path: str
    fields: Mapping[str, msgspec.Raw]
    model: str
    stream: bool
    cache_salt: str = ""
    traceparent: str | None = None
    priority: int | None = None
    rank: int | None = None
    ids: bytes | None = None
    form: tuple[Part, ...] | None = None
    first_byte_seconds_max: float = 120.0
    idle_seconds_max: float = 60.0
    sent: Callable[[], None] = lambda: None


class WorkerAnswer(Protocol):
    """An answer of which the first bytes have come."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it comes. Raises StreamBroken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says of itself; None where its kind does not tell.

    `models`: names it serves; `contexts`: the longest prompt and answer of each together. `kv_tokens_max`: tokens
    that fit into its KV cache. `chunk_tokens`: its prefill budget a step. `instance`: changes when it starts anew,
    and its cache is then empty. `events`: where it publishes what its cache holds, one source for each
    data-parallel rank; `loads`: so too how busy it is. `role`: which half of a pair it was started as; `handoff`:
    where, if it is the prefill half, host and port. `ranks`: its data-parallel ranks. `load`: how busy it is.
    `asleep`: it has given its memory away, its cache with it, and answers nobody.
    """

    models: tuple[str, ...] = ()
    contexts: Mapping[str, int] = field(default_factory=dict)
    kv_tokens_max: int | None = None
    chunk_tokens: int | None = None
    instance: str | None = None
    events: tuple[EventSource, ...] = ()
    loads: tuple[LoadSource, ...] = ()
    role: Role = Role.BOTH
    handoff: tuple[str, int | None] | None = None
    ranks: int = 1
    load: EngineLoad | None = None
    asleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for a worker's https://. `ca`: None for the system's; `certificate`, `key`: our own, or neither."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTarget:
    """Where a worker is and how to be let in. `headers` go with every call; names and values are ASCII."""

    id: WorkerId
    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsFiles | None = None


@runtime_checkable
class Tokenizes(Protocol):
    """A WorkerAdapter whose engine says what the tokens of a prompt are."""

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """`fields`: of /tokenize, each as raw JSON. None if it refuses these. Raises WorkerUnreachable."""
        ...


@runtime_checkable
class Sleeps(Protocol):
    """A WorkerAdapter whose engine can give its memory away for a while. Raises WorkerUnreachable, also where the
    engine was not started so that it could."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class WorkerAdapter(Protocol):
    @property
    def isolates(self) -> bool:
        """Does the worker keep prompts of different `cache_salt` apart in its cache? False: it is shared by all."""
        ...

    @property
    def streams_whole(self) -> bool:
        """Does a stream say all that the answer at once would say, its usage included?"""
        ...

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Sends a request. See above for what is raised when."""
        ...

    async def probe(self) -> WorkerReport:
        """Asks whether it serves, and what. Raises WorkerUnreachable."""
        ...

    def abandon(self) -> None:
        """The worker is down: who waits for a first byte gets WorkerUnreachable. What has begun goes on."""
        ...

    def close(self) -> None:
        """The gateway stops: lets go of idle connections."""
        ...
