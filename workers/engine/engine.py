"""The engine, synchronous: requests in, steps, outputs out.

    submit -> Scheduler.plan -> Runner.run -> Scheduler.commit -> Transcript -> Output
                  ^                                 |
                  +---------------------------------+     until `has_work` is false

One thread drives it; `aio` puts it behind an event loop. Several engines can live in one process.
"""

import secrets
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol

import torch

from workers.engine.attention.sdpa import SdpaBackend
from workers.engine.config import EngineConfig
from workers.engine.errors import ConfigInvalid, RequestRefused
from workers.engine.exec.runner import Runner
from workers.engine.kv.pool import BlockPool
from workers.engine.kv.prefix import PrefixTree
from workers.engine.kv.sizing import pool_blocks
from workers.engine.kv.store import KVStore
from workers.engine.loads import LoadMeter, Loads
from workers.engine.model.spec import ModelSpec
from workers.engine.model.weights import load_decoder
from workers.engine.sample.params import SamplingParams
from workers.engine.sched.limits import Limits
from workers.engine.sched.plan import StepPlan
from workers.engine.sched.scheduler import Scheduler
from workers.engine.sched.sequence import FinishReason, Sequence
from workers.engine.tokenizer import Tokenizer
from workers.engine.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how to continue it. Requests with different salts share no cached block."""

    id: str
    prompt: Tokens[int]
    params: SamplingParams
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one answer, and its counts so far. The last one has `finish`."""

    id: str
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


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


class PlanRunner(Protocol):
    """Computes plans; see Runner."""

    def run(self, plan: StepPlan) -> list[int]:
        """One sampled token for each item that samples, in the plan's order."""
        ...


@dataclass(slots=True, kw_only=True)
class _Answer:
    sequence: Sequence
    transcript: Transcript
    num_reported: int = 0


class Engine:
    """A model, its KV blocks and its queues."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        info: EngineInfo,
        runner: PlanRunner,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.limits = Limits(
            context_length=info.context_length, pool_tokens=info.pool_tokens, vocab_size=info.vocab_size
        )
        self.tree = PrefixTree(BlockPool(info.pool_tokens // info.block_size, info.block_size))
        self.scheduler = Scheduler(
            self.tree,
            token_budget=config.chunk_tokens,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
        )
        self._runner = runner
        self._eos_ids = eos_ids
        self._seed = secrets.randbits(63) if config.seed is None else config.seed
        self._answers: dict[str, _Answer] = {}
        self._submitted = 0
        self._meter = LoadMeter()

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
        decoder = load_decoder(config.model, spec, context_length=context_length, dtype=dtype, device=device)
        blocks = pool_blocks(config, spec, context_length=context_length, dtype=dtype, device=device)
        store = KVStore(spec, blocks=blocks + 1, block_size=config.block_size, dtype=dtype, device=device)
        info = EngineInfo(
            context_length=context_length,
            block_size=config.block_size,
            pool_tokens=blocks * config.block_size,
            running_max=config.running_max,
            vocab_size=spec.vocab_size,
            dtype=str(dtype).removeprefix("torch."),
            device=device.type,
        )
        runner = Runner(decoder, SdpaBackend(store), device)
        return cls(config, info=info, runner=runner, tokenizer=tokenizer, eos_ids=spec.eos_ids)

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
        self.limits.check(prompt, params.max_tokens)
        self._submitted += 1
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
        )
        self.scheduler.submit(sequence)
        self._answers[request.id] = _Answer(
            sequence=sequence, transcript=Transcript(self.tokenizer.pieces, params.stop)
        )

    def abort(self, request_id: str) -> Output | None:
        """End a request and free its blocks at once; its last output, or None if there is no such request."""
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        self.scheduler.finish(answer.sequence, FinishReason.ABORT)
        return self._report(answer)

    def step(self) -> list[Output]:
        """Compute one step; the outputs of all requests that advanced by a token."""
        if not self.has_work:
            return []
        plan = self.scheduler.plan()
        sampled = self._runner.run(plan)
        self.scheduler.commit(plan, sampled)
        self._meter.record(plan)
        return [self._report(self._answers[item.sequence.id]) for item in plan.items if item.samples]

    def loads(self) -> Loads:
        """How busy the engine is at this moment."""
        return self._meter.read(self.scheduler, self.tree)

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while requests run or wait."""
        return not self.has_work and self.tree.clear()

    def _report(self, answer: _Answer) -> Output:
        sequence, transcript = answer.sequence, answer.transcript
        tokens = sequence.tokens[sequence.num_prompt + answer.num_reported :]
        answer.num_reported += len(tokens)
        # The token that ends an answer is no part of its text.
        stopped_by_token = sequence.finish is FinishReason.STOP
        text = transcript.push(tokens[:-1] if stopped_by_token else tokens)
        if transcript.stopped:
            self.scheduler.finish(sequence, FinishReason.STOP)
            # A stop string ends the answer for that reason, even when its last token was also the last allowed.
            sequence.finish = FinishReason.STOP
        if sequence.finish:
            text += transcript.end()
            del self._answers[sequence.id]
        return Output(
            id=sequence.id,
            text=text,
            tokens=tuple(tokens),
            finish=sequence.finish,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.cached_tokens or 0,
            completion_tokens=sequence.num_generated,
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
