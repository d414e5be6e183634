"""What one step computes: a value that can be printed, compared and replayed."""

from dataclasses import dataclass

from workers.engine.sched.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`count` tokens of one sequence, from position `start`; `samples` when the last of them is the last known."""

    sequence: Sequence
    start: int
    count: int
    samples: bool

    def __str__(self) -> str:
        return f"{self.sequence.id} {self.start}+{self.count}{'!' if self.samples else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The items of a step, and who lost its blocks to make room for them."""

    items: tuple[Item, ...]
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return sum(item.count for item in self.items)

    def __str__(self) -> str:
        """For example "a 7+1! | b 0+5 | -c": a decodes and samples, b prefills five tokens, c was preempted."""
        return " | ".join([*map(str, self.items), *(f"-{sequence.id}" for sequence in self.preempted)])
