"""Follows the KV events of one worker, and turns stored and removed engine pages into changes of the prefix index.

Engine hashes are opaque, so the follower keeps a record of each page: its tokens, the page before it, and, where it
completes an index block, the block's chained hash. Pages may be smaller than blocks. A block counts as held while
all of its pages are held.

    pages of 16 tokens   p0 - p1 - p2 - p3 - p4 - p5        p3 completes the first block of 64 tokens
    block of 64 tokens   [------ B0 ------] [-- not yet     removing any of p0..p3 removes B0 and what follows it

Engines report every physical copy. A page is held until as many copies were removed as were stored; its tier is
that of its fastest copy. A path's tier is that of its slowest page. The index therefore never records more in a
tier than is there, but may record less: for example when an engine moves the end of a path to a faster tier before
its beginning. A hybrid model has several groups of pages under the same hashes; only groups that keep whole
prefixes count.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from radix_cache.blocks import BlockHash, Hashes, Tokens
from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared, Event
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.tiers import Tier, tier_of

PAGES_PER_STEP = 1024
PAGE_BYTES = 400
"""About how much memory one page of 16 tokens takes; `make bench-index` prints the actual number."""

PageCopies = tuple[tuple[str, int | None, int], ...]
"""The copies of one page: (medium, group, number)."""


@lru_cache(maxsize=1024)
def _count_copy(
    copies: PageCopies, medium: str, group: int | None, more: int
) -> tuple[PageCopies, Tier | None]:
    """Return the copies after one was added or removed, and the fastest tier that has one.

    The result is cached, so that pages with equal copies share one tuple.
    """
    counts = {(place, of): count for place, of, count in copies}
    counts[medium, group] = counts.get((medium, group), 0) + more
    left = tuple((place, of, count) for (place, of), count in counts.items() if count > 0)
    return left, min((tier_of(place) for place, _, _ in left), default=None)


class PageBudget:
    """Bounds how many pages all followers of a process keep together."""

    def __init__(self, pages_max: int) -> None:
        self.pages = 0
        self._pages_max = pages_max

    def has_room(self, pages: int) -> bool:
        """Return whether that many more pages may be kept."""
        return self.pages + pages <= self._pages_max


@dataclass(slots=True, eq=False)
class EnginePage:
    """One page of an engine's cache. There are millions of them."""

    hashed_namespace: HashedNamespace
    parent: "EnginePage | None"
    tokens: bytes
    number: int
    """The number of pages before this one in the path."""
    copies: PageCopies = ()
    block: BlockHash | None = None
    """The chained hash of the block that the page completes, if it completes one."""
    depth: int = 0
    """The number of that block in the path."""
    completed: tuple["EnginePage", ...] = ()
    """The pages that complete a block of which this page is a part. The reference cycle ends with the block."""
    below: int = 0
    """The number of blocks that directly follow the block that the page completes."""
    tier: Tier = Tier.DISK
    """The fastest tier that has a copy."""

    def count(self, medium: str, group: int | None, more: int) -> bool:
        """Add `more` copies (1 or -1) in a medium and return whether any copy is left."""
        self.copies, tier = _count_copy(self.copies, medium, group, more)
        self.tier = Tier.DISK if tier is None else tier
        return tier is not None


@dataclass(frozen=True, slots=True)
class PathHeld:
    """The worker holds this path, in this tier or a faster one."""

    namespace: Namespace
    hashes: Hashes
    tier: Tier = Tier.GPU


@dataclass(frozen=True, slots=True)
class PathGone:
    """The worker holds at most the first `blocks` of this path in this tier and faster ones."""

    namespace: Namespace
    hashes: Hashes
    blocks: int
    tier: Tier = Tier.DISK


@dataclass(frozen=True, slots=True)
class AllPathsGone:
    """The worker holds nothing."""


CacheChange = PathHeld | PathGone | AllPathsGone


class UnusablePages(Exception):
    """No index blocks can be made of the engine's pages: the tokens differ, or the sizes do not fit."""


