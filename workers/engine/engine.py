"""The engine, synchronous: requests in, steps, outputs out.

    submit -> Scheduler.plan -> Runner.run -> Scheduler.commit -> Transcript -> Output
                  ^                                 |
                  +---------------------------------+     until `has_work` is false

One thread drives it; `aio` puts it behind an event loop. Several engines can live in one process.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine_parts import EngineParts, load_engine_parts
from workers.engine.errors import EngineError, RequestRefused
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.loads import EngineLoads, LoadMeter
from workers.engine.metrics import EngineMetrics
from workers.engine.request import Bootstrap, Output, Request
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.limits import Limits, check_turn
from workers.engine.scheduler.opening import table_opener
from workers.engine.scheduler.plan import Sampled
from workers.engine.scheduler.policy import SchedulingPolicy
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import FinishReason, Handoff, Sequence
from workers.engine.scheduler.speculation import Speculation
from workers.engine.tokenization.transcript import Detokenizer


class HandoffSide(Protocol):
    """The engine's part in prefill/decode disaggregation; see `pd`. Called in the engine's thread."""

    role: Handoff

    def opened(self, request: Request, bootstrap: Bootstrap) -> None:
        """A request came. HandoffFailed if its room is taken."""
        ...

    def reserved(self, sequence: Sequence) -> None:
        """ "take": there are blocks to be filled."""
        ...

    def ended(self, sequence: Sequence) -> None:
        """It has finished; "give": its blocks are held, unless it was aborted."""
        ...


@dataclass(slots=True, kw_only=True)
class _Answer:
    sequence: Sequence
    transcript: Detokenizer
    num_reported: int = 0
    text: str = ""
    """Said, but not reported yet."""

    def hear(self, token: int) -> bool:
        """Read one more token; True when it completes a stop string."""
        self.text += self.transcript.push(token)
        return self.transcript.stop is not None


class Engine:
    """A model, its KV blocks and its queues."""

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
        self.tokenizer = parts.tokenizer
        self.grammars = GrammarCompiler(parts.tokenizer.to_json, info.vocab_size, parts.eos_ids)
        self.limits = Limits(
            context_length=info.context_length, pool_tokens=info.pool_tokens, vocab_size=info.vocab_size
        )
        self.tree = PrefixTree(
            BlockPool(info.pool_tokens // info.block_size, info.block_size), window=info.window
        )
        self._speculation = (
            Speculation(config.speculation, parts.drafter, info.device)
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
        self.side: HandoffSide | None = None
        self.stalled = False
        """Is there work that has to wait for blocks which a handoff holds?"""
        self.metrics = EngineMetrics(speculation=self._speculation.counters if self._speculation else None)
        self._clock = clock
        self._runner = parts.runner
        self._eos_ids = parts.eos_ids
        self._seed = secrets.randbits(63) if config.seed is None else config.seed
        self._answers: dict[str, _Answer] = {}
        self._submitted = 0
        self._meter = LoadMeter(clock)

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Read the checkpoint and build everything; CheckpointInvalid or ConfigInvalid say what is wrong."""
        return cls(config, load_engine_parts(config))

    @property
    def has_work(self) -> bool:
        """Would `step` do anything?"""
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        """Queue a request. RequestRefused: it can never run. QueueFull: not now."""
        if request.id in self._answers:
            raise RequestRefused(f"request {request.id} is running already", param="rid")
        request.check_limits(self.limits)
        check_turn(request.priority, request.deadline_seconds)
        side = self.side if request.bootstrap else None
        sequence = self._sequence(request, side.role if side else None)
        self.scheduler.submit(sequence)
        answer = _Answer(sequence=sequence, transcript=self._transcript(request))
        sequence.hear = answer.hear
        self._answers[request.id] = answer
        if side and request.bootstrap:
            try:
                side.opened(request, request.bootstrap)
            except EngineError:
                del self._answers[request.id]
                self.scheduler.finish(sequence, FinishReason.ABORT)
                raise

    def abort(self, request_id: str) -> Output | None:
        """End a request and free its blocks at once; its last output, or None if there is no such request."""
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        self.scheduler.finish(answer.sequence, FinishReason.ABORT)
        return self._report(answer)

    def step(self) -> list[Output]:
        """Compute one step; the outputs of all requests that advanced."""
        if not self.has_work:
            return []
        began = self._clock()
        plan = self.scheduler.plan(began)
        sampled = self._runner.run(plan) if plan.items else []
        self.scheduler.commit(plan, sampled)
        ended = self._clock()
        self.metrics.record_step(plan, sampled, began, ended)
        if self._speculation:
            self._speculation.observe(plan, ended - began)
        self.scheduler.seconds_per_token = self.metrics.seconds_per_token
        self.stalled = not plan.items
        if self.side:
            for reserved in self.scheduler.reserved:
                self.side.reserved(reserved)
        self.scheduler.reserved.clear()
        advanced = [*plan.expired, *(item.sequence for item in plan.items if item.samples)]
        outputs = [self._report(self._answers[sequence.id]) for sequence in advanced]
        self._meter.record(plan, sum(len(output.tokens) for output in outputs))
        return outputs

    @property
    def speculation(self) -> SpecCounters:
        """How well guessing went since the start; all zero where nobody guesses."""
        return self._speculation.counters.copy() if self._speculation else SpecCounters()

    def sequence(self, request_id: str) -> Sequence | None:
        """A request that has not ended."""
        answer = self._answers.get(request_id)
        return answer.sequence if answer else None

    def resume(self, sequence: Sequence, first: Sampled | None) -> list[Output]:
        """Go on with a prompt that another engine has filled, or has not; see Scheduler."""
        self.scheduler.resume(sequence, first)
        if first:
            self.metrics.record_handoff(sequence, self._clock())
        return [self._report(self._answers[sequence.id])] if first else []

    def loads(self) -> EngineLoads:
        """How busy the engine is at this moment."""
        return self._meter.read(self.scheduler, self.tree)

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while requests run or wait."""
        return not self.has_work and self.tree.clear()

    def _sequence(self, request: Request, handoff: Handoff | None) -> Sequence:
        """The state that a request begins with."""
        self._submitted += 1
        now, params = self._clock(), request.params
        if handoff == "give":
            params = replace(params, max_tokens=1, min_tokens=min(1, params.min_tokens))
        return Sequence(
            id=request.id,
            order=self._submitted,
            tokens=list(request.prompt),
            num_prompt=len(request.prompt),
            params=params,
            # Without a seed of its own a request gets the engine's, moved on by one each time.
            seed=self._seed + self._submitted if params.seed is None else params.seed,
            salt=request.salt,
            stop_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else self._eos_ids),
            arrival=now,
            priority=request.priority,
            deadline=None if request.deadline_seconds is None else now + request.deadline_seconds,
            streamed=request.streamed,
            leader=None if handoff else self._leader(request),
            handoff=handoff,
            matcher=request.matcher,
        )

    def _transcript(self, request: Request) -> Detokenizer:
        params = request.params
        return Detokenizer(
            self.tokenizer.token_bytes, params.stop, min_tokens=params.min_tokens, shown_ids=request.shown_ids
        )

    def _leader(self, request: Request) -> Sequence | None:
        """The sequence that this request forks from; None when it has ended, or was never the same prompt."""
        answer = self._answers.get(request.fork_of or "")
        if answer is None or answer.sequence.salt != request.salt:
            return None
        sequence = answer.sequence
        same = sequence.tokens[: sequence.num_prompt] == list(request.prompt)
        return sequence if same else None

    def _report(self, answer: _Answer) -> Output:
        sequence = answer.sequence
        tokens = sequence.tokens[sequence.num_prompt + answer.num_reported :]
        logprobs = sequence.logprobs[answer.num_reported :]
        answer.num_reported += len(tokens)
        text, answer.text = answer.text, ""
        self.metrics.record_generated(sequence, len(tokens))
        if sequence.finish:
            self.metrics.ended(sequence, self._clock())
            if self.side and sequence.handoff:
                self.side.ended(sequence)
            text += answer.transcript.end()
            del self._answers[sequence.id]
        return Output(
            id=sequence.id,
            text=text,
            tokens=tuple(tokens),
            finish=sequence.finish,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.num_generated,
            stop=answer.transcript.stop if sequence.finish is FinishReason.STOP else None,
            # The token that ends an answer is no part of it.
            logprobs=tuple(logprobs[:-1] if sequence.ended_by_token else logprobs),
        )
