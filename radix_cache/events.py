"""KV events: the cache changes that an engine publishes (pages stored, pages removed, cache cleared).

Engine hashes are opaque 64-bit names of the engine's own pages. Nothing is computed from them.
"""

from dataclasses import dataclass

from radix_cache.blocks import Tokens

GPU = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """The engine stored one copy of each of these consecutive pages."""

    hashes: tuple[int, ...]
    parent: int | None
    """The page before the first one; None at the beginning of a prompt."""
    tokens: Tokens
    """The tokens of all pages together; empty where the engine does not repeat them."""
    page_size: int
    """Tokens per page."""
    salt: str = ""
    """The `cache_salt` of the request; it and `adapter` determine the cache of the pages."""
    adapter: str = ""
    medium: str = GPU
    """The storage medium of the copy, as the engine names it."""
    partial: bool = False
    """The pages do not describe a prefix."""
    group: int | None = None
    """The KV cache group of a hybrid model."""
    main: bool = True
    """The group keeps whole prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """The engine removed one copy of each of these pages from `medium`."""

    hashes: tuple[int, ...]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """The engine's cache is empty."""


Event = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """The cache changes of one step of an engine."""

    sequence: int
    """Counts from 0 since the publisher started."""
    events: tuple[Event, ...]
    rank: int = 0
    """The data-parallel rank."""
    at: float = 0.0
    """When the batch was published: seconds since 1970, by the engine's clock."""