class CacheFollower:
    """Turns the KV events of one engine into changes of the prefix index; it does no I/O. Call `clear` in the end.

    Args:
        resolve_namespace: Returns the namespace of a cache by (salt, adapter, page size); None for a cache that no
            model of the gateway has. Raises UnusablePages where no blocks can be made of the pages.
        budget: Bounds the pages of all followers; pages beyond it count as unusable.
    """

    def __init__(
        self, resolve_namespace: Callable[[str, str, int], HashedNamespace | None], budget: PageBudget
    ) -> None:
        self._resolve_namespace = resolve_namespace
        self._pages: dict[int, EnginePage] = {}
        self._budget = budget
        self._page_size = 0
        self._groups_without_prefixes: set[int | None] = set()
        self.foreign_pages = 0
        """Hashes of pages in caches that no model of the gateway has, and of the pages that follow them."""
        self.unusable_pages = 0
        """The number of pages of which no blocks can be made. Above 0, the worker holds more than is known."""

    def __len__(self) -> int:
        """Return the number of pages that are held."""
        return len(self._pages)

    def apply(self, event: Event) -> Iterator[CacheChange | None]:
        """Apply an event and yield the changes of the index that follow from it, in order.

        Yields None after every PAGES_PER_STEP removed pages, so that the caller can pause.
        """
        if isinstance(event, BlocksStored):
            yield from self._apply_stored(event)
        elif isinstance(event, BlocksRemoved):
            yield from self._apply_removed(event)
        elif isinstance(event, CacheCleared):
            self.clear()
            yield AllPathsGone()

    def clear(self) -> None:
        """Drop all pages and return their budget."""
        for page in self._pages.values():
            page.completed = ()
        self._budget.pages -= len(self._pages)
        self._pages.clear()
        self.unusable_pages = 0

    @property
    def hybrid(self) -> bool:
        """Whether the model has page groups that keep no whole prefixes: a held prefix may then be unusable."""
        return bool(self._groups_without_prefixes)

    @property
    def covers_all(self) -> bool:
        """Whether blocks can be made of all published pages."""
        return not self.unusable_pages and bool(self._page_size or not self._groups_without_prefixes)

    def paths(self) -> Iterator[PathHeld | None]:
        """Yield all paths that are held: each longest path, and the beginnings of it that lie in faster tiers.

        Yields None after every PAGES_PER_STEP pages, so that the caller can pause.
        """
        for number, page in enumerate(self._pages.values(), 1):
            if page.block is not None and not page.below:
                path = _block_path(page)
                # A shorter path has lost an earlier block, so that it is not a prefix any more.
                if len(path) == page.depth + 1:
                    yield from _paths_by_tier(page, path)
            if not number % PAGES_PER_STEP:
                yield None

    def held_blocks(self) -> set[int]:
        """Return the chained hashes of all blocks that are held together with all blocks before them."""
        return {block for held in self.paths() if held is not None for block in held.hashes}

    def _apply_stored(self, event: BlocksStored) -> Iterator[PathHeld]:
        if not event.main:
            self._groups_without_prefixes.add(event.group)
            return
        if not event.hashes:
            return
        known = [self._pages.get(identity) for identity in event.hashes]
        if all(page is not None for page in known):
            nearer = [page for page in known if page is not None and _add_copy(page, event)]
            yield from _path_held(_deepest_block(nearer))
            return
        if event.page_size < self._page_size:
            return  # The page is not full yet; no block ends with it.
        if event.page_size > self._page_size:
            self._page_size, self.unusable_pages = event.page_size, 0
        if event.partial or not event.tokens:
            self.unusable_pages += len(event.hashes)
            return
        parent = self._pages.get(event.parent) if event.parent is not None else None
        if event.parent is not None and parent is None:
            self.foreign_pages += len(event.hashes)
            return
        try:
            hashed_namespace = (
                parent.hashed_namespace
                if parent is not None
                else self._resolve_namespace(event.salt, event.adapter, event.page_size)
            )
        except UnusablePages:
            self.unusable_pages += len(event.hashes)
            return
        if hashed_namespace is None:
            self.foreign_pages += len(event.hashes)
            return
        if not self._budget.has_room(len(event.hashes)):
            self.unusable_pages += len(event.hashes)
            return
        yield from self._add_pages(event, hashed_namespace, parent)

    def _add_pages(
        self, event: BlocksStored, hashed_namespace: HashedNamespace, parent: EnginePage | None
    ) -> Iterator[PathHeld]:
        changed: list[EnginePage] = []
        size, tokens = event.page_size, event.tokens.tobytes()
        bytes_each = size * event.tokens.itemsize
        for at, identity in enumerate(event.hashes):
            page = self._pages.get(identity)
            if page is None:
                number = parent.number + 1 if parent is not None else 0
                page = EnginePage(
                    hashed_namespace, parent, tokens[at * bytes_each : (at + 1) * bytes_each], number
                )
                self._pages[identity] = page
                self._budget.pages += 1
                self._complete_block(page, size)
            if _add_copy(page, event) or page.block is not None:
                changed.append(page)
            parent = page
        yield from _path_held(_deepest_block(changed))

    def _complete_block(self, page: EnginePage, size: int) -> bool:
        """Give the page the hash of the block that it completes, if it completes one; return whether it does."""
        hasher = page.hashed_namespace.hasher
        ratio = hasher.block_size // size
        if (page.number + 1) % ratio:
            return False
        parts: list[EnginePage] = []
        at: EnginePage | None = page
        while at is not None and len(parts) < ratio:
            parts.append(at)
            at = at.parent
        if at is not None and at.block is None:
            return False  # The block before it is not held, so no path leads to this block.
        tokens: Tokens = array("I")
        for part in reversed(parts):
            tokens.frombytes(part.tokens)
            part.completed += (page,)
        if ratio == 1:
            page.tokens = b""  # No other block needs them.
        page.block = hasher.next(at.block if at is not None else None, tokens)
        page.depth = page.number // ratio
        if at is not None:
            at.below += 1
        return True

    def _apply_removed(self, event: BlocksRemoved) -> Iterator[PathGone | None]:
        if event.group in self._groups_without_prefixes:
            return
        for number, identity in enumerate(event.hashes, 1):
            if not number % PAGES_PER_STEP:
                yield None
            page = self._pages.get(identity)
            if page is None:
                continue
            before = page.tier
            left = page.count(event.medium, event.group, -1)
            if left and page.tier == before:
                continue
            if not left:
                del self._pages[identity]
                self._budget.pages -= 1
            # The remaining copies are in a slower tier, or no copy is left.
            tier = Tier(page.tier - 1) if left else Tier.DISK
            for completing in page.completed:
                if completing.block is None:
                    continue
                path = _block_path(completing)
                if not left:
                    _remove_block(completing)
                # A shorter path has lost an earlier block, and with it everything that follows.
                if len(path) == completing.depth + 1:
                    yield PathGone(page.hashed_namespace.namespace, path, completing.depth, tier)


