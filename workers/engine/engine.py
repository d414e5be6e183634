"""The synchronous engine: it takes requests, computes steps, and returns outputs.

    submit -> Scheduler.plan -> ModelRunner.run -> Scheduler.commit -> Detokenizer -> Output
                  ^                                      |
                  +--------------------------------------+     until `has_work` is false

One thread drives it; `async_engine` puts it behind an event loop. Several engines can live in one process.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine_parts import EngineParts, load_engine_parts
from workers.engine.errors import EngineError, EngineFailed, RequestRefused
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.loads import EngineLoads, LoadMeter
from workers.engine.metrics import EngineMetrics
from workers.engine.request import Bootstrap, Output, Request
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.limits import Limits, check_priority_and_deadline
from workers.engine.scheduler.plan import SampledTokens, StepPlan
from workers.engine.scheduler.policy import SchedulingPolicy
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import FinishReason, HandoffRole, Sequence
from workers.engine.scheduler.speculation import SpeculationController
from workers.engine.scheduler.table_opener import table_opener
from workers.engine.tokenization.detokenizer import Detokenizer

_log = logging.getLogger("radixgate.engine")

FAILED_STEPS_MAX = 3
"""Steps in a row that may fail, until the engine regards the device as broken and stops."""


class HandoffSide(Protocol):
    """The interface of the prefill or the decode side of a disaggregated engine; see `disaggregation`.

    Its methods are called in the engine's thread.
    """

    role: HandoffRole
    """"prefill" on the prefill side, "decode" on the decode side."""

    def on_submit(self, request: Request, bootstrap: Bootstrap) -> None:
        """Register a submitted request; HandoffFailed if another request has its room."""
        ...

    def on_reserved(self, sequence: Sequence) -> None:
        """Begin to fill the blocks that the scheduler has allocated to the sequence; for the decode side."""
        ...

    def on_finished(self, sequence: Sequence) -> None:
        """Note that the sequence has finished; the prefill side retains its blocks unless it was aborted."""
        ...


@dataclass(slots=True, kw_only=True)
class _RunningRequest:
    """A request that has not ended: its sequence, its text, and how much of it was returned as outputs."""

    sequence: Sequence
    detokenizer: Detokenizer
    num_reported: int = 0
    """Generated tokens that were returned in outputs."""
    text: str = ""
    """Text that was generated and not returned yet."""

    def on_token(self, token: int) -> bool:
        """Decode one more token; return True when it completes a stop string."""
        self.text += self.detokenizer.push(token)
        return self.detokenizer.stop is not None


class Engine:
    """An inference engine: a model, its KV blocks, its queues and its metrics."""

    def __init__(
        self,
        config: EngineConfig,
        parts: EngineParts,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info = parts.info
        self.store = parts.store
        self.embedder = parts.embedder
        self.loras = frozenset(parts.loras)
        """The names of the LoRA adapters."""
        self.tokenizer = parts.tokenizer
        self.grammars = GrammarCompiler(parts.tokenizer.to_json, info.vocab_size, parts.eos_ids)
        self.limits = Limits(
            context_length=info.context_length, pool_tokens=info.pool_tokens, vocab_size=info.vocab_size
        )
        self.tree = PrefixTree(
            BlockPool(info.pool_tokens // info.block_size, info.block_size), window=info.window
        )
        self._speculation = (
            SpeculationController(config.speculation, parts.drafter, info.device)
            if config.speculation and parts.drafter
            else None
        )
        self.scheduler = Scheduler(
            self.tree,
            token_budget=config.chunk_tokens,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
            policy=SchedulingPolicy.from_config(config),
            open_table=table_opener(config.kv_layout, self.tree, shares=config.prefix_caching),
            speculation=self._speculation,
        )
        self.handoff_side: HandoffSide | None = None
        self.stalled = False
        """Whether the last step computed nothing: all work waits for blocks that a handoff retains."""
        self.metrics = EngineMetrics(speculation=self._speculation.counters if self._speculation else None)
        self._clock = clock
        self._runner = parts.runner
        self._eos_ids = parts.eos_ids
        self._seed = secrets.randbits(63) if config.seed is None else config.seed
        self._requests: dict[str, _RunningRequest] = {}
        self._submitted = 0
        self._failed_steps = 0
        """Steps that have failed since the last one that did not."""
        self._meter = LoadMeter(clock)

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Read the checkpoint and build an engine.

        Raises:
            CheckpointInvalid: the checkpoint is missing, damaged or not supported.
            ConfigInvalid: the settings do not fit the checkpoint or the machine.
        """
        return cls(config, load_engine_parts(config))

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, so that `step` has something to compute."""
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestRefused: the request can never run.
            QueueFull: the waiting queue is at its bound.
        """
        if request.id in self._requests:
            raise RequestRefused(f"request {request.id} is running already", param="rid")
        request.check_limits(self.limits)
        check_priority_and_deadline(request.priority, request.deadline_seconds)
        if request.lora and request.lora not in self.loras:
            raise RequestRefused(f"there is no LoRA adapter {request.lora!r}", param="model")
        side = self.handoff_side if request.bootstrap else None
        sequence = self._sequence(request, side.role if side else None)
        self.scheduler.submit(sequence)
        running = _RunningRequest(sequence=sequence, detokenizer=self._detokenizer(request))
        sequence.on_token = running.on_token
        self._requests[request.id] = running
        if side and request.bootstrap:
            try:
                side.on_submit(request, request.bootstrap)
            except EngineError:
                del self._requests[request.id]
                self.scheduler.finish(sequence, FinishReason.ABORT)
                raise

    def abort(self, request_id: str) -> Output | None:
        """End a request, free its blocks at once, and return its last output; None if there is no such request."""
        running = self._requests.get(request_id)
        if running is None:
            return None
        self.scheduler.finish(running.sequence, FinishReason.ABORT)
        return self._report(running)

    def step(self) -> list[Output]:
        """Compute one step, and return the outputs of all requests that advanced or ended.

        If the computation fails, the requests of the step end with the finish reason "error", and all others
        continue.

        Raises:
            EngineFailed: the last FAILED_STEPS_MAX steps have failed.
        """
        if not self.has_work:
            return []
        began = self._clock()
        plan = self.scheduler.plan(began)
        sampled = self._run(plan)
        if sampled is None:
            advanced = [item.sequence for item in plan.items]
            for sequence in advanced:
                self.scheduler.finish(sequence, FinishReason.ERROR)
        else:
            advanced = [item.sequence for item in plan.items if item.samples]
            self._commit(plan, sampled, began)
        self.stalled = not plan.items
        if self.handoff_side:
            for reserved in self.scheduler.newly_reserved:
                self.handoff_side.on_reserved(reserved)
        self.scheduler.newly_reserved.clear()
        outputs = [self._report(self._requests[sequence.id]) for sequence in (*plan.expired, *advanced)]
        if sampled is not None:
            self._meter.record(plan, sum(len(output.tokens) for output in outputs))
        return outputs

    def _run(self, plan: StepPlan) -> list[SampledTokens] | None:
        """Compute the plan, and return the tokens of its items; None if the computation failed."""
        if not plan.items:
            return []
        try:
            sampled = self._runner.run(plan)
        except Exception as error:
            self._failed_steps += 1
            self.metrics.failed_steps += 1
            if self._failed_steps >= FAILED_STEPS_MAX:
                raise EngineFailed(
                    f"{self._failed_steps} steps in a row failed, the last with: {error}"
                ) from error
            _log.exception("a step with %d tokens of %d requests failed", plan.num_tokens, len(plan.items))
            return None
        self._failed_steps = 0
        return sampled

    def _commit(self, plan: StepPlan, sampled: list[SampledTokens], began: float) -> None:
        self.scheduler.commit(plan, sampled)
        ended = self._clock()
        self.metrics.record_step(plan, sampled, began, ended)
        if self._speculation:
            self._speculation.observe_step(plan, ended - began)
        self.scheduler.seconds_per_token = self.metrics.seconds_per_token

    @property
    def speculation(self) -> SpecCounters:
        """A copy of the counts of drafts since the start; all zero without speculation."""
        return self._speculation.counters.copy() if self._speculation else SpecCounters()

    def sequence(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request, or None if it has ended or never existed."""
        running = self._requests.get(request_id)
        return running.sequence if running else None

    def resume(self, sequence: Sequence, first: SampledTokens | None) -> list[Output]:
        """Continue a request with a prompt that another engine has computed, and return its outputs.

        Args:
            sequence: the request's sequence.
            first: the first token, from the other engine; None if it failed, and the prompt is computed here.
        """
        self.scheduler.resume(sequence, first)
        if first:
            self.metrics.record_handoff(sequence, self._clock())
        return [self._report(self._requests[sequence.id])] if first else []

    def loads(self) -> EngineLoads:
        """Return how busy the engine is at this moment."""
        return self._meter.read(self.scheduler, self.tree)

    def flush_cache(self) -> bool:
        """Remove every cached prefix and return True, or return False while requests run or wait."""
        return not self.has_work and self.tree.clear()

    def _sequence(self, request: Request, handoff_role: HandoffRole | None) -> Sequence:
        """Return the sequence that a request begins with."""
        self._submitted += 1
        now, params = self._clock(), request.params
        if handoff_role == "prefill":
            params = replace(params, max_tokens=1, min_tokens=min(1, params.min_tokens))
        return Sequence(
            id=request.id,
            order=self._submitted,
            tokens=list(request.prompt),
            num_prompt=len(request.prompt),
            params=params,
            # Without a seed of its own a request gets the engine's, plus one for each request before it.
            seed=self._seed + self._submitted if params.seed is None else params.seed,
            salt=request.salt,
            lora=request.lora,
            stop_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else self._eos_ids),
            arrival=now,
            priority=request.priority,
            deadline=None if request.deadline_seconds is None else now + request.deadline_seconds,
            streamed=request.streamed,
            leader=None if handoff_role else self._leader(request),
            handoff_role=handoff_role,
            matcher=request.matcher,
        )

    def _detokenizer(self, request: Request) -> Detokenizer:
        params = request.params
        return Detokenizer(
            self.tokenizer.token_bytes, params.stop, min_tokens=params.min_tokens, shown_ids=request.shown_ids
        )

    def _leader(self, request: Request) -> Sequence | None:
        """Return the sequence that this request forks from; None when it has ended, or has another prompt."""
        running = self._requests.get(request.fork_of or "")
        if running is None:
            return None
        sequence = running.sequence
        if (sequence.salt, sequence.lora) != (request.salt, request.lora):
            return None
        same = sequence.tokens[: sequence.num_prompt] == list(request.prompt)
        return sequence if same else None

    def _report(self, running: _RunningRequest) -> Output:
        sequence = running.sequence
        tokens = sequence.tokens[sequence.num_prompt + running.num_reported :]
        logprobs = sequence.logprobs[running.num_reported :]
        running.num_reported += len(tokens)
        text, running.text = running.text, ""
        self.metrics.record_generated(sequence, len(tokens))
        if sequence.finish:
            self.metrics.record_end(sequence, self._clock())
            if self.handoff_side and sequence.handoff_role:
                self.handoff_side.on_finished(sequence)
            text += running.detokenizer.end()
            del self._requests[sequence.id]
        return Output(
            id=sequence.id,
            text=text,
            tokens=tuple(tokens),
            finish=sequence.finish,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.num_generated,
            stop=running.detokenizer.stop if sequence.finish is FinishReason.STOP else None,
            # The token that ends an answer is not part of it.
            logprobs=tuple(logprobs[:-1] if sequence.ended_by_token else logprobs),
        )
