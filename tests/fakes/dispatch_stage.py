"""All parts of dispatch on a FakeClock, over stub workers and a scripted queue of all gateways."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import msgspec

from gateway.dispatch.acquisition.provider_overflow import ProviderOverflow
from gateway.dispatch.acquisition.worker_acquisition import WorkerAcquisition
from gateway.dispatch.attempt_reports import AttemptReports
from gateway.dispatch.attempts import Attempts
from gateway.dispatch.dispatch_limits import DispatchLimits
from gateway.dispatch.hedged_opening import HedgedOpenings
from gateway.dispatch.hedging import Hedging
from gateway.dispatch.output_estimates import OutputEstimates
from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement, Placements
from gateway.dispatch.preemption import Preempted, Preemption
from gateway.dispatch.prefix_prediction import PrefixPrediction
from gateway.dispatch.provider_quota import ProviderQuota
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import Retries
from gateway.dispatch.worker_calls import WorkerCalls
from gateway.domain.model import Model
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.request_context import RequestContext
from gateway.domain.tenant import Plan, Tenant
from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import WorkerLoad
from gateway.fleet.provider import Provider
from gateway.fleet.ranks import Ranks
from gateway.fleet.worker import Worker
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.index_quota import IndexQuota
from gateway.kv_index.match_confidence import MatchConfidence
from gateway.queueing.dispatch_windows import DispatchWindows, OwnDispatchWindows
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.shared.preemption_requests import Need
from gateway.queueing.waiting_rooms import WaitingRooms
from gateway.quotas.leases import Leases
from gateway.quotas.limit import Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import Lease
from gateway.routing.router import Router
from gateway.telemetry.progress import Progress
from gateway.tokenization.text_encoder import TextEncoder
from policies.admission.retry_budget import RetryBudget
from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.queueing.cost_weights import CostWeights
from policies.registry import queue_policy, tenant_order
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.service_class import CHAT, ServiceClass
from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_queue import ScriptedQueue
from tests.fakes.stub_adapter import StubAdapter
from workers.adapter import StreamBroken, WorkerFailed

SPACE = Namespace(model="m", block_size=64)
WINDOW = 640
USAGE = TokenUsage(640, 4, PromptDetails(0))
"""What workers report of every answer, as the stub's answers say."""
LIMITS = DispatchLimits(
    release_window_tokens=WINDOW,
    cost_weights=CostWeights(uncached=1.0, cached=0.1, output=2.0),
    attempts_max=3,
)
MODEL = Model(name="m", block_size=64, encoder=TextEncoder(), context_length=None, created=0)
TENANT = Tenant(
    id="acme",
    organisation="acme",
    key_id="k",
    plan=Plan(),
    group="",
    scopes=(Scope(name="tenant:acme", limits=(concurrency(8),)),),
)


def tenant(name: str = "acme", **fields: Any) -> Tenant:
    """Return a tenant with a limit on concurrency, so that its requests hold leases."""
    scopes = (Scope(name=f"tenant:{name}", limits=(concurrency(8),)),)
    return replace(TENANT, id=name, organisation=name, **{"scopes": scopes, **fields})


def inference(**fields: Any) -> InferenceRequest:
    """Return a request of the chat API."""
    usual: dict[str, Any] = {
        "surface": Surface.CHAT,
        "model": "m",
        "fields": {},
        "prompt": [],
        "stream": True,
        "include_usage": True,
        "choices": 1,
        "output_tokens_max": 10,
    }
    return InferenceRequest(**{**usual, **fields})


