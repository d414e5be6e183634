"""The plan of one step: which tokens it computes, as a value that can be printed, compared and replayed."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workers.engine.draft_tree import DraftTree
from workers.engine.kv.block_table import BlockCopy
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepItem:
    """The tokens of one sequence that a step computes.

    The last `drafts` of them are draft tokens. Such an item decodes and verifies at once: the model computes the
    token before each draft, and the token that follows if all drafts are accepted.

        tokens   ... x y z            count 4, drafts 3:   z d1 d2 d3
        rows that are sampled:                             ^  ^  ^  ^

    Where the drafts form a tree, the token that follows each draft on its own path is computed (`draft_tree`).
    """

    sequence: Sequence
    start: int
    """The position of the first token."""
    count: int
    """How many tokens, drafts included."""
    samples: bool
    """Whether the tokens reach the last known token, so that the step samples the next one."""
    drafts: int = 0
    """How many of the tokens are drafts."""
    recomputed: int = 0
    """How many of the tokens were computed before and lost by a preemption."""

    @property
    def draft_tree(self) -> DraftTree | None:
        """The tree that the drafts form; None without drafts and for a chain."""
        return self.sequence.draft_tree if self.drafts else None

    def __str__(self) -> str:
        drafts = f"~{self.drafts}" if self.drafts else ""
        return f"{self.sequence.id} {self.start}+{self.count}{drafts}{'!' if self.samples else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The tokens that one item yielded: its accepted drafts in order and one token after them, so at least one."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry for each token, where the request includes log probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that one step does: what it computes, and which sequences it preempts or ends."""

    items: tuple[StepItem, ...]
    preempted: tuple[Sequence, ...] = ()
    """Sequences that lost their blocks to make room for the items."""
    copies: tuple[BlockCopy, ...] = ()
    """Blocks to copy, in this order, before anything is computed."""
    expired: tuple[Sequence, ...] = ()
    """Sequences that ended because their deadline passed while they waited."""
    padding: tuple[int, ...] = ()
    """Rows of a static batch that belong to no sequence, each with its number of tokens."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens to compute, with drafts and without padding."""
        return sum(item.count for item in self.items)

    def __str__(self) -> str:
        """Return the plan as one line, for example:  a 7+1! | d 9+4~3! | b 0+5 | #3 | -c | xe.

        Here a decodes and samples, d does so and verifies three drafts, b prefills five tokens, a row of three
        tokens is padding, c was preempted, and the deadline of e had passed.
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
    """A plan while it is made, with the rest of the token budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.items: dict[Sequence, StepItem] = {}
        self.preempted: list[Sequence] = []
        self.copies: list[BlockCopy] = []
        self.prefills = 0
        """Items that prefill."""

    def add(self, sequence: Sequence, count: int) -> None:
        """Add `count` of the sequence's pending tokens, which already have their blocks."""
        start = sequence.num_computed
        self.prefills += count > 1 or not sequence.num_generated
        self.items[sequence] = StepItem(
            sequence=sequence,
            start=start,
            count=count,
            samples=count == sequence.pending,
            recomputed=max(0, min(start + count, sequence.computed_max) - start),
        )
        self.budget -= count

    def add_drafts(self, item: StepItem, drafts: int) -> None:
        """Add `drafts` draft tokens to a decoding item; they already have their blocks."""
        self.items[item.sequence] = replace(item, count=item.count + drafts, drafts=drafts)
        self.budget -= drafts

    def add_preempted(self, sequence: Sequence) -> None:
        """Note that the sequence was preempted, and return its tokens to the budget."""
        item = self.items.pop(sequence, None)
        self.budget += item.count if item else 0
        self.preempted.append(sequence)

    def build(self, *, expired: Iterable[Sequence], padding: Iterable[int]) -> StepPlan:
        """Return the finished plan."""
        return StepPlan(
            items=tuple(self.items.values()),
            preempted=tuple(self.preempted),
            copies=tuple(self.copies),
            expired=tuple(expired),
            padding=tuple(padding),
        )
