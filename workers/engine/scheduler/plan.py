"""What one step computes: a value that can be printed, compared and replayed."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workers.engine.kv.block_table import BlockCopy
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`count` tokens of one sequence, from position `start`; `samples` when they reach the last known token.

    The last `drafts` of them are not known but guessed. Such an item decodes and verifies at once: the token before
    each guess is computed, and so is what would follow if all of them were right.

        tokens   ... x y z            count 4, drafts 3:   z d1 d2 d3
        rows that are sampled:                             ^  ^  ^  ^
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    drafts: int = 0
    recomputed: int = 0
    """How many of them had been computed before, and were lost."""

    def __str__(self) -> str:
        drafts = f"~{self.drafts}" if self.drafts else ""
        return f"{self.sequence.id} {self.start}+{self.count}{drafts}{'!' if self.samples else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What one item gave: its accepted drafts in their order, and one token after them. So at least one."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token, where the request asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The items of a step, who lost its blocks to make room for them, and who had waited too long."""

    items: tuple[Item, ...]
    preempted: tuple[Sequence, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    """Blocks to copy, in this order, before anything is computed."""
    expired: tuple[Sequence, ...] = ()
    padding: tuple[int, ...] = ()
    """Rows of a static batch that are computed for nobody, each with its number of tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, drafts included and padding aside."""
        return sum(item.count for item in self.items)

    def __str__(self) -> str:
        """For example:  a 7+1! | d 9+4~3! | b 0+5 | #3 | -c | xe

        a decodes and samples, d does so and verifies three drafts, b prefills five tokens, a row of three tokens is
        padding, c was preempted, and the deadline of e had passed.
        """
        return " | ".join(
            [
                *map(str, self.items),
                *(f"#{count}" for count in self.padding),
                *(f"-{sequence.id}" for sequence in self.preempted),
                *(f"x{sequence.id}" for sequence in self.expired),
            ]
        )


class PlanBuilder:
    """A plan while it is made: what is left of the token budget, and what was handed out of it."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.items: dict[Sequence, Item] = {}
        self.preempted: list[Sequence] = []
        self.copies: list[BlockCopy] = []
        self.prefills = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """Hand out `count` of the pending tokens; their blocks are there."""
        start = sequence.num_computed
        self.prefills += count > 1 or not sequence.num_generated
        self.items[sequence] = Item(
            sequence=sequence,
            start=start,
            count=count,
            samples=count == sequence.pending,
            recomputed=max(0, min(start + count, sequence.computed_max) - start),
        )
        self.budget -= count

    def speculate(self, item: Item, drafts: int) -> None:
        """Let a decoding sequence verify so many drafts too; their blocks are there."""
        self.items[item.sequence] = replace(item, count=item.count + drafts, drafts=drafts)
        self.budget -= drafts

    def drop(self, sequence: Sequence) -> None:
        """The sequence was preempted; what it had been given is free again."""
        item = self.items.pop(sequence, None)
        self.budget += item.count if item else 0
        self.preempted.append(sequence)

    def plan(self, *, expired: Iterable[Sequence], padding: Iterable[int]) -> StepPlan:
        """What came of it."""
        return StepPlan(
            items=tuple(self.items.values()),
            preempted=tuple(self.preempted),
            copies=tuple(self.copies),
            expired=tuple(expired),
            padding=tuple(padding),
        )
