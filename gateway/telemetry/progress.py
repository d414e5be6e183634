"""Progress: the account of one request while it runs, which all its steps share and change."""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from gateway.domain.answer_tally import AnswerTally
from gateway.domain.token_usage import ChargedTokens, TokenUsage
from gateway.quotas.quota_store import LimitStatus
from gateway.telemetry.request_events import FailedAttempt, QueueWait
from gateway.telemetry.request_record import NO_TAGS, OK, RequestOutcome, RequestRecord
from gateway.telemetry.trace import Trace
from policies.routing.protocol import Route
from policies.service_class import ServiceClass

FINISH_REASONS_MAX = 16
_FINISH_REASON = re.compile(
    rb'"(?:finish|stop)_reason": ?"([a-z_]{1,32})"'
)  # text of the answer has `\\"` for `"`


class Progress(msgspec.Struct, eq=False):
    """The running account of one request."""

    id: str
    surface: str
    clock: Callable[[], float]  # monotonic, in seconds
    wall: Callable[[], float]  # Unix time in seconds
    received_at: float = 0.0
    started_at: float = 0.0
    marks: list[tuple[str, float]] = []
    code: str = OK
    status: int = 200
    trace: Trace | None = None
    tenant: str = ""
    organisation: str = ""
    key_id: str = ""
    asked: str = ""
    model: str = ""
    user: str | None = None
    tags: Mapping[str, str] = NO_TAGS
    route: Route | None = None  # the route to `worker`
    by_shadow: bool = False
    stream: bool = False
    worker: str | None = None
    prefill_worker: str | None = None
    attempts: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    usage: TokenUsage | None = None
    dispatched: bool = False  # it was sent to a worker
    dispatched_at: float | None = None
    answered: bool = False  # a worker's first bytes came
    charged: ChargedTokens | None = None
    spend: int = 0  # millionths of the currency
    tally: AnswerTally | None = None  # what came of the answer, as far as it was relayed
    usage_impossible: bool = False  # the worker's count was impossible
    own_count: ChargedTokens | None = None  # see dispatch/charged_tokens.py; None for an answer with usage
    worker_refused: bool = False  # the worker refused it as the client's mistake
    queued_at: float | None = None
    queued_until: float | None = None
    first_byte_at: float | None = None
    last_byte_at: float | None = None
    predicted_ttft_seconds: float | None = None
    worker_ttft_seconds: float | None = None
    first_token_seconds: float | None = None
    service_class: ServiceClass | None = None
    ranking: Sequence[Route] = ()
    wait: QueueWait | None = None
    failures: tuple[FailedAttempt, ...] = ()
    limits: tuple[LimitStatus, ...] = ()
    finish_reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Note when the request came."""
        self.received_at = self.clock()
        self.started_at = self.wall()

    def mark(self, step: str) -> None:
        """Record that the step of this name ends now; it began where the step before it ended.

        Steps become spans of the trace. Callers mark them only for a request that has a trace.
        """
        self.marks.append((step, self.clock()))

    def assign_worker(
        self,
        worker: str,
        *,
        dispatched_at: float | None = None,
        by_shadow: bool,
        predicted_tokens: int,
        predicted_ttft_seconds: float,
        prefill_worker: str | None = None,
        route: Route | None = None,
    ) -> None:
        """Begin an attempt on a worker.

        Args:
            worker: Its id.
            dispatched_at: When the attempt began; None for now.
            by_shadow: Whether the shadow policy chose the worker.
            predicted_tokens: Cached prompt tokens that routing predicted on it.
            predicted_ttft_seconds: Time to the first token that the latency model predicted.
            prefill_worker: The worker that computes the prompt, if it is another one.
            route: The route by which the policy chose it.
        """
        self.prefill_worker = prefill_worker
        self.worker, self.route, self.by_shadow = worker, route, by_shadow
        self.predicted_tokens = predicted_tokens
        self.predicted_ttft_seconds, self.worker_ttft_seconds = predicted_ttft_seconds, None
        self.attempts, self.dispatched_at = self.attempts + 1, dispatched_at or self.clock()

    def mark_dispatched(self) -> None:
        """Record that a worker has a connection for the request, and may compute it from now on."""
        self.dispatched = True

    def discard_attempt(self) -> None:
        """Undo the counts of the last attempt, of which the client got nothing, so that it is not charged."""
        self.dispatched = self.answered = False
        self.usage = self.first_token_seconds = self.tally = self.own_count = None
        self.usage_impossible = False

    def switch_model(self, model: str, worker: str | None = None) -> None:
        """Record that another model is to answer, after `worker` has failed or before any worker was tried."""
        self.discard_attempt()
        self.charge(None, 0)
        self.model, self.worker, self.prefill_worker = model, worker, None

    def fail(self, code: str, status: int) -> None:
        """Record that the request ended with this error code and status."""
        self.code, self.status = code, status

    def attempt_failed(self, worker: str, why: str) -> None:
        """Record that a worker gave no answer."""
        at = self.clock() - self.received_at
        began = self.dispatched_at - self.received_at if self.dispatched_at is not None else at
        self.failures = (*self.failures, FailedAttempt(worker=worker, why=why, began=began, at=at))

    def note_finish_reasons(self, output: bytes) -> None:
        """Record the finish reasons in a piece of the answer; only for requests with a trace."""
        if found := _FINISH_REASON.findall(output):
            reasons = (*self.finish_reasons, *(reason.decode() for reason in found))
            self.finish_reasons = reasons[:FINISH_REASONS_MAX]

    def output_sent(self) -> None:
        """Record that bytes are handed to the client's socket now."""
        now = self.clock()
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.last_byte_at = now

    @property
    def frames(self) -> int:
        """The data frames of the answer so far that were passed on, without `[DONE]`."""
        return self.tally.frames if self.tally is not None else 0

    def output_tokens_used(self) -> int:
        """Return the reported output tokens, or the tokens received from a stream that was cut."""
        if self.usage is not None:
            return self.usage.completion_tokens or 0
        return self.own_count.output_tokens if self.own_count is not None else self.frames

    def tpot_seconds(self) -> float | None:
        """Return the mean time between output tokens; None where there are fewer than two."""
        if not self.stream or self.first_byte_at is None or self.last_byte_at is None:
            return None
        tokens = self.frames if self.usage is None else self.usage.completion_tokens or 0
        if tokens < 2:
            return None
        return (self.last_byte_at - self.first_byte_at) / (tokens - 1)

    def charge(self, charged: ChargedTokens | None, spend: int) -> None:
        """Set the tokens and the price, in millionths of the currency, that go into the accounts."""
        self.charged, self.spend = charged, spend

    def record(self) -> RequestRecord:
        """Return the frozen account as of now."""
        now = self.clock()
        prompt_tokens, cached_tokens, output_tokens = self.prompt_tokens, None, self.output_tokens_used()
        usage, predicted_tokens = self.usage, self.predicted_tokens
        if usage is not None:
            if predicted_tokens and usage.prompt_tokens != prompt_tokens:
                # The estimate of a prompt's length may be far from the worker's count.
                predicted_tokens = (
                    predicted_tokens * usage.prompt_tokens // max(prompt_tokens, predicted_tokens)
                )
            prompt_tokens = usage.prompt_tokens
            details = usage.prompt_tokens_details
            cached_tokens = details.cached_tokens if details is not None else None
        queue_seconds = dispatch_seconds = ttft_seconds = None
        if self.queued_at is not None:
            queue_seconds = (self.queued_until if self.queued_until is not None else now) - self.queued_at
        if self.dispatched_at is not None:
            dispatch_seconds = self.dispatched_at - self.received_at - (queue_seconds or 0.0)
        if self.stream and self.first_byte_at is not None:
            ttft_seconds = self.first_byte_at - self.received_at
        service_class = self.service_class
        return RequestRecord(
            *_outcome(self),
            prompt_tokens=prompt_tokens,
            predicted_tokens=predicted_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            seconds=now - self.received_at,
            dispatch_seconds=dispatch_seconds,
            queue_seconds=queue_seconds,
            ttft_seconds=ttft_seconds,
            tpot_seconds=self.tpot_seconds() if self.stream else None,
            steps=self._steps() if self.marks else (),
            service_class=service_class.name if service_class is not None else "",
            ttft_target_seconds=service_class.ttft_seconds if service_class is not None else None,
        )

    def _steps(self) -> tuple[tuple[str, float, float], ...]:
        offset = self.started_at - self.received_at
        steps, start = [], self.received_at
        for name, end in self.marks:
            steps.append((name, start + offset, end + offset))
            start = end
        return tuple(steps)


_outcome: Callable[[Progress], tuple[Any, ...]] = attrgetter(*RequestOutcome.__struct_fields__)
"""Return the values of the fields of RequestOutcome, in their order."""
