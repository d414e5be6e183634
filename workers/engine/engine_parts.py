"""What an engine is made of, read from a checkpoint and fitted together by its settings.

config.json  -> spec ------+--> decoder ---+
*.safetensors -------------+               +--> runner      who computes plans
tokenizer.json -> tokenizer                |
settings -> codec -> pool size -> KV store +                where keys and values live
                              draft model -+--> drafter     who guesses, if anybody does
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.execution.embedding import Embedder
from workers.engine.execution.runner import ModelRunner
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.kv.pool_sizing import pool_blocks
from workers.engine.model.weight_loading import load_decoder
from workers.engine.scheduler.drafter import Drafter
from workers.engine.scheduler.plan import Sampled, StepPlan
from workers.engine.speculative.loading import Target, draft_bytes_per_token, draft_spec, load_drafter
from workers.engine.tokenization.tokenizer import Tokenizer


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


class StepRunner(Protocol):
    """Computes plans; see Runner."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """One result for each item that samples, in the plan's order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Everything but the queues, which every engine makes for itself."""

    info: EngineInfo
    runner: StepRunner
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    store: KVStore | None = None
    """Where keys and values are, for who hands them to another engine; a runner without a model has none."""
    drafter: Drafter | None = None
    embedder: Embedder | None = None


def load_engine_parts(config: EngineConfig, watcher: Drafter | None = None) -> EngineParts:
    """Read the checkpoint and build everything; CheckpointInvalid or ConfigInvalid say what is wrong.

    `watcher` sees what is computed in place of whoever the settings would have guess.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
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
    drafter = watcher
    if config.speculation and not watcher:
        drafter = load_drafter(config.speculation, target, draft)
    return EngineParts(
        info=info,
        runner=ModelRunner(decoder, attention, device, drafter),
        store=store,
        tokenizer=tokenizer,
        eos_ids=spec.eos_ids,
        drafter=drafter,
        embedder=Embedder(decoder, device),
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
