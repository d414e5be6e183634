"""WorkerAdapter, the interface for talking to one worker, and the values that go in and come out.

    async with adapter.stream(call) as answer:        # entered when the first bytes are there
        async for chunk in answer.chunks(): ...

* `WorkerUnreachable` is raised before the first byte of an answer: nothing has been sent to the client, so another
  worker may be tried. It carries the kind of failure; an error of the client never counts against a worker.
* `StreamBroken` is raised after the first byte. Nothing else is raised (cancellation apart).
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
from workers.carrier import Carrier
from workers.kv_events.source import EventSource
from workers.load_reports.engine_loads import EngineLoad
from workers.load_reports.load_subscriber import LoadSource
from workers.worker import Role


class FailureKind(Enum):
    """Why a worker gave no answer."""

    UNHEALTHY = "unhealthy"
    """Not connected, hung up, timed out, or a proxy before the engine failed; counts against the worker's
    health."""
    SERVER_ERROR = "server error"
    """The worker failed inside (status 500), by its own fault or over this very request; only another worker's
    answer to the same request tells which."""
    BUSY = "busy"
    """The worker is full or starting."""
    REFUSED = "refused"
    """The worker does not serve this gateway, for example because of a wrong key."""


class WorkerUnreachable(Exception):
    """A worker gave no answer."""

    def __init__(
        self,
        reason: str,
        *,
        failure: FailureKind = FailureKind.UNHEALTHY,
        timed_out: bool = False,
        retry_after_seconds: float | None = None,
        rate_limited: bool = False,
        worker: WorkerId | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.timed_out = timed_out
        self.retry_after_seconds = retry_after_seconds
        """How long a busy worker asks to be left alone, if it says so."""
        self.rate_limited = rate_limited
        """Whether the worker refused because of too many requests (429)."""
        self.worker = worker
        """The worker that failed, where several took part in the request."""
        self.body = body
        """The body of the answer by which the worker reported its failure."""


class StreamBroken(Exception):
    """An answer broke off after its first byte."""


class FormPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of a form (multipart/form-data)."""

    field: str
    """The part's name up to a bracket or a dot, as in `include[]`."""
    head: bytes
    """Its header lines, each with its line end."""
    body: bytes | bytearray
    """Its content."""


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as a worker gets it."""

    id: str
    path: str
    """Path below the worker's URL, such as `v1/chat/completions`."""
    fields: Mapping[str, msgspec.Raw]
    """Top-level JSON fields of the body, each as raw JSON; of a form, the names of the fields that go to the
    worker."""
    model: str
    """The model's name at the worker."""
    stream: bool
    cache_salt: str = ""
    """Opaque value that keeps prompts apart in the worker's cache; empty for the shared cache."""
    traceparent: str | None = None
    tracestate: str = ""
    """The caller's `tracestate` header; empty where it sent none."""
    priority: int | None = None
    """Requests of the lowest number go first; None where the engine has no priorities."""
    rank: int | None = None
    """The data-parallel rank that is to answer; None: the engine chooses, or has only one."""
    prompt_ids: bytes | None = None
    """The prompt's tokens as a JSON array, for adapters that can send tokens in place of text."""
    form: tuple[FormPart, ...] | None = None
    """The parts of a form in their order, where the body is a form."""
    first_byte_seconds_max: float = 120.0
    """Longest silence before the first byte of the answer."""
    idle_seconds_max: float = 60.0
    """Longest silence within the answer."""
    on_sent: Callable[[], None] = lambda: None
    """Called when the request's bytes begin to go out; from then on the worker may compute something."""
    carrier: Carrier | None = None
    """Carries the request in place of the gateway's own connections; None: the gateway sends it."""


