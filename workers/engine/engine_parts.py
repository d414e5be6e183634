"""The parts of an engine, built from a checkpoint and the settings.

config.json  -> spec ------+--> decoder ---+
*.safetensors -------------+               +--> runner      runs the step plans
LoRA adapters -----------------------------+
tokenizer.json -> tokenizer                |
settings -> codec -> pool size -> KV store +                stores keys and values
                              attention ---+                reads them; its decode steps may be CUDA graphs
                              draft model -+--> drafter     proposes draft tokens, with speculation
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from workers.engine.attention.choice import attention_backend, choose_backend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.execution.embedding import Embedder
from workers.engine.execution.graph_building import capture_decode, graph_rows
from workers.engine.execution.graph_memory import graph_bytes
from workers.engine.execution.model_runner import ModelRunner
from workers.engine.execution.step_memory import step_bytes
from workers.engine.execution.warm_up import compile_kernels
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.kv.pool_sizing import pool_blocks
from workers.engine.model.lora import LoraAdapter
from workers.engine.model.lora_loading import load_loras
from workers.engine.model.weight_loading import load_decoder
from workers.engine.scheduler.drafter import Drafter
from workers.engine.scheduler.plan import SampledTokens, StepPlan
from workers.engine.speculative.loading import TargetModel, draft_bytes_per_token, draft_spec, load_drafter
from workers.engine.tokenization.tokenizer import Tokenizer

_log = logging.getLogger("radixgate.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The properties of a built engine, with every automatic setting resolved."""

    context_length: int
    """Tokens of prompt and output together."""
    block_size: int
    """Tokens in a KV block."""
    pool_tokens: int
    """Tokens that the KV pool holds."""
    running_max: int
    """Sequences computed in the same step."""
    vocab_size: int
    dtype: str
    """The type that the model computes in."""
    device: str
    kv_dtype: str = "float32"
    """The type, or the codec, that keys and values are stored in."""
    kv_bytes_per_token: int = 0
    """Bytes of the keys and values of one token over all layers."""
    step_bytes: int = 0
    """Bytes that the largest step needs besides weights and KV."""
    attention_backend: str = "sdpa"
    graph_rows: tuple[int, ...] = ()
    """The numbers of rows of decode steps that are replayed as CUDA graphs."""
    window: int | None = None
    """Positions that the widest sliding window covers; None where some layer has no window."""


class StepRunner(Protocol):
    """The interface of a runner of step plans; see ModelRunner."""

    def run(self, plan: StepPlan) -> list[SampledTokens]:
        """Compute the plan, and return one result for each item that samples, in the plan's order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Everything that an engine is built from, but for the queues, which it creates itself."""

    info: EngineInfo
    runner: StepRunner
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    """The model's end-of-sequence tokens."""
    store: KVStore | None = None
    """The keys and values, for handing them to another engine; None with a runner without a model."""
    drafter: Drafter | None = None
    """The drafter of speculative decoding; None without speculation."""
    embedder: Embedder | None = None
    """Computes embeddings; None with a runner without a model."""
    loras: Mapping[str, LoraAdapter] = field(default_factory=dict)
    """The LoRA adapters by name."""


def load_engine_parts(config: EngineConfig, watcher: Drafter | None = None) -> EngineParts:
    """Read the checkpoint and build the parts of an engine.

    Args:
        config: the settings.
        watcher: a drafter to use instead of the one in the settings; it observes the hidden states of each step.

    Raises:
        CheckpointInvalid: the checkpoint is missing, damaged or not supported.
        ConfigInvalid: the settings do not fit the checkpoint or the machine.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)

    # The model: its description, tokenizer, weights and LoRA adapters.
    spec = ModelSpec.from_directory(config.model)
    context_length = config.context_length or spec.context_length
    if context_length > spec.context_length:
        raise ConfigInvalid(f"context_length {context_length} is more than the model's {spec.context_length}")
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
    loras = load_loras(config.lora, spec, dtype=dtype, device=device)

    # The memory: what the largest step needs, and the KV blocks that fit beside it.
    codec = kv_codec(config.kv_dtype, dtype)
    backend = choose_backend(config.attention_backend, device=device, kv_layout=config.kv_layout)
    rows = graph_rows(config, backend, device)
    draft = draft_spec(config.speculation, spec, context_length)
    largest_step = step_bytes(
        config, spec, context_length=context_length, codec=codec, dtype=dtype, attention=backend
    ) + graph_bytes(spec, rows, context_length=context_length, block_size=config.block_size, dtype=dtype)
    blocks = pool_blocks(
        config,
        spec,
        context_length=context_length,
        codec=codec,
        device=device,
        draft_bytes=draft_bytes_per_token(draft, dtype),
        step_bytes=largest_step,
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
        step_bytes=largest_step,
        attention_backend=backend,
        graph_rows=rows,
        window=spec.window,
    )
    _log.info(
        "attention by %s; %d KV blocks of %d tokens take %.1f MB; the largest step needs up to %.1f MB more",
        backend,
        blocks,
        config.block_size,
        store.num_bytes / 1e6,
        largest_step / 1e6,
    )

    # The computation: attention, the drafter of speculative decoding, and what is compiled or captured ahead.
    attention = attention_backend(backend, store, spec)
    target = TargetModel(
        decoder=decoder,
        attention=attention,
        backend=backend,
        context_length=context_length,
        blocks=blocks,
        block_size=config.block_size,
        chunk_tokens=config.chunk_tokens,
        dtype=dtype,
        device=device,
    )
    drafter = watcher
    if config.speculation and not watcher:
        drafter = load_drafter(config.speculation, target, draft, loras)
    if backend == "triton":
        compile_kernels(decoder, attention, device)
    graphs = capture_decode(
        decoder,
        attention,
        rows,
        context_length=context_length,
        block_size=config.block_size,
        device=device,
    )
    return EngineParts(
        info=info,
        runner=ModelRunner(decoder, attention, device, drafter, loras, graphs),
        store=store,
        tokenizer=tokenizer,
        eos_ids=spec.eos_ids,
        drafter=drafter,
        embedder=Embedder(decoder, device, loras),
        loras=loras,
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
