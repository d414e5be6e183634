"""What an engine says of its cache: blocks stored, blocks removed, all cleared.

Engine hashes are opaque 64-bit numbers: they name an engine's own pages, and nothing is computed from them.
"""

from dataclasses import dataclass

from radix_cache.blocks import Tokens

GPU = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """Consecutive pages of `page_size` tokens behind the page `parent` (None: at the beginning).

    `tokens`: of all pages together; empty where the engine does not repeat them. `salt`, `adapter`: what separates
    the cache, as the request gave it. `medium`: where the copy lies. `partial`: pages that describe no prefix.
    `group`: which of several KV cache groups of a hybrid model; `main`: the group keeps whole prefixes.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: Tokens
    page_size: int
    salt: str = ""
    adapter: str = ""
    medium: str = GPU
    partial: bool = False
    group: int | None = None
    main: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """One copy of each of these pages is gone from `medium`."""

    hashes: tuple[int, ...]
    medium: str = GPU
    group: int | None = None


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing is left."""


Event = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What one step of an engine has changed. `sequence`: counts from 0 in every life of a publisher."""

    sequence: int
    events: tuple[Event, ...]
    rank: int = 0
    at: float = 0.0
    """Seconds since 1970, by the engine's clock."""
