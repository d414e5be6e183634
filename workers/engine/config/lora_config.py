"""The LoRA adapters that an engine loads when it starts, and their bounds."""

from dataclasses import dataclass
from pathlib import Path

from workers.engine.errors import ConfigInvalid

NAME_CHARS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The validated settings of LoRA adapters; ConfigInvalid names what cannot work."""

    adapters: tuple[tuple[str, Path], ...] = ()
    """The name of each adapter in requests, and its directory in PEFT's format."""
    adapters_max: int = 32
    """The most adapters."""
    rank_max: int = 64
    """The largest rank of an adapter."""
    bytes_max: int = 1 << 30
    """The most bytes that all adapters together take, in the type that the model computes in."""

    def __post_init__(self) -> None:
        for name in ("adapters_max", "rank_max", "bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigInvalid(f"{name} of LoRA adapters must be at least 1, not {getattr(self, name)}")
        if len(self.adapters) > self.adapters_max:
            raise ConfigInvalid(
                f"{len(self.adapters)} LoRA adapters are more than {self.adapters_max}, the most of this engine"
            )
        seen = set[str]()
        for name, _ in self.adapters:
            if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
                raise ConfigInvalid(
                    f"the name of a LoRA adapter has 1 to {NAME_CHARS_MAX} printable characters, not {name[:300]!r}"
                )
            if name in seen:
                raise ConfigInvalid(f"two LoRA adapters have the name {name!r}")
            seen.add(name)
