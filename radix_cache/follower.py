"""What one worker's events say it holds, page by page, and what that means for the tree.

Engine hashes are opaque, so the follower keeps a page for each: its tokens, the page before it, and, where it
completes a block of ours, the block's chained hash. Pages finer than a block fold: a block counts when all of its
pages are held, and no more when one of them is gone.

    pages of 16 tokens   p0 - p1 - p2 - p3 - p4 - p5        p3 completes the first block of 64 tokens
    block of 64 tokens   [------ B0 ------] [-- not yet     removing any of p0..p3 takes B0 and what is below it

Engines report every physical copy: a page is there until as many copies were removed as were stored, and lies where
its nearest copy lies. A path lies as near as its farthest page: what is told of a tier is never more than is there,
and may be less, where an engine brings the end of a path nearer before its beginning. A hybrid model has several
groups of pages under the same hashes; those that keep whole prefixes count, the others are passed over.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from radix_cache.blocks import BlockHash, Hashes, Tokens
from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared, Event
from radix_cache.namespace import Namespace, HashedNamespace
from radix_cache.tiers import Tier, tier_of

PAGES_PER_STEP = 1024
PAGE_BYTES = 400
"""Of one page of 16 tokens, about: `make bench-index` prints what it is."""

Copies = tuple[tuple[str, int | None, int], ...]
"""Of one page: how many in which medium, of which group."""


@lru_cache(maxsize=1024)
def _counted(copies: Copies, medium: str, group: int | None, more: int) -> tuple[Copies, Tier | None]:
    """A copy more or less, and where the nearest is then. Pages with the same copies share one tuple."""
    counts = {(place, of): count for place, of, count in copies}
    counts[medium, group] = counts.get((medium, group), 0) + more
    left = tuple((place, of, count) for (place, of), count in counts.items() if count > 0)
    return left, min((tier_of(place) for place, _, _ in left), default=None)


class PageBudget:
    """Pages that all followers of a process may keep together."""

    def __init__(self, pages_max: int) -> None:
        self.pages = 0
        self._pages_max = pages_max

    def has(self, pages: int) -> bool:
        """Is there room for so many more?"""
        return self.pages + pages <= self._pages_max


@dataclass(slots=True, eq=False)
class EnginePage:
    """One page, of which there are millions. `block`: the chained hash of the block that it completes; `depth`:
    that block's number."""

    space: HashedNamespace
    parent: "EnginePage | None"
    tokens: bytes
    number: int
    copies: Copies = ()
    block: BlockHash | None = None
    depth: int = 0
    completed: tuple["EnginePage", ...] = ()
    """The pages that complete a block of which this is a part: a circle, that ends with the block."""
    below: int = 0
    """Blocks that follow the one that it completes."""
    tier: Tier = Tier.DISK
    """Where the nearest copy lies."""

    def count(self, medium: str, group: int | None, more: int) -> bool:
        """A copy more or less; says whether any is left."""
        self.copies, tier = _counted(self.copies, medium, group, more)
        self.tier = Tier.DISK if tier is None else tier
        return tier is not None


@dataclass(frozen=True, slots=True)
class PathHeld:
    """The worker holds this path, in this tier or those before it."""

    namespace: Namespace
    hashes: Hashes
    tier: Tier = Tier.GPU


@dataclass(frozen=True, slots=True)
class PathGone:
    """The worker holds at most the first `blocks` of this path, and nothing beyond them, in this tier and those
    before it."""

    namespace: Namespace
    hashes: Hashes
    blocks: int
    tier: Tier = Tier.DISK


@dataclass(frozen=True, slots=True)
class CacheEmptied:
    """The worker holds nothing."""


CacheChange = PathHeld | PathGone | CacheEmptied


class UnusablePages(Exception):
    """The cache is ours, and its pages say nothing of our blocks: other tokens, or sizes that do not fit."""