def prompt_of(tokens: int = 640, first: int = 1, **fields: Any) -> PromptBlocks:
    """Return a prompt of so many tokens; prompts with another `first` have no block in common."""
    blocks = array("Q", [first * 1_000_000 + number for number in range(tokens // 64)])
    usual: dict[str, Any] = {"namespace": SPACE, "hashes": blocks, "prompt_tokens": tokens, "exact": True}
    return PromptBlocks(**{**usual, **fields})


class CostPolicy:
    """A routing policy with the costs that a test has set; the workers without one cost nothing."""

    name: ClassVar[str] = "scripted"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self) -> None:
        self.costs: dict[str, float] = {}
        self.ms_per_queued_token = 0.0
        self.ranked = 0
        """How often requests were ranked."""
        self.failing: set[int] = set()
        """The sequence numbers of requests that cannot be ranked."""

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        self.ranked += 1
        if query.sequence in self.failing:
            raise ZeroDivisionError
        routes = [
            Route(
                worker=candidate.worker.id,
                cost_ms=self.costs.get(candidate.worker.id, 0.0),
                matched_tokens=candidate.matched_tokens,
                reason="scripted",
                ms_per_queued_token=self.ms_per_queued_token,
            )
            for candidate in candidates
        ]
        return tuple(sorted(routes, key=lambda route: (route.cost_ms, route.worker)))


class NotedNeeds:
    """Stands for PreemptionRequests: keeps what other gateways would be asked for."""

    def __init__(self) -> None:
        self.sent: list[Sequence[Need]] = []

    def send(self, needs: Sequence[Need]) -> None:
        self.sent.append(needs)


class DispatchStage:
    """The parts of dispatch of one gateway with workers named a, b, ..., each with a StubAdapter."""

    def __init__(
        self,
        *names: str,
        shared: bool = False,
        limits: DispatchLimits = LIMITS,
        hedging: Hedging | None = None,
        retry_budget: RetryBudget | None = None,
        waiting_seconds_max: float = 30.0,
        queue: str = "sfq",
        passed_over_max: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.adapters: dict[str, StubAdapter] = {}
        self.fleet = Fleet([], self.clock)
        for name in names or ("a", "b"):
            self.join(name)
        self.queue: Any = ScriptedQueue(shared=shared)
        self.window = OwnDispatchWindows(
            self.queue,
            DispatchWindows(self.fleet, limits.release_window_tokens, limits.batch.ttft_seconds, self.clock),
        )
        self.placements = Placements(self.fleet, self.queue, Ranks(self.clock))
        self.rooms = WaitingRooms[Placement](
            self.fleet,
            RoomRules(
                policy=queue_policy(queue),
                order=tenant_order("hrrn"),
                bounds=WaitingRoomBounds(requests_max=100, tokens_max=10**6),
                waiting_seconds_max=waiting_seconds_max,
                passed_over_max=passed_over_max,
                passed_over_of_flow_max=4,
            ),
            self.placements.give_back,
            self.window,
            self.clock,
        )
        self.preemption = Preemption()
        self.needs: Any = NotedNeeds()
        self.index = LocalIndex(
            self.clock, blocks_max=10_000, predicted_seconds=1000.0, idle_seconds_max=10_000.0
        )
        self.reported: list[tuple[WorkerId, int]] = []
        self.feedback = Feedback(
            self.index,
            MatchConfidence(),
            lambda space, hashes, worker: self.reported.append((worker, len(hashes))),
        )
        self.index_quota = IndexQuota(list, self.clock)
        self.estimates = OutputEstimates()
        self.leases = Leases(LocalQuotaStore(self.clock))
        self.provider_quota = ProviderQuota(self.leases, self.estimates)
        self.overflow = ProviderOverflow(self.fleet, self.provider_quota)
        self.retry_budget = retry_budget or RetryBudget(share=0.2, at_least=10, seconds=10.0)
        self.hedging = hedging or Hedging()
        self.policy = CostPolicy()
        self.router = Router(
            fleet=self.fleet,
            index=self.index,
            feedback=self.feedback,
            policy=self.policy,
            random=Random(1),
            clock=self.clock,
        )
        self.acquisition = WorkerAcquisition(
            limits=limits,
            fleet=self.fleet,
            router=self.router,
            index=self.index,
            queue=self.queue,
            rooms=self.rooms,
            placements=self.placements,
            overflow=self.overflow,
            window=self.window,
            preemption=self.preemption,
            preemption_requests=self.needs,
            clock=self.clock,
        )
        self.reservations = Reservations(self.leases, self.estimates, self.retry_budget, self.clock)
        reports = AttemptReports(
            placements=self.placements,
            fleet=self.fleet,
            index=self.index,
            feedback=self.feedback,
            capacity_freed=self.rooms.give_turns,
            clock=self.clock,
        )
        self.worker_calls = WorkerCalls(
            cache_salt=lambda group: f"salt of {group}" if group else "",
            first_byte_seconds_max=60.0,
            whole_seconds_max=600.0,
            idle_seconds_max=30.0,
            aggregates_streams=False,
            requests_wait=self.rooms.requests_wait,
        )
        self.attempts = Attempts(
            acquisition=self.acquisition,
            worker_calls=self.worker_calls,
            reports=reports,
            hedged=HedgedOpenings(
                rules=self.hedging,
                acquisition=self.acquisition,
                worker_calls=self.worker_calls,
                reports=reports,
                retry_budget=self.retry_budget,
                clock=self.clock,
            ),
            retries=Retries(
                acquisition=self.acquisition, reports=reports, budget=self.retry_budget, clock=self.clock
            ),
            prediction=PrefixPrediction(index=self.index, index_quota=self.index_quota, reports=reports),
            router=self.router,
            estimates=self.estimates,
            provider_quota=self.provider_quota,
            preemption=self.preemption,
            clock=self.clock,
        )
        self._requests = 0

    def join(
        self, name: str, *, models: tuple[str, ...] = ("m",), kind: str = "test", **fields: Any
    ) -> Worker:
        """Let a worker join that is up."""
        adapter = self.adapters[name] = StubAdapter()
        worker = Worker(
            id=WorkerId(name),
            kind=kind,
            adapter=adapter,
            models=frozenset(models),
            models_fixed=True,
            load=WorkerLoad(clock=self.clock),
            **fields,
        )
        worker.health = worker.health.probe_answered(self.clock())
        self.fleet.add(worker)
        return worker

    def provider(self, name: str = "cloud", **terms: Any) -> Worker:
        """Let an outside provider join."""
        return self.join(name, provider=Provider(**terms))

    def worker(self, name: str) -> Worker:
        """Return a worker by its name."""
        return self.fleet[WorkerId(name)]

    def context(
        self, service_class: ServiceClass = CHAT, *, tenant: Tenant = TENANT, id: str = "", **fields: Any
    ) -> RequestContext:
        """Return the context of a new request."""
        self._requests += 1
        usual = {"model": MODEL, "request": inference(), "received_at": self.clock()}
        return RequestContext(
            id=id or f"r{self._requests}",
            tenant=tenant,
            service_class=service_class,
            **{**usual, **fields},
        )

    def progress(self, ctx: RequestContext, prompt: PromptBlocks | None = None) -> Progress:
        """Return the progress of a request that begins now."""
        progress = Progress(ctx.id, ctx.request.surface.value, self.clock, self.clock)
        progress.stream = ctx.request.stream
        if prompt is not None:
            progress.prompt_tokens = prompt.prompt_tokens
        return progress

    def pending(
        self, ctx: RequestContext | None = None, prompt: PromptBlocks | None = None
    ) -> PendingRequest:
        """Return a request that has not been placed; each one has a prompt of its own."""
        ctx = ctx if ctx is not None else self.context()
        prompt = prompt if prompt is not None else prompt_of(first=self._requests + 1)
        return self.attempts.pending_request(ctx, prompt, self.progress(ctx, prompt))

    async def serve(self, request: PendingRequest, lease: Lease | None = None) -> bytes:
        """Serve a request as the pipeline does, without a client: return the bytes of its answer."""
        attempts, progress = self.attempts, request.progress
        if lease is None:
            lease = await self.reservations.reserve(request.ctx, request.prompt, progress)
        try:
            while True:
                await attempts.begin(request)
                try:
                    try:
                        answer = await attempts.open(request, lease)
                        attempts.report_answer(request)  # As the relay does with the first bytes.
                        body = b"".join([piece async for piece in answer.chunks()])
                        progress.worker_refused = answer.status >= 400
                        progress.usage = USAGE if not progress.worker_refused else None
                    finally:
                        await attempts.close(request)
                    attempts.reports.completed(request)
                    return body
                except WorkerFailed as err:
                    attempts.retries.raise_if_final(request, err)
                except Preempted:
                    continue
                except StreamBroken:
                    attempts.reports.broke_off(request)
                    raise
                finally:
                    attempts.end(request)
        finally:
            self.reservations.settle(request, lease)

    def begin(self, request: PendingRequest | None = None) -> "asyncio.Task[bytes]":
        """Begin to serve a request in a task of its own."""
        return asyncio.ensure_future(self.serve(request if request is not None else self.pending()))

    def occupy(self, name: str, tokens: int = WINDOW) -> Any:
        """Let a prompt of so many tokens compute on a worker; return its share of the load."""
        load = self.worker(name).load
        load.tokens_queued += tokens
        load.streams += 1
        return load

    def free(self, name: str, tokens: int = WINDOW) -> None:
        """Undo `occupy`, and give turns."""
        load = self.worker(name).load
        load.tokens_queued -= tokens
        load.streams -= 1
        self.rooms.give_turns()

    def reserved(self) -> dict[str, object]:
        """Return everything that is still reserved anywhere: nothing, once all requests have ended."""
        left: dict[str, object] = {}
        for worker in self.fleet:
            load = worker.load
            if any((load.tokens_queued, load.streams, load.kv_tokens)):
                left[f"load of {worker.id}"] = (load.tokens_queued, load.streams, load.kv_tokens)
        for name, adapter in self.adapters.items():
            if adapter.open:
                left[f"streams of {name}"] = adapter.open
        figures = {
            "predictions": self.index.stats().predictions,
            "leases": len(self.leases),
            "placements": len(list(self.queue.placements)),
            "waiting": sum(len(room) for room in self.rooms.all().values()),
            "requests that feedback waits for": len(self.feedback._paths),
            "requests that can be cut off": len(self.preemption._attempts),
        }
        return left | {name: count for name, count in figures.items() if count}


def with_limits(**fields: Any) -> DispatchLimits:
    """Return the usual limits with some of them changed."""
    return replace(LIMITS, **fields)


def with_class(base: ServiceClass, **fields: Any) -> ServiceClass:
    """Return a service class with some fields changed."""
    return msgspec.structs.replace(base, **fields)


async def until_idle() -> None:
    """Let all tasks run until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)
