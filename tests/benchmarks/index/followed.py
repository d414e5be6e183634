"""The memory of a follower for a page of a worker's cache, by the tokens of a page."""

import tracemalloc
from array import array

from radix_cache.blocks import BlockHasher
from radix_cache.events import BlocksStored
from radix_cache.follower import CacheFollower, PageBudget
from radix_cache.namespace import HashedNamespace, Namespace

PAGE_TOKENS = (1, 16, 64)
PAGES = 32_768
PATH_PAGES = 512
EVENT_PAGES = 64
BLOCK_TOKENS = 64


def measure() -> dict[str, float]:
    """Return the bytes per page, for paths of 512 pages each, stored 64 at a time."""
    return {f"followed_page_of_{tokens}_bytes": _page_bytes(tokens) for tokens in PAGE_TOKENS}


def _page_bytes(page_tokens: int) -> float:
    namespace = Namespace(model="m", block_size=BLOCK_TOKENS)
    space = HashedNamespace(namespace, BlockHasher(block_size=BLOCK_TOKENS, salt=b"s"))
    follower = CacheFollower(lambda *_: space, PageBudget(PAGES))
    last: int | None = None
    tracemalloc.start()
    try:
        for first in range(0, PAGES, EVENT_PAGES):
            # Hashes like those of engines: 64 bits, each an int object of its own.
            hashes = tuple((first + at + 1) * 0x9E3779B97F4A7C15 % 2**64 for at in range(EVENT_PAGES))
            parent = last if first % PATH_PAGES else None
            last = hashes[-1]
            tokens = array("I", range(first, first + EVENT_PAGES * page_tokens))
            event = BlocksStored(hashes=hashes, parent=parent, tokens=tokens, page_size=page_tokens)
            for _ in follower.apply(event):
                pass
            del event, tokens, hashes
        return tracemalloc.get_traced_memory()[0] / len(follower)
    finally:
        tracemalloc.stop()