class CacheFollower:
    """Pure: events in, changes out. `clear` it in the end.

    `space`: the cache of (salt, adapter, page size); None if it is not ours; Unfit if no blocks come of it. What
    `room` does not have is unfit as well.
    """

    def __init__(self, space: Callable[[str, str, int], HashedNamespace | None], room: PageBudget) -> None:
        self._space = space
        self._pages: dict[int, EnginePage] = {}
        self._room = room
        self._page_size = 0
        self._aside: set[int | None] = set()
        self.passed_over = 0
        """Pages of caches that are not ours, and what continues them."""
        self.unfit = 0
        """Pages of ours that say nothing of our blocks: then what is said is not all that is held."""

    def __len__(self) -> int:
        """Pages that are held."""
        return len(self._pages)

    def apply(self, event: Event) -> Iterator[CacheChange]:
        """What the event changes, in order."""
        if isinstance(event, BlocksStored):
            yield from self._stored(event)
        elif isinstance(event, BlocksRemoved):
            yield from self._removed(event)
        elif isinstance(event, CacheCleared):
            self.clear()
            yield CacheEmptied()

    def clear(self) -> None:
        for page in self._pages.values():
            page.completed = ()
        self._room.pages -= len(self._pages)
        self._pages.clear()
        self.unfit = 0

    @property
    def hybrid(self) -> bool:
        """Has the model groups of pages that keep no whole prefixes? A prefix may be held and yet not be usable."""
        return bool(self._aside)

    @property
    def fit(self) -> bool:
        """Do blocks come of all that is said?"""
        return not self.unfit and bool(self._page_size or not self._aside)

    def paths(self) -> Iterator[PathHeld | None]:
        """All that is held: every path that no other continues, and what of it lies nearer than its end; and None
        now and then, for a pause."""
        for number, page in enumerate(self._pages.values(), 1):
            if page.block is not None and not page.below:
                path = _path(page)
                # A shorter path has lost a block further up, and is no path any more.
                if len(path) == page.depth + 1:
                    yield from _nearer(page, path)
            if not number % PAGES_PER_STEP:
                yield None

    def holds(self) -> set[int]:
        """Chained hashes of all blocks that are held, with all before them."""
        return {block for held in self.paths() if held is not None for block in held.hashes}

    def _stored(self, event: BlocksStored) -> Iterator[PathHeld]:
        if not event.main:
            self._aside.add(event.group)
            return
        if not event.hashes:
            return
        known = [self._pages.get(identity) for identity in event.hashes]
        if all(page is not None for page in known):
            nearer = [page for page in known if page is not None and _comes_nearer(page, event)]
            yield from _brought(_deepest(nearer))
            return
        if event.page_size < self._page_size:
            return  # A page that is not full yet; no block ends with it.
        if event.page_size > self._page_size:
            self._page_size, self.unfit = event.page_size, 0
        if event.partial or not event.tokens:
            self.unfit += len(event.hashes)
            return
        parent = self._pages.get(event.parent) if event.parent is not None else None
        if event.parent is not None and parent is None:
            self.passed_over += len(event.hashes)
            return
        try:
            space = (
                parent.space
                if parent is not None
                else self._space(event.salt, event.adapter, event.page_size)
            )
        except UnusablePages:
            self.unfit += len(event.hashes)
            return
        if space is None:
            self.passed_over += len(event.hashes)
            return
        if not self._room.has(len(event.hashes)):
            self.unfit += len(event.hashes)
            return
        yield from self._added(event, space, parent)

    def _added(self, event: BlocksStored, space: HashedNamespace, parent: EnginePage | None) -> Iterator[PathHeld]:
        changed: list[EnginePage] = []
        size, tokens = event.page_size, event.tokens.tobytes()
        bytes_each = size * event.tokens.itemsize
        for at, identity in enumerate(event.hashes):
            page = self._pages.get(identity)
            if page is None:
                number = parent.number + 1 if parent is not None else 0
                page = EnginePage(space, parent, tokens[at * bytes_each : (at + 1) * bytes_each], number)
                self._pages[identity] = page
                self._room.pages += 1
                self._complete(page, size)
            if _comes_nearer(page, event) or page.block is not None:
                changed.append(page)
            parent = page
        yield from _brought(_deepest(changed))

    def _complete(self, page: EnginePage, size: int) -> bool:
        """Does the page complete a block? Then it gets the block's hash."""
        hasher = page.space.hasher
        ratio = hasher.block_size // size
        if (page.number + 1) % ratio:
            return False
        parts: list[EnginePage] = []
        at: EnginePage | None = page
        while at is not None and len(parts) < ratio:
            parts.append(at)
            at = at.parent
        if at is not None and at.block is None:
            return False  # The block before it is gone: there is nothing to continue.
        tokens: Tokens = array("I")
        for part in reversed(parts):
            tokens.frombytes(part.tokens)
            part.completed += (page,)
        if ratio == 1:
            page.tokens = b""  # No other block has a part in it.
        page.block = hasher.next(at.block if at is not None else None, tokens)
        page.depth = page.number // ratio
        if at is not None:
            at.below += 1
        return True

    def _removed(self, event: BlocksRemoved) -> Iterator[PathGone]:
        if event.group in self._aside:
            return
        for identity in event.hashes:
            page = self._pages.get(identity)
            if page is None:
                continue
            before = page.tier
            left = page.count(event.medium, event.group, -1)
            if left and page.tier == before:
                continue
            if not left:
                del self._pages[identity]
                self._room.pages -= 1
            # What is left of it lies further away; or nothing is left.
            tier = Tier(page.tier - 1) if left else Tier.DISK
            for completing in page.completed:
                if completing.block is None:
                    continue
                path = _path(completing)
                if not left:
                    _uncomplete(completing)
                # A shorter path has lost a block further up, and all below it with that.
                if len(path) == completing.depth + 1:
                    yield PathGone(page.space.namespace, path, completing.depth, tier)


