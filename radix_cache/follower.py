"""What one worker's events say it holds, page by page, and what that means for the tree.

Engine hashes are opaque, so the follower keeps a page for each: its tokens, the page before it, and, where it
completes a block of ours, the block's chained hash. Pages finer than a block fold: a block counts when all of its
pages are held, and no more when one of them is gone.

    pages of 16 tokens   p0 - p1 - p2 - p3 - p4 - p5        p3 completes the first block of 64 tokens
    block of 64 tokens   [------ B0 ------] [-- not yet     removing any of p0..p3 takes B0 and what is below it

Engines report every physical copy: a page is there until as many copies were removed as were stored.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from radix_cache.blocks import BlockHash, Hashes, Tokens
from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared, Event
from radix_cache.namespace import Namespace, Space

PAGES_MAX = 4_000_000


@dataclass(slots=True, eq=False)
class Page:
    """One page. `block`: the chained hash of the block that it completes; `depth`: that block's number."""

    space: Space
    parent: "Page | None"
    tokens: Tokens
    number: int
    copies: Counter[str] = field(default_factory=Counter)
    block: BlockHash | None = None
    depth: int = 0
    completed: list["Page"] = field(default_factory=list)
    """The pages that complete a block of which this is a part."""


@dataclass(frozen=True, slots=True)
class Held:
    """The worker holds this path."""

    namespace: Namespace
    hashes: Hashes


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker holds at most the first `blocks` of this path, and nothing beyond them."""

    namespace: Namespace
    hashes: Hashes
    blocks: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """The worker holds nothing."""


Change = Held | Gone | Emptied


class Unfit(Exception):
    """The cache is ours, and its pages say nothing of our blocks: other tokens, or sizes that do not fit."""


class Follower:
    """Pure: events in, changes out.

    `space`: the cache of (salt, adapter, page size); None if it is not ours; Unfit if no blocks come of it.
    """

    def __init__(self, space: Callable[[str, str, int], Space | None], pages_max: int = PAGES_MAX) -> None:
        self._space = space
        self._pages: dict[int, Page] = {}
        self._pages_max = pages_max
        self.passed_over = 0
        """Pages of caches that are not ours, and what continues them."""
        self.unfit = 0
        """Pages of ours that say nothing of our blocks: then what is said is not all that is held."""

    def __len__(self) -> int:
        """Pages that are held."""
        return len(self._pages)

    def apply(self, event: Event) -> Iterator[Change]:
        """What the event changes, in order."""
        if isinstance(event, BlocksStored):
            yield from self._stored(event)
        elif isinstance(event, BlocksRemoved):
            yield from self._removed(event)
        elif isinstance(event, CacheCleared):
            self.clear()
            yield Emptied()

    def clear(self) -> None:
        self._pages.clear()

    def paths(self) -> Iterator[Held]:
        """All that is held: every path that no other continues."""
        inner = set()
        for page in self._completing():
            at = page.parent
            while at is not None and at.block is None:
                at = at.parent
            if at is not None:
                inner.add(id(at))
        for page in self._completing():
            if id(page) not in inner:
                yield Held(page.space.namespace, _path(page))

    def holds(self) -> set[int]:
        """Chained hashes of all blocks that are held."""
        return {page.block for page in self._completing() if page.block is not None}

    def _completing(self) -> Iterator[Page]:
        return (page for page in self._pages.values() if page.block is not None)

    def _stored(self, event: BlocksStored) -> Iterator[Held]:
        last: Page | None = None
        known = [self._pages.get(identity) for identity in event.hashes]
        if all(page is not None for page in known):
            for page in known:
                assert page is not None
                page.copies[event.medium] += 1
            return
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
        except Unfit:
            self.unfit += len(event.hashes)
            return
        if space is None:
            self.passed_over += len(event.hashes)
            return
        if len(self._pages) + len(event.hashes) > self._pages_max:
            self.unfit += len(event.hashes)
            return
        size = event.page_size
        for at, identity in enumerate(event.hashes):
            page = self._pages.get(identity)
            if page is None:
                number = parent.number + 1 if parent is not None else 0
                page = Page(space, parent, event.tokens[at * size : (at + 1) * size], number)
                self._pages[identity] = page
                if self._complete(page, size):
                    last = page
            page.copies[event.medium] += 1
            parent = page
        if last is not None:
            yield Held(last.space.namespace, _path(last))

    def _complete(self, page: Page, size: int) -> bool:
        """Does the page complete a block? Then it gets the block's hash."""
        hasher = page.space.hasher
        ratio = hasher.block_size // size
        if (page.number + 1) % ratio:
            return False
        parts: list[Page] = []
        at: Page | None = page
        while at is not None and len(parts) < ratio:
            parts.append(at)
            at = at.parent
        tokens = array("I")
        for part in reversed(parts):
            tokens.extend(part.tokens)
            part.completed.append(page)
        page.block = hasher.next(at.block if at is not None else None, tokens)
        page.depth = page.number // ratio
        return True

    def _removed(self, event: BlocksRemoved) -> Iterator[Gone]:
        for identity in event.hashes:
            page = self._pages.get(identity)
            if page is None:
                continue
            page.copies[event.medium] -= 1
            if any(count > 0 for count in page.copies.values()):
                continue
            del self._pages[identity]
            for completing in page.completed:
                if completing.block is None:
                    continue
                path = _path(completing)
                completing.block = None
                # A shorter path has lost a block further up, and all below it with that.
                if len(path) == completing.depth + 1:
                    yield Gone(page.space.namespace, path, completing.depth)


def _path(page: Page) -> Hashes:
    """Chained hashes from the beginning to the block that the page completes."""
    hashes: list[int] = []
    at: Page | None = page
    while at is not None:
        if at.block is not None:
            hashes.append(at.block)
        at = at.parent
    return array("Q", reversed(hashes))
