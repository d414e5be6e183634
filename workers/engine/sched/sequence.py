"""One request inside the engine.

    tokens        [ p p p p p p | g g g ]      prompt, then what was generated
    num_computed    ^-------^                  whose keys and values stand in the blocks of `table`
    pending                  ^----------^      everything else: a prefill, the next decode, or a resumed request

There is no prefill phase and no decode phase, only tokens that are pending. One is always: the token sampled last.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from workers.engine.kv.table import BlockTable
from workers.engine.sample.params import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """The state of one request; everything else about it is derived."""

    id: str
    order: int
    """Smaller came first. Keeps its place when the sequence is preempted."""
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    salt: str
    stop_ids: frozenset[int]
    num_computed: int = 0
    table: BlockTable | None = field(default=None, repr=False)
    """None while waiting."""
    expected_cached: int = 0
    """While waiting: tokens that a prefix match found when somebody last looked."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at the first admission; None before it."""
    finish: FinishReason | None = None

    @property
    def pending(self) -> int:
        """Tokens known but not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def decodes(self) -> bool:
        """Only the token sampled last is pending."""
        return self.pending == 1 and self.num_generated > 0

    @property
    def blocks(self) -> BlockTable:
        """The table of a running sequence."""
        if self.table is None:
            raise RuntimeError(f"sequence {self.id} is waiting and has no blocks")
        return self.table

    def append(self, token: int) -> None:
        """Take a sampled token, and finish if it is the last."""
        self.tokens.append(token)
        if token in self.stop_ids:
            self.finish = FinishReason.STOP
        elif self.num_generated >= self.params.max_tokens:
            self.finish = FinishReason.LENGTH
