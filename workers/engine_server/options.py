"""The options of a worker process."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from workers.engine.config.engine_config import (
    AttentionName,
    Batching,
    Device,
    Dtype,
    EngineConfig,
    KvDtype,
    KvLayout,
    PriorityFirst,
    Quantization,
)
from workers.engine.config.lora_config import LoraConfig
from workers.engine.config.speculation_config import Method, SpecConfig
from workers.engine.disaggregation.messages import Backend
from workers.engine.errors import ConfigInvalid
from workers.engine_server.tools.formats import FORMATS

DisaggregationMode = Literal["null", "prefill", "decode"]

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest request body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of one worker process: its model, its engine and its address. `None` lets the worker choose."""

    model: Path
    """The checkpoint directory."""
    host: str = "127.0.0.1"
    port: int = 30000
    """The port to listen on; 0 takes any free port, which the line "radixgate worker ready" names."""
    unix_socket: Path | None = None
    """The Unix socket to listen on instead of host and port."""
    api_key: str | None = field(default=None, repr=False)
    """The key that requests must have as a bearer token; None: none is needed."""
    served_model_name: str | None = None
    """The model name that clients use; by default the directory's name."""
    page_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int | None = None
    """Tokens that the KV cache holds."""
    max_running_requests: int = 32
    """Sequences computed in one batch."""
    waiting_max: int = 256
    """Requests that may wait in the queue."""
    chunk_tokens: int = 512
    """The token budget of one step."""
    batching: Batching = "continuous"
    """When requests join a batch: at every step, or only when the previous batch has ended."""
    chunked_prefill: bool = True
    """Whether long prompts are computed in pieces that fit a step."""
    prefix_caching: bool = True
    """Whether KV blocks of earlier prompts are reused."""
    kv_layout: KvLayout = "paged"
    priority_first: PriorityFirst = "lower"
    """Whether a request with a lower or with a higher `priority` goes first."""
    ageing_seconds: float = 60.0
    """How long a request waits until it overtakes new requests of the next better priority."""
    context_length: int | None = None
    """Most tokens of a prompt and its answer together."""
    dtype: Dtype = "auto"
    kv_cache_dtype: KvDtype = "auto"
    quantization: Quantization = "none"
    device: Device = "auto"
    attention_backend: AttentionName = "auto"
    cuda_graphs: bool = True
    """Whether decode steps are replayed as CUDA graphs, where the Triton backend runs on a CUDA device."""
    threads: int | None = None
    """CPU threads that torch uses."""
    seed: int | None = None
    """The seed of the random numbers for sampling."""
    speculative_method: Method | None = None
    """How draft tokens are guessed; None turns speculative decoding off. SpecConfig explains the next four."""
    speculative_num_tokens: int = 4
    speculative_draft_model: Path | None = None
    speculative_exit_layer: int | None = None
    speculative_disable_by_batch_size: int = 32
    lora_modules: tuple[tuple[str, Path], ...] = ()
    """The name of each LoRA adapter in requests, and its directory in PEFT's format; LoraConfig has the bounds."""
    max_loaded_loras: int = 32
    max_lora_rank: int = 64
    lora_bytes_max: int = 1 << 30
    kv_events_port: int | None = 0
    """The port that publishes KV events; the next one replays them. 0 takes free ports, None publishes nothing."""
    kv_events_buffer_steps: int = 10_000
    """Batches of KV events kept for replay, one batch per step: about 4 bytes for each token computed."""
    tool_call_parser: str = "auto"
    """How the model writes tool calls, by vLLM's and SGLang's names; "auto" detects it from the chat template."""
    disaggregation_mode: DisaggregationMode = "null"
    """`prefill` computes prompts for workers in mode `decode`; a worker in mode `null` does both itself."""
    disaggregation_transfer_backend: Backend = "tcp"
    """How KV blocks travel to a decode worker: over `tcp`, or by `shm` (shared memory) on one machine."""
    disaggregation_bootstrap_port: int = 8998
    """The port at which a prefill worker waits for decode workers; 0 takes a free port."""
    drain_seconds: float = 30.0
    """How long running requests may continue after SIGTERM."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigInvalid(f"port must be between 0 and 65535, not {self.port}")
        if not (math.isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise ConfigInvalid(f"drain_seconds must not be negative, not {self.drain_seconds}")
        if self.kv_events_port is not None and not 0 <= self.kv_events_port <= 65534:
            raise ConfigInvalid(f"kv_events_port must be between 0 and 65534, not {self.kv_events_port}")
        if self.kv_events_buffer_steps < 1:
            raise ConfigInvalid(
                f"kv_events_buffer_steps must be at least 1, not {self.kv_events_buffer_steps}"
            )
        if self.tool_call_parser not in ("auto", *FORMATS):
            raise ConfigInvalid(
                f"tool_call_parser must be auto, {', '.join(FORMATS)}, not {self.tool_call_parser!r}"
            )
        if not 0 <= self.disaggregation_bootstrap_port <= 65535:
            raise ConfigInvalid(
                "disaggregation_bootstrap_port must be between 0 and 65535, "
                f"not {self.disaggregation_bootstrap_port}"
            )
        for name, names in (
            ("disaggregation_mode", DisaggregationMode),
            ("disaggregation_transfer_backend", Backend),
        ):
            if getattr(self, name) not in get_args(names):
                raise ConfigInvalid(
                    f"{name} must be one of {', '.join(get_args(names))}, not {getattr(self, name)!r}"
                )
        if self.disaggregation_mode != "null" and self.kv_layout == "none":
            raise ConfigInvalid("without KV (kv_layout none) there is nothing to hand over")
        if self.disaggregation_mode != "null" and self.lora_modules:
            raise ConfigInvalid("LoRA adapters are not handed over: they need disaggregation_mode null")
        if self.model_name in dict(self.lora_modules):
            raise ConfigInvalid(f"a LoRA adapter has the name of the model, {self.model_name!r}")
        if self.api_key == "":
            raise ConfigInvalid("api_key must not be empty")
        if self.served_model_name == "":
            raise ConfigInvalid("served_model_name must not be empty")

    @property
    def kv_events_host(self) -> str:
        """The address that publishes KV events: the one that serves HTTP."""
        return "127.0.0.1" if self.unix_socket else self.host

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.model.absolute().name

    def engine_config(self) -> EngineConfig:
        """Return the engine's part of the options. Raises ConfigInvalid when they cannot work."""
        return EngineConfig(
            model=self.model,
            block_size=self.page_size,
            kv_tokens=self.kv_tokens,
            running_max=self.max_running_requests,
            waiting_max=self.waiting_max,
            chunk_tokens=self.chunk_tokens,
            batching=self.batching,
            chunked_prefill=self.chunked_prefill,
            prefix_caching=self.prefix_caching,
            kv_layout=self.kv_layout,
            priority_first=self.priority_first,
            ageing_seconds=self.ageing_seconds,
            context_length=self.context_length,
            dtype=self.dtype,
            kv_dtype=self.kv_cache_dtype,
            quantization=self.quantization,
            device=self.device,
            attention_backend=self.attention_backend,
            cuda_graphs=self.cuda_graphs,
            threads=self.threads,
            seed=self.seed,
            speculation=self._speculation(),
            lora=LoraConfig(
                adapters=self.lora_modules,
                adapters_max=self.max_loaded_loras,
                rank_max=self.max_lora_rank,
                bytes_max=self.lora_bytes_max,
            ),
        )

    def _speculation(self) -> SpecConfig | None:
        if self.speculative_method is None:
            if self.speculative_draft_model or self.speculative_exit_layer:
                raise ConfigInvalid("a speculative draft model or exit layer needs a speculative method")
            return None
        return SpecConfig(
            method=self.speculative_method,
            num_tokens=self.speculative_num_tokens,
            model=self.speculative_draft_model,
            exit_layer=self.speculative_exit_layer,
            batch_size_max=self.speculative_disable_by_batch_size,
        )


def parse_lora_module(text: str) -> tuple[str, Path]:
    """Return the name and the directory of a LoRA adapter, written as `name=path`. Raises ConfigInvalid."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise ConfigInvalid(f"a LoRA adapter is written as name=path, not {text!r}")
    return name, Path(path)
