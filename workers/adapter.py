"""WorkerAdapter, the interface of clients of one worker, with its input and output values.

    async with adapter.stream(call) as answer:        # entered when the first bytes have arrived
        async for chunk in answer.chunks(): ...

* `WorkerFailed` is raised before the first byte of an answer, also for an answer of status 5xx or 429. Nothing
  has been sent to the client yet, so another worker may be tried. It has the kind of failure; an error of the
  client never counts against a worker.
* `StreamBroken` is raised after the first byte. Apart from cancellation, nothing else is raised.
* A refusal (status 4xx, possibly with an empty body) is an answer like any other; the worker is healthy.
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
    """No connection, hang-up, timeout, or a failed proxy before the engine; counts against the worker's health."""
    SERVER_ERROR = "server error"
    """An internal error of the worker (status 500), caused by the worker or by this request; another worker's
    answer to the same request shows which."""
    BUSY = "busy"
    """The worker is full or starting."""
    REFUSED = "refused"
    """The worker does not serve this gateway, for example because of a wrong key."""


class WorkerFailed(Exception):
    """A worker failed before the first byte of its answer: it cannot be reached, is late, or answers 5xx or 429."""

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
        """The Retry-After of a busy worker, if it sent one."""
        self.rate_limited = rate_limited
        """Whether the worker refused because of too many requests (429)."""
        self.worker = worker
        """The worker that failed, if several took part in the request."""
        self.body = body
        """The body of the worker's error response."""


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
    """One request to a worker."""

    id: str
    path: str
    """Path below the worker's URL, such as `v1/chat/completions`."""
    fields: Mapping[str, msgspec.Raw]
    """Top-level fields of the body, each as raw JSON; for a form, only the names of the fields to send."""
    model: str
    """The model's name at the worker."""
    stream: bool
    cache_salt: str = ""
    """The `cache_salt`: an opaque value that separates prompts in the worker's cache; empty for the shared one."""
    traceparent: str | None = None
    tracestate: str = ""
    """The caller's `tracestate` header; empty where it sent none."""
    priority: int | None = None
    """The priority, lowest number first; None if the engine has no priorities."""
    rank: int | None = None
    """The data-parallel rank that shall answer; None: the engine chooses, or has only one."""
    prompt_ids: bytes | None = None
    """The prompt's tokens as a JSON array, for adapters that can send tokens in place of text."""
    form: tuple[FormPart, ...] | None = None
    """The parts of the form in their order, if the body is a form."""
    first_byte_seconds_max: float = 120.0
    """Longest silence before the first byte of the answer."""
    idle_seconds_max: float = 60.0
    """Longest silence within the answer."""
    on_sent: Callable[[], None] = lambda: None
    """Called when the request begins to be sent; from then on the worker may compute."""
    on_wait: Callable[[], None] = lambda: None
    """Called before the call waits: the request was written, or a connection is being opened. It may be called
    more than once; an adapter need not call it."""
    carrier: Carrier | None = None
    """The carrier that sends the request in place of the gateway's own connections; None: the gateway sends it."""


class WorkerAnswer(Protocol):
    """An answer of which the first bytes have arrived."""

    status: int
    """HTTP status."""
    content_type: str
    """Content type, without parameters for JSON and event streams."""
    whole: bytes | None = None
    """The body if all of it arrived together with the head, else None; then `chunks` need not be called."""

    @property
    def complete(self) -> bool:
        """Whether all of the body is known to have arrived."""
        return self.whole is not None

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive. Raises StreamBroken."""
        ...

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """Offer pieces to `take` where they arrive, in place of yielding them, if this answer can do that.

        A piece that `chunks` waits for is yielded only if `take` returns False. The last piece is always yielded.
        """
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker's report on itself; a field is None if workers of its kind do not report it."""

    models: tuple[str, ...] = ()
    """Names of the models that it serves."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """The parent models of its LoRA adapters, by the adapter's name."""
    context_lengths: Mapping[str, int] = field(default_factory=dict)
    """The context length (prompt and answer together) by model."""
    kv_tokens_max: int | None = None
    """The capacity of its KV cache, in tokens."""
    chunk_tokens: int | None = None
    """Its prefill budget of one step, in tokens."""
    slots: int | None = None
    """Requests that it runs at a time."""
    instance_id: str | None = None
    """A value that changes when the worker restarts, with an empty cache."""
    events: tuple[EventSource, ...] = ()
    """The sources of its KV events, one for each data-parallel rank."""
    loads: tuple[LoadSource, ...] = ()
    """The sources of its load reports, one for each data-parallel rank."""
    role: Role = Role.BOTH
    """Its role in prefill/decode disaggregation."""
    bootstrap_address: tuple[str, int | None] | None = None
    """The host and port at which a prefill worker hands over its KV."""
    ranks: int = 1
    """Number of its data-parallel ranks."""
    load: EngineLoad | None = None
    """Its load."""
    asleep: bool = False
    """Whether it is asleep: it has released its memory and its cache, and serves no requests until it is woken."""
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
    """Headers that are sent with every call; names and values are ASCII."""
    tls: TlsFiles | None = None


@runtime_checkable
class SupportsTokenize(Protocol):
    """A WorkerAdapter of an engine that can tokenize a prompt."""

    async def tokenize(self, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
        """Return the tokens of a prompt; None if the engine refuses the request. Raises WorkerFailed.

        `fields` are those of a /tokenize request, each as raw JSON.
        """
        ...


@runtime_checkable
class SupportsSleep(Protocol):
    """A WorkerAdapter of an engine that can release its memory for a while.

    Both methods raise WorkerFailed, even if the engine was started without this feature.
    """

    async def sleep(self) -> None:
        """Make the engine release its memory, including its cache."""
        ...

    async def wake(self) -> None:
        """Make the engine take its memory back and serve again."""
        ...


@runtime_checkable
class SupportsStallDetection(Protocol):
    """A WorkerAdapter that shows whether its worker has gone silent."""

    @property
    def received(self) -> int:
        """A number that rises whenever bytes arrive from the worker, including answers to probes."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether any call waits for bytes from the worker; answers that wait for slow clients do not count."""
        ...

    def break_off(self) -> None:
        """Fail all calls, including those with a started answer, because the worker has stalled.

        These calls raise WorkerFailed before their first byte, and StreamBroken after it.
        """
        ...


class WorkerAdapter(Protocol):
    """The interface of a client of one worker; see the top of this file."""

    @property
    def isolates(self) -> bool:
        """Whether the worker separates prompts in its cache by `cache_salt`; otherwise all tenants share it."""
        ...

    @property
    def request_fields(self) -> Mapping[str, frozenset[str]]:
        """The names of request fields that may pass from tenants to the worker, by path below its URL."""
        ...

    @property
    def reports_running_usage(self) -> bool:
        """Whether usage is requested in every frame of a stream, since the worker counts each choice separately."""
        ...

    @property
    def streams_whole(self) -> bool:
        """Whether a stream contains everything that the unstreamed answer would, including usage."""
        ...

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Send a request; the context is entered with the first bytes of the answer.

        Raises what the top of this file lists.
        """
        ...

    async def probe(self) -> WorkerReport:
        """Check that the worker serves, and return its report. Raises WorkerFailed."""
        ...

    def abandon(self) -> None:
        """Fail all calls that wait for a first byte, because the worker is down; started answers continue.

        These calls raise WorkerFailed.
        """
        ...

    def close(self) -> None:
        """Close idle connections, when the worker leaves or the gateway stops; running calls are not affected."""
        ...
