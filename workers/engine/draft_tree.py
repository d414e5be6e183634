"""The tree that the draft tokens of one step form, so that a step verifies several candidates for each position.

last token x --+-- a --+-- c --- e        drafts     a  b  c  d  e          by level: 2, then 2, then 1
               |       +-- d              parents   -1 -1  0  0  2          -1: the last token
               +-- b                      depths     0  0  1  1  2

row    x  a  b  c  d  e
x      1                      The rows of a step, and what each attends to besides the text before x: itself and
a      1  1                   the drafts on the way to it. A draft's position in the text is given by its
b      1     1                depth, its KV slot by its number; the KV of the accepted path is moved
c      1  1     1             together after the step (Cai et al. 2024, section 2.1.2).
d      1  1        1
e      1  1     1     1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class DraftTree:
    """The parent of each draft, level by level, so that the first drafts of a tree are a tree too."""

    parents: tuple[int, ...]
    """The number of the draft before each draft; -1 for a draft right after the last token."""

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of drafts before each draft on its path."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of drafts in the first n levels, for n = 0, 1, 2 and so on."""
        levels = max(self.depths, default=-1) + 1
        return tuple(accumulate((self.depths.count(level) for level in range(levels)), initial=0))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The drafts on the way to each draft, the draft itself included."""
        paths: list[tuple[int, ...]] = []
        for number, parent in enumerate(self.parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), number))
        return tuple(paths)

    @cached_property
    def is_chain(self) -> bool:
        """Whether each draft follows the one before it."""
        return all(parent == number - 1 for number, parent in enumerate(self.parents))

    def first(self, count: int) -> "DraftTree":
        """Return the tree of the first `count` drafts."""
        return self if count == len(self.parents) else DraftTree(self.parents[:count])

    def attended_rows(self) -> list[list[bool]]:
        """Return which rows each row attends to, [rows][rows]; row 0 is the last token, row n + 1 is draft n."""
        rows = range(len(self.parents) + 1)
        seen = [{0}, *({0, *(number + 1 for number in path)} for path in self.paths)]
        return [[row in visible for row in rows] for visible in seen]

    def accepted_path(self, drafts: Sequence[int], drawn: Sequence[int]) -> list[int]:
        """Return the drafts that equal the tokens drawn after their parents, along one path from the last token.

        Args:
            drafts: the draft tokens.
            drawn: the tokens drawn after the last token and after each draft.
        """
        path: list[int] = []
        # A parent comes before its drafts, so one pass follows the path down.
        for number, parent in enumerate(self.parents):
            if parent == (path[-1] if path else -1) and drafts[number] == drawn[parent + 1]:
                path.append(number)
        return path