def _add_copy(page: EnginePage, event: BlocksStored) -> bool:
    """Add a copy and return whether no earlier copy was in a tier as fast."""
    before, fresh = page.tier, not page.copies
    page.count(event.medium, event.group, 1)
    return page.tier < before or fresh


def _deepest_block(changed: list[EnginePage]) -> EnginePage | None:
    """Return the page that completes the deepest of the blocks that the pages belong to."""
    blocks = [completing for page in changed for completing in page.completed if completing.block is not None]
    return max(blocks, key=lambda page: page.number, default=None)


def _path_held(page: EnginePage | None) -> Iterator[PathHeld]:
    """Yield the path to the block that a page completes, in the slowest tier of its pages."""
    if page is not None:
        path = _block_path(page)
        # A shorter path has lost an earlier block, so that it is not a prefix any more.
        if len(path) == page.depth + 1:
            yield PathHeld(page.hashed_namespace.namespace, path, max(at.tier for at in _ancestors(page)))


def _paths_by_tier(page: EnginePage, path: Hashes) -> Iterator[PathHeld]:
    """Yield the beginnings of a path that lie in each tier, the fastest tier first."""
    ends = dict.fromkeys(Tier, len(path))
    for at in _ancestors(page):
        for tier in Tier:
            if tier < at.tier:
                # The page is not in that tier; neither is its block, nor what follows.
                ends[tier] = min(ends[tier], (at.number * len(path)) // (page.number + 1))
    reported = 0
    for tier, end in ends.items():
        if end > reported:
            yield PathHeld(page.hashed_namespace.namespace, path[:end], tier)
            reported = end


def _ancestors(page: EnginePage) -> Iterator[EnginePage]:
    """Yield the page and all pages before it."""
    at: EnginePage | None = page
    while at is not None:
        yield at
        at = at.parent


def _remove_block(page: EnginePage) -> None:
    """Record that the block which the page completes is no longer held."""
    page.block = None
    at: EnginePage | None = page
    for _ in range((page.number + 1) // (page.depth + 1)):
        if at is not None:
            at.completed = tuple(each for each in at.completed if each is not page)
            at = at.parent
    if at is not None:
        at.below -= 1


def _block_path(page: EnginePage) -> Hashes:
    """Return the chained hashes from the beginning to the block that the page completes."""
    hashes: list[int] = []
    at: EnginePage | None = page
    while at is not None:
        if at.block is not None:
            hashes.append(at.block)
        at = at.parent
    return array("Q", reversed(hashes))