def _comes_nearer(page: EnginePage, event: BlocksStored) -> bool:
    """A copy more; says whether it is the first so near."""
    before, fresh = page.tier, not page.copies
    page.count(event.medium, event.group, 1)
    return page.tier < before or fresh


def _deepest(changed: list[EnginePage]) -> EnginePage | None:
    """The deepest block that the pages are a part of."""
    blocks = [completing for page in changed for completing in page.completed if completing.block is not None]
    return max(blocks, key=lambda page: page.number, default=None)


def _brought(page: EnginePage | None) -> Iterator[PathHeld]:
    """The path to a block is there, as near as all of it is."""
    if page is not None:
        path = _path(page)
        # A shorter path has lost a block further up, and is no path any more.
        if len(path) == page.depth + 1:
            yield PathHeld(page.space.namespace, path, max(at.tier for at in _up(page)))


def _nearer(page: EnginePage, path: Hashes) -> Iterator[PathHeld]:
    """A whole path, tier by tier, as far as each goes."""
    ends = dict.fromkeys(Tier, len(path))
    for at in _up(page):
        for tier in Tier:
            if tier < at.tier:
                # The page is not that near: neither is its block, nor what follows.
                ends[tier] = min(ends[tier], (at.number * len(path)) // (page.number + 1))
    told = 0
    for tier, end in ends.items():
        if end > told:
            yield PathHeld(page.space.namespace, path[:end], tier)
            told = end


def _up(page: EnginePage) -> Iterator[EnginePage]:
    """The page, and all before it."""
    at: EnginePage | None = page
    while at is not None:
        yield at
        at = at.parent


def _uncomplete(page: EnginePage) -> None:
    """The block that it completes is gone."""
    page.block = None
    at: EnginePage | None = page
    for _ in range((page.number + 1) // (page.depth + 1)):
        if at is not None:
            at.completed = tuple(each for each in at.completed if each is not page)
            at = at.parent
    if at is not None:
        at.below -= 1


def _path(page: EnginePage) -> Hashes:
    """Chained hashes from the beginning to the block that the page completes."""
    hashes: list[int] = []
    at: EnginePage | None = page
    while at is not None:
        if at.block is not None:
            hashes.append(at.block)
        at = at.parent
    return array("Q", reversed(hashes))
