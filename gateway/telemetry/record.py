"""What happened to one request: written down while it runs, and one frozen record when it has ended.

`Progress` is the one thing that a request's steps share and change. Everybody who wants to know (metrics, traces,
the operator page) gets the record, and only that.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from gateway.telemetry.trace import Trace
from policies.service_class import ServiceClass

OK = "ok"
CLIENT_CLOSED = "client_closed"
OTHERS = "*"
"""All tenants together that came when there were too many to tell them apart."""

TOKENS_MAX = 2**40
"""More than any request has: a worker that says so has counted wrong."""


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """`usage.completion_tokens_details`."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """`usage` as workers report it."""

    prompt_tokens: int
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def reasoning_tokens(self) -> int:
        return (self.completion_tokens_details and self.completion_tokens_details.reasoning_tokens) or 0

    @property
    def cached_tokens(self) -> int | None:
        """None where the worker does not tell, which is not zero."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @property
    def plausible(self) -> bool:
        """Can it be? What cannot would go into quotas, estimates and counters that only ever rise."""
        cached, output = self.cached_tokens or 0, self.completion_tokens or 0
        return 0 <= cached <= self.prompt_tokens <= TOKENS_MAX and 0 <= output <= TOKENS_MAX


def read_usage(raw: bytes | msgspec.Raw) -> Usage | None:
    """Usage as it stands in an answer; None where it is absent, malformed, or cannot be."""
    try:
        usage: Usage | None = _USAGE.decode(raw)
    except msgspec.ValidationError:
        usage = _of_speech(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return usage if usage is not None and usage.plausible else None


class SpeechUsage(msgspec.Struct, frozen=True):
    """`usage` of a transcription that is counted in tokens; others are in seconds."""

    input_tokens: int
    output_tokens: int


def _of_speech(raw: bytes | msgspec.Raw) -> Usage | None:
    try:
        said = _SPEECH_USAGE.decode(raw)
    except msgspec.ValidationError:
        return None
    return Usage(said.input_tokens, said.output_tokens)


_USAGE = msgspec.json.Decoder(Usage | None)
_SPEECH_USAGE = msgspec.json.Decoder(SpeechUsage)

NO_TAGS: Mapping[str, str] = MappingProxyType({})


class Used(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request is charged for. `cached_tokens`: of the prompt's; None where the worker does not tell."""

    prompt_tokens: int
    cached_tokens: int | None = None
    output_tokens: int = 0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that has ended. Times are seconds; None where it did not get that far.

    `code`: "ok", "client_closed", or the code of the error that the client saw. `steps`: (name, start, end) on
    the clock of `started_at`, which is seconds since 1970. `by_shadow`: the second policy chose the worker.
    `predicted_tokens`: cached tokens that routing expected. `cached_tokens`: those that the worker reports.
    `frames`: data frames that were passed on. `answered`: a worker began an answer. `spend`: millionths of the
    currency. `dispatch_seconds`: from received to the last dispatch, less the time in the waiting room.
    `worker_ttft_seconds`: from dispatch to the worker's first token, of streams; `predicted_ttft_seconds`: what
    the latency model expected of it.
    `asked`: the model, by the name that the client used. `user`, `tags`: what the client says it is for. `used`:
    what is charged; None if nothing was computed. `service_class`, `ttft_target_seconds`: what it wanted;
    `first_token_seconds`: from received to a worker's first token, where that can be told.
    `prefill_worker`: who computed the prompt, where that was another worker than the one that answered.
    """

    id: str
    surface: str
    code: str
    status: int
    tenant: str
    key_id: str
    model: str
    worker: str | None
    policy_reason: str
    by_shadow: bool
    attempts: int
    stream: bool
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None
    output_tokens: int
    spend: int
    frames: int
    started_at: float
    seconds: float
    answered: bool
    dispatch_seconds: float | None
    queue_seconds: float | None
    ttft_seconds: float | None
    worker_ttft_seconds: float | None
    predicted_ttft_seconds: float | None
    tpot_seconds: float | None
    trace: Trace | None
    steps: tuple[tuple[str, float, float], ...]
    organisation: str = ""
    asked: str = ""
    user: str | None = None
    tags: Mapping[str, str] = NO_TAGS
    used: Used | None = None
    service_class: str = ""
    ttft_target_seconds: float | None = None
    first_token_seconds: float | None = None
    prefill_worker: str | None = None


class Progress:
    """The running account of one request. `clock`: seconds, never backwards; `wall`: seconds since 1970."""

    __slots__ = (
        "answered",
        "asked",
        "attempts",
        "by_shadow",
        "charged",
        "clock",
        "code",
        "dispatched",
        "dispatched_at",
        "first_byte_at",
        "first_token_seconds",
        "frames",
        "id",
        "key_id",
        "last_byte_at",
        "marks",
        "model",
        "organisation",
        "policy_reason",
        "predicted_tokens",
        "predicted_ttft_seconds",
        "prefill_worker",
        "prompt_tokens",
        "queued_at",
        "queued_until",
        "received_at",
        "refused",
        "service_class",
        "spend",
        "started_at",
        "status",
        "stream",
        "surface",
        "tags",
        "tenant",
        "trace",
        "usage",
        "user",
        "worker",
        "worker_ttft_seconds",
    )

    def __init__(self, id: str, surface: str, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.id = id
        self.surface = surface
        self.clock = clock
        self.received_at = clock()
        self.started_at = wall()
        self.marks: list[tuple[str, float]] = []
        self.code = OK
        self.status = 200
        self.trace: Trace | None = None
        self.tenant = self.organisation = self.key_id = ""
        self.asked = self.model = self.policy_reason = ""
        self.user: str | None = None
        self.tags = NO_TAGS
        self.by_shadow = False
        self.stream = False
        self.worker: str | None = None
        self.prefill_worker: str | None = None
        self.attempts = 0
        self.prompt_tokens = 0
        self.predicted_tokens = 0
        self.frames = 0
        self.usage: Usage | None = None
        self.dispatched = False  # a worker has it
        self.dispatched_at: float | None = None
        self.answered = False  # a worker's first bytes came
        self.charged: Used | None = None
        self.spend = 0  # millionths of the currency
        self.refused = False  # by the worker, as the client's mistake
        self.queued_at: float | None = None
        self.queued_until: float | None = None
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None
        self.predicted_ttft_seconds: float | None = None
        self.worker_ttft_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.service_class: ServiceClass | None = None

    def mark(self, step: str) -> None:
        """The step of that name ends now; it began where the one before it ended."""
        self.marks.append((step, self.clock()))

    def sent_to(
        self,
        worker: str,
        *,
        at: float | None = None,
        by_shadow: bool,
        reason: str,
        predicted_tokens: int,
        predicted_ttft_seconds: float,
        prefill_worker: str | None = None,
    ) -> None:
        """It is a worker's, since `at`, by default now. `by_shadow`: the second policy decided so."""
        self.prefill_worker = prefill_worker
        self.worker, self.policy_reason, self.by_shadow = worker, reason, by_shadow
        self.predicted_tokens = predicted_tokens
        self.predicted_ttft_seconds, self.worker_ttft_seconds = predicted_ttft_seconds, None
        self.attempts, self.dispatched_at = self.attempts + 1, at or self.clock()

    def goes_out(self) -> None:
        """There is a connection to a worker, which may compute it from now on."""
        self.dispatched = True

    def take_back(self) -> None:
        """Nothing that its client could use came of it there: it is not charged."""
        self.dispatched = self.answered = False
        self.usage = self.first_token_seconds = None
        self.frames = 0

    def turn_to(self, model: str, worker: str | None = None) -> None:
        """Another model is to answer, of which nothing has been asked yet; or `worker` has failed it before."""
        self.take_back()
        self.charge(None, 0)
        self.model, self.worker, self.prefill_worker = model, worker, None

    def ended(self, code: str, status: int) -> None:
        """Not as the client wished."""
        self.code, self.status = code, status

    def output(self, frames: int) -> None:
        """Bytes were handed to the client's socket."""
        now = self.clock()
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.last_byte_at = now
        self.frames += frames

    def output_tokens_used(self) -> int:
        """As reported, else one per data frame: what a stream that was cut has given."""
        if self.usage is not None:
            return self.usage.completion_tokens or 0
        return self.frames

    def tpot_seconds(self) -> float | None:
        """Between output tokens on average; None where there is nothing between."""
        tokens = self.output_tokens_used()
        if not self.stream or self.first_byte_at is None or self.last_byte_at is None or tokens < 2:
            return None
        return (self.last_byte_at - self.first_byte_at) / (tokens - 1)

    def used(self) -> Used | None:
        """What the request is charged for: the worker's count, else what was sent and came; None if nothing was
        computed for it."""
        usage = self.usage
        if usage is not None:
            return Used(
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens or 0,
            )
        if self.refused:
            return Used(prompt_tokens=0)
        if self.dispatched:
            return Used(prompt_tokens=self.prompt_tokens, output_tokens=self.frames)
        return None

    def charge(self, used: Used | None, spend: int) -> None:
        """It goes into the accounts as this."""
        self.charged, self.spend = used, spend

    def record(self) -> RequestRecord:
        """The frozen account, as of now."""
        output_tokens = self.output_tokens_used() if self.stream or self.usage or self.frames else 0
        ttft = (
            self.first_byte_at - self.received_at if self.first_byte_at is not None and self.stream else None
        )
        now = self.clock()
        queue = None
        if self.queued_at is not None:
            queue = (self.queued_until if self.queued_until is not None else now) - self.queued_at
        return RequestRecord(
            id=self.id,
            surface=self.surface,
            code=self.code,
            status=self.status,
            tenant=self.tenant,
            key_id=self.key_id,
            model=self.model,
            worker=self.worker,
            policy_reason=self.policy_reason,
            by_shadow=self.by_shadow,
            prefill_worker=self.prefill_worker,
            attempts=self.attempts,
            stream=self.stream,
            prompt_tokens=self.usage.prompt_tokens if self.usage is not None else self.prompt_tokens,
            predicted_tokens=self.predicted_tokens,
            cached_tokens=self.usage.cached_tokens if self.usage is not None else None,
            output_tokens=output_tokens,
            spend=self.spend,
            frames=self.frames,
            started_at=self.started_at,
            seconds=now - self.received_at,
            answered=self.answered,
            dispatch_seconds=(
                self.dispatched_at - self.received_at - (queue or 0.0)
                if self.dispatched_at is not None
                else None
            ),
            queue_seconds=queue,
            ttft_seconds=ttft,
            worker_ttft_seconds=self.worker_ttft_seconds,
            predicted_ttft_seconds=self.predicted_ttft_seconds,
            tpot_seconds=self.tpot_seconds(),
            trace=self.trace,
            steps=self._steps(),
            organisation=self.organisation,
            asked=self.asked,
            user=self.user,
            tags=self.tags,
            used=self.charged,
            service_class=self.service_class.name if self.service_class is not None else "",
            ttft_target_seconds=self.service_class.ttft_seconds if self.service_class is not None else None,
            first_token_seconds=self.first_token_seconds,
        )

    def _steps(self) -> tuple[tuple[str, float, float], ...]:
        offset = self.started_at - self.received_at
        steps, start = [], self.received_at
        for name, end in self.marks:
            steps.append((name, start + offset, end + offset))
            start = end
        return tuple(steps)
