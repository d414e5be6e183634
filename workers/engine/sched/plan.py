"""What one step computes: a value that can be printed, compared and replayed."""

from dataclasses import dataclass

from workers.engine.kv.table import Copy
from workers.engine.sample.logprobs import TokenLogprob
from workers.engine.sched.sequence import Sequence


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
    copies: tuple[Copy, ...] = ()
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