class WorkerAnswer(Protocol):
    """An answer of which the first bytes have come.

    An answer may also have an attribute `whole`: the body as bytes, where all of it is there already, else None.
    `chunks` need not be called then. It may also have an attribute `complete`: whether all of the body has arrived.
    """

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def content_type(self) -> str:
        """Content type, without parameters for JSON and event streams."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in the pieces in which it comes. Raises StreamBroken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says about itself; None where its kind does not say."""

    models: tuple[str, ...] = ()
    """Names of the models that it serves."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """The models that its LoRA adapters change, by the adapter's name."""
    context_lengths: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the longest prompt and answer together, by model."""
    kv_tokens_max: int | None = None
    """Tokens that fit into its KV cache."""
    chunk_tokens: int | None = None
    """Its prefill budget of one step, in tokens."""
    instance_id: str | None = None
    """A value that changes when the worker restarts, with an empty cache."""
    events: tuple[EventSource, ...] = ()
    """Where it publishes its KV events, one source for each data-parallel rank."""
    loads: tuple[LoadSource, ...] = ()
    """Where it publishes its load, one source for each data-parallel rank."""
    role: Role = Role.BOTH
    """The half of a prefill/decode pair that it was started as."""
    bootstrap_address: tuple[str, int | None] | None = None
    """Host and port where a prefill worker hands its KV over."""
    ranks: int = 1
    """Number of its data-parallel ranks."""
    load: EngineLoad | None = None
    """How busy it is."""
    asleep: bool = False
    """Whether it has given up its memory and its cache and serves no requests until it is woken."""
    engine: str | None = None
    """The kind of worker that its list of models shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for a worker's https:// address."""

    ca: str | None = None
    """Certificate authorities; None: those of the system."""
    certificate: str | None = None
    key: str | None = None
    """The gateway's own certificate and key; both or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTarget:
    """The address of a worker, and the credentials for it."""

    id: WorkerId
    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers that go with every call; names and values are ASCII."""
    tls: TlsFiles | None = None


@runtime_checkable
class SupportsTokenize(Protocol):
    """A WorkerAdapter of an engine that can tokenize a prompt."""

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """Return the tokens of a prompt; None if the engine refuses the request. Raises WorkerUnreachable.

        `fields` are those of a /tokenize request, each as raw JSON.
        """
        ...


@runtime_checkable
class SupportsSleep(Protocol):
    """A WorkerAdapter of an engine that can give up its memory for a while.

    Both methods raise WorkerUnreachable, also where the engine was not started with this ability.
    """

    async def sleep(self) -> None:
        """Make the engine give up its memory, its cache included."""
        ...

    async def wake(self) -> None:
        """Make the engine take its memory back and serve again."""
        ...


@runtime_checkable
class SupportsStallDetection(Protocol):
    """A WorkerAdapter that tells whether its worker is silent."""

    @property
    def received(self) -> int:
        """A number that rises whenever bytes come from the worker, answers to probes included."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether anything waits for bytes of the worker; an answer that its client reads slowly does not."""
        ...

    def break_off(self) -> None:
        """Fail all calls, also those whose answer has begun, because the worker has stalled.

        These calls raise WorkerUnreachable before their first byte, and StreamBroken after it.
        """
        ...


class WorkerAdapter(Protocol):
    """The interface for talking to one worker; see the top of this file."""

    @property
    def isolates(self) -> bool:
        """Whether the worker keeps prompts of different `cache_salt` apart in its cache; else all share it."""
        ...

    @property
    def request_fields(self) -> Mapping[str, frozenset[str]]:
        """Names of the fields that the worker may get from a tenant, by path below its URL."""
        ...

    @property
    def reports_running_usage(self) -> bool:
        """Whether the worker is asked for usage in every frame of a stream: it counts each choice by itself."""
        ...

    @property
    def streams_whole(self) -> bool:
        """Whether a stream carries everything that the same answer in one piece would, its usage included."""
        ...

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Send a request; the context is entered with the first bytes of the answer.

        The top of this file says what is raised when.
        """
        ...

    async def probe(self) -> WorkerReport:
        """Ask whether the worker serves, and what. Raises WorkerUnreachable."""
        ...

    def abandon(self) -> None:
        """Fail all calls that wait for a first byte, because the worker is down; begun answers go on.

        These calls raise WorkerUnreachable.
        """
        ...

    def close(self) -> None:
        """Close idle connections, because the gateway stops."""
        ...
