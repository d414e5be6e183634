"""What a worker process is started with."""

import math
from dataclasses import dataclass
from pathlib import Path

from workers.engine.config import Device, Dtype, EngineConfig
from workers.engine.errors import ConfigInvalid

BODY_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One model, one engine, one address. `None` means "choose for me"."""

    model: Path
    """A checkpoint directory."""
    host: str = "127.0.0.1"
    port: int = 30000
    """0 takes any free port; the line that says "ready" names it."""
    unix_socket: Path | None = None
    """Listen here instead of on host and port."""
    served_model_name: str | None = None
    """The name that clients use; by default the directory's."""
    page_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int | None = None
    max_running_requests: int = 32
    waiting_max: int = 256
    chunk_tokens: int = 512
    context_length: int | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    threads: int | None = None
    seed: int | None = None
    kv_events_port: int | None = 0
    """Publish KV events on this port and replay them on the next; 0 takes free ones, None publishes nothing."""
    drain_seconds: float = 30.0
    """How long running requests may go on after SIGTERM."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigInvalid(f"port must be between 0 and 65535, not {self.port}")
        if not (math.isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise ConfigInvalid(f"drain_seconds must not be negative, not {self.drain_seconds}")
        if self.kv_events_port is not None and not 0 <= self.kv_events_port <= 65534:
            raise ConfigInvalid(f"kv_events_port must be between 0 and 65534, not {self.kv_events_port}")
        if self.served_model_name == "":
            raise ConfigInvalid("served_model_name must not be empty")

    @property
    def kv_events_host(self) -> str:
        """Where KV events are published: beside HTTP."""
        return "127.0.0.1" if self.unix_socket else self.host

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.model.absolute().name

    def engine_config(self) -> EngineConfig:
        """The engine's part; ConfigInvalid when it cannot work."""
        return EngineConfig(
            model=self.model,
            block_size=self.page_size,
            kv_tokens=self.kv_tokens,
            running_max=self.max_running_requests,
            waiting_max=self.waiting_max,
            chunk_tokens=self.chunk_tokens,
            context_length=self.context_length,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            seed=self.seed,
        )
