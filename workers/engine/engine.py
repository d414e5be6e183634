"""The engine, synchronous: requests in, steps, outputs out.

    submit -> Scheduler.plan -> Runner.run -> Scheduler.commit -> Transcript -> Output
                  ^                                 |
                  +---------------------------------+     until `has_work` is false

One thread drives it; `aio` puts it behind an event loop. Several engines can live in one process.
"""

import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from workers.engine.attention.sdpa import SdpaBackend
from workers.engine.config import EngineConfig
from workers.engine.errors import ConfigInvalid, EngineError, RequestRefused
from workers.engine.exec.runner import Runner
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.grammar.matcher import Matcher
from workers.engine.kv.codec import kv_codec
from workers.engine.kv.pool import BlockPool
from workers.engine.kv.prefix import PrefixTree
from workers.engine.kv.sizing import pool_blocks
from workers.engine.kv.store import KVStore
from workers.engine.loads import LoadMeter, Loads
from workers.engine.metrics import EngineMetrics
from workers.engine.model.spec import ModelSpec
from workers.engine.model.weights import load_decoder
from workers.engine.sample.logprobs import TokenLogprob
from workers.engine.sample.params import SamplingParams
from workers.engine.sched.limits import Limits, check_turn
from workers.engine.sched.opening import table_opener
from workers.engine.sched.plan import Sampled, StepPlan
from workers.engine.sched.scheduler import Scheduler
from workers.engine.sched.sequence import FinishReason, Handoff, Sequence
from workers.engine.sched.speculation import Speculation
from workers.engine.spec.counters import SpecCounters
from workers.engine.spec.drafter import Drafter
from workers.engine.spec.loading import Target, draft_bytes_per_token, draft_spec, load_drafter
from workers.engine.tokenizer import Tokenizer
from workers.engine.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The prefill engine's address for handoffs, and the number that both sides know the prompt by."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how to continue it. Requests with different salts share no cached block."""

    id: str
    prompt: Tokens[int]
    params: SamplingParams
    salt: str = ""
    fork_of: str | None = None
    """The id of an earlier request with the same prompt and salt, whose prefill serves this one too."""
    bootstrap: Bootstrap | None = None
    """Where this prompt's prefill and decode meet, on engines that do one of the two only."""
    priority: int = 0
    """Which direction goes first is the engine's setting."""
    deadline_seconds: float | None = None
    """How long it may wait for its first token; then it ends with the reason "deadline"."""
    streamed: bool = True
    """Does its reader see the tokens as they come? For the metrics only."""
    matcher: Matcher | None = None
    """Holds the answer to a grammar; it is at the grammar's beginning, and belongs to this request alone."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are part of the answer's text, as they are written."""

    def must_fit(self, limits: Limits) -> None:
        """RequestRefused when it can never run."""
        limits.check(self.prompt, self.params.max_tokens)
        self.params.must_fit(limits.vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one answer, and its counts so far. The last one has `finish`.

    `logprobs`: one for each of `tokens`, if the request asked for them.
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine turned out to be, once it stands."""

    context_length: int
    block_size: int
    pool_tokens: int
    running_max: int
    vocab_size: int
    dtype: str
    device: str
    kv_dtype: str = "float32"
    kv_bytes_per_token: int = 0
    """Keys and values of one token over all layers."""
    window: int | None = None
    """How far back the model looks, where every layer of it has a window."""


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


class PlanRunner(Protocol):
    """Computes plans; see Runner."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """One result for each item that samples, in the plan's order."""
        ...


@dataclass(slots=True, kw_only=True)
class _Answer:
    sequence: Sequence
    transcript: Transcript
    num_reported: int = 0
    text: str = ""
    """Said, but not reported yet."""

    def hear(self, token: int) -> bool:
        """Read one more token; True when it completes a stop string."""
        self.text += self.transcript.push((token,))
        return self.transcript.stopped


class Engine:
    """A model, its KV blocks and its queues."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        info: EngineInfo,
        runner: PlanRunner,
        store: KVStore | None = None,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self.store = store
        self.tokenizer = tokenizer
        self.grammars = GrammarCompiler(tokenizer.to_json, info.vocab_size, eos_ids)
        self.limits = Limits(
            context_length=info.context_length, pool_tokens=info.pool_tokens, vocab_size=info.vocab_size
        )
        self.tree = PrefixTree(
            BlockPool(info.pool_tokens // info.block_size, info.block_size), window=info.window
        )
        self._speculation = (
            Speculation(config.speculation, drafter, info.device) if config.speculation and drafter else None
        )
        self.scheduler = Scheduler(
            self.tree,
            token_budget=config.chunk_tokens,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
            policy=config.policy,
            open_table=table_opener(config.kv_layout, self.tree, shares=config.prefix_caching),
            speculation=self._speculation,
        )
        self.side: HandoffSide | None = None
        self.stalled = False
        """Is there work that has to wait for blocks which a handoff holds?"""
        self.metrics = EngineMetrics(speculation=self._speculation.counters if self._speculation else None)
        self._clock = clock
        self._runner = runner
        self._eos_ids = eos_ids
        self._seed = secrets.randbits(63) if config.seed is None else config.seed
        self._answers: dict[str, _Answer] = {}
        self._submitted = 0
        self._meter = LoadMeter(clock)

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Read the checkpoint and build everything; CheckpointInvalid or ConfigInvalid say what is wrong."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        spec = ModelSpec.from_directory(config.model)
        context_length = config.context_length or spec.context_length
        if context_length > spec.context_length:
            raise ConfigInvalid(
                f"context_length {context_length} is more than the model's {spec.context_length}"
            )
        device, dtype = _device(config.device), _dtype(config.dtype, spec)
        tokenizer = Tokenizer(config.model)
        decoder = load_decoder(
            config.model,
            spec,
            context_length=context_length,
            dtype=dtype,
            device=device,
            quantization=config.quantization,
        )
        codec = kv_codec(config.kv_dtype, dtype)
        draft = draft_spec(config.speculation, spec, context_length)
        blocks = pool_blocks(
            config,
            spec,
            context_length=context_length,
            codec=codec,
            device=device,
            draft_bytes=draft_bytes_per_token(draft, dtype),
        )
        store = KVStore(
            spec, blocks=blocks + 1, block_size=config.block_size, codec=codec, dtype=dtype, device=device
        )
        info = EngineInfo(
            context_length=context_length,
            block_size=config.block_size,
            pool_tokens=blocks * config.block_size,
            running_max=config.running_max,
            vocab_size=spec.vocab_size,
            dtype=str(dtype).removeprefix("torch."),
            device=device.type,
            kv_dtype=codec.name,
            kv_bytes_per_token=codec.bytes_per_token(spec),
            window=spec.window,
        )
        attention = SdpaBackend(store, spec)
        target = Target(
            decoder=decoder,
            attention=attention,
            context_length=context_length,
            blocks=blocks,
            block_size=config.block_size,
            chunk_tokens=config.chunk_tokens,
            dtype=dtype,
            device=device,
        )
        drafter = load_drafter(config.speculation, target, draft) if config.speculation else None
        return cls(
            config,
            info=info,
            runner=Runner(decoder, attention, device, drafter),
            store=store,
            tokenizer=tokenizer,
            eos_ids=spec.eos_ids,
            drafter=drafter,
        )

    @property
    def has_work(self) -> bool:
        """Would `step` do anything?"""
        return self.scheduler.has_work

    def submit(self, request: Request) -> None:
        """Queue a request. RequestRefused: it can never run. QueueFull: not now."""
        if request.id in self._answers:
            raise RequestRefused(f"request {request.id} is running already", param="rid")
        prompt = list(request.prompt)
        params = request.params
        request.must_fit(self.limits)
        check_turn(request.priority, request.deadline_seconds)
        side = self.side if request.bootstrap else None
        if side and side.role == "give":
            params = replace(params, max_tokens=1, min_tokens=min(1, params.min_tokens))
        self._submitted += 1
        now = self._clock()
        sequence = Sequence(
            id=request.id,
            order=self._submitted,
            tokens=prompt,
            num_prompt=len(prompt),
            params=params,
            # Without a seed of its own a request gets the engine's, moved on by one each time.
            seed=self._seed + self._submitted if params.seed is None else params.seed,
            salt=request.salt,
            stop_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else self._eos_ids),
            arrival=now,
            priority=request.priority,
            deadline=None if request.deadline_seconds is None else now + request.deadline_seconds,
            streamed=request.streamed,
            leader=None if side else self._leader(request),
            handoff=side.role if side else None,
            matcher=request.matcher,
        )
        self.scheduler.submit(sequence)
        transcript = Transcript(
            self.tokenizer.pieces, params.stop, min_tokens=params.min_tokens, shown_ids=request.shown_ids
        )
        answer = _Answer(sequence=sequence, transcript=transcript)
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
        self.metrics.stepped(plan, sampled, began, ended)
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
            self.metrics.resumed(sequence, self._clock())
        return [self._report(self._answers[sequence.id])] if first else []

    def loads(self) -> Loads:
        """How busy the engine is at this moment."""
        return self._meter.read(self.scheduler, self.tree)

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while requests run or wait."""
        return not self.has_work and self.tree.clear()

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
        self.metrics.generated(sequence, len(tokens))
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
            # The token that ends an answer is no part of it.
            logprobs=tuple(logprobs[:-1] if sequence.ended_by_token else logprobs),
        )


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigInvalid("device cuda was asked for, and this machine has none")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _dtype(name: str, spec: ModelSpec) -> torch.dtype:
    name = spec.dtype if name == "auto" else name
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ConfigInvalid(f"dtype {name} is not supported ({', '.join(dtypes)})")
    return dtypes[name]
