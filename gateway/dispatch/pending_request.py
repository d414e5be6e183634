"""One request on its way to a worker: its content, its ticket in the queue, and the workers that failed at it."""

from contextlib import AbstractAsyncContextManager

import msgspec

from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.last_ranking import LastRanking
from gateway.dispatch.placement import Placement
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.kv_index.feedback import Expectation
from gateway.queueing.shared.keys import queue_of
from gateway.telemetry.progress import Progress
from policies.latency_model import predicted_ttft_ms
from policies.queueing.protocol import Ticket
from radix_cache.match import WorkerId
from workers.adapter import WorkerAnswer, WorkerFailed


class Attempt(msgspec.Struct, eq=False):
    """One try of a request on a placement: its stream, and what was known of its worker's cache."""

    placement: Placement
    predicted: bool = False
    """Whether the index was read for what its worker holds, and its prompt recorded there as predicted."""
    expectation: Expectation | None = None
    """What the index had of the worker's cache when the request was sent; None: the answer is not compared."""
    recorded: bool = False
    """Whether the index may count the prompt as cached on this worker."""
    stream: AbstractAsyncContextManager[WorkerAnswer] | None = None
    """The worker's stream, once its first bytes have come."""
    answer: WorkerAnswer | None = None
    """An answer that has begun and was not reported yet; see AttemptReports.answered."""
    answered_at: float = 0.0
    """When its first bytes came."""
    first_byte_seconds_max: float = 0.0
    ttft_learnt: bool = False
    """Whether its first token has already taught how fast its worker is."""
    ended: bool = False
    """Whether its placement was freed."""


class PendingRequest:
    """One request on its way to a worker, made once per request; the steps of dispatch keep their notes here."""

    __slots__ = (
        "attempt",
        "by_shadow",
        "charged_units",
        "ctx",
        "failed_workers",
        "hedged",
        "last_ranking",
        "limits",
        "output_tokens",
        "preemptions",
        "progress",
        "prompt",
        "provider_full_until",
        "providers_tried",
        "queue_name",
        "sequence",
        "service_class",
        "session",
        "ticket",
        "waits",
    )

    def __init__(
        self,
        ctx: RequestContext,
        prompt: PromptBlocks,
        progress: Progress,
        limits: DispatchLimits,
        *,
        sequence: int,
        output_tokens: int,
        session: int | None,
        by_shadow: bool,
    ) -> None:
        self.ctx = ctx
        self.prompt = prompt
        self.progress = progress
        self.limits = limits
        """The limits at its arrival: its turn and its end are charged alike, whatever a reload changes."""
        self.sequence = sequence
        """Its number among the requests for its model."""
        self.output_tokens = output_tokens
        """The expected length of its answers."""
        self.session = session
        """Equal for the requests of one conversation; None where the client does not name one."""
        self.by_shadow = by_shadow
        """Whether the second routing policy decides."""
        self.service_class = ctx.service_class
        """The class that it is served in now; `demote` replaces it by batch."""
        self.queue_name = queue_of(
            ctx.model.name, background=self.service_class.background and limits.background
        )
        self.ticket: Ticket | None = None
        self.charged_units = 0.0
        """Cost units that the queue has charged its tenant for it."""
        self.failed_workers: dict[WorkerId, WorkerFailed] = {}
        """The workers that failed at it, and why."""
        self.providers_tried: set[WorkerId] = set()
        self.provider_full_until: dict[WorkerId, float] = {}
        """When to try a provider again that was at one of its limits, on the fleet's clock."""
        self.attempt: Attempt | None = None
        """The attempt whose answer the client gets; None until the first one begins."""
        self.hedged = False
        """Whether it was sent to a second worker at the same time, which is done once for a request."""
        self.waits = False
        """Whether the prefix index counts it among the requests that wait for a worker."""
        self.last_ranking: LastRanking | None = None
        """The ranking by which it waits for a worker of its choice, since other workers have room."""
        self.preemptions = 0
        """How often it gave its placement up to other requests."""

    @property
    def background(self) -> bool:
        """Whether all other requests go before it."""
        return self.service_class.background and self.limits.background

    @property
    def worker_failed(self) -> bool:
        """Whether a worker, not only providers, has failed at it: it has waited its turn, and takes any place."""
        return bool(self.failed_workers) and not self.failed_workers.keys() <= self.providers_tried

    @property
    def kv_tokens(self) -> int:
        """KV that it takes on a worker: its prompt and its expected answers."""
        return self.prompt.prompt_tokens + self.output_tokens

    def demote(self) -> None:
        """Make it a batch request, which gets a new ticket."""
        self.service_class = self.limits.batch
        self.queue_name = queue_of(self.ctx.model.name, background=self.background)
        self.ticket = None

    def lead_by(self, attempt: Attempt) -> None:
        """Let this attempt be the one whose answer the client gets."""
        placement = attempt.placement
        self.attempt = attempt
        self.progress.assign_worker(
            placement.worker.id,
            dispatched_at=placement.placed_at,
            by_shadow=self.by_shadow and placement.worker.provider is None,
            predicted_tokens=placement.route.matched_tokens,
            predicted_ttft_seconds=(
                predicted_ttft_ms(placement.prefill_worker.learnt.speed, placement.tokens_ahead) / 1000
            ),
            prefill_worker=(
                placement.prefill_worker.id if placement.prefill_worker is not placement.worker else None
            ),
            route=placement.route,
        )
