"""One request inside the engine.

    tokens        [ p p p p p p | g g g ]      prompt, then what was generated
    num_computed    ^-------^                  whose keys and values stand in the blocks of `table`
    pending                  ^----------^      everything else: a prefill, the next decode, or a resumed request

There is no prefill phase and no decode phase, only tokens that are pending. One is always: the token sampled last.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Literal

from workers.engine.grammar.matcher import Matcher
from workers.engine.kv.block_table import KVTable
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.pace import Pace

Handoff = Literal["give", "take"]


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    """Its moment passed while it waited; nothing of it was answered."""

    @property
    def early(self) -> bool:
        """Ended before the answer was complete."""
        return self in (FinishReason.ABORT, FinishReason.DEADLINE)


def _hear_nothing(_token: int) -> bool:
    return False


@dataclass(slots=True)
class Moments:
    """When things happened to a sequence, in seconds of the engine's clock; kept for the metrics."""

    started: float | None = None
    """The first step that computed any of it began."""
    first_token: float | None = None
    last_token: float | None = None
    preemptions: int = 0


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of one request; everything else about it is derived."""

    id: str
    order: int
    """Smaller came first. Keeps its place when the sequence is preempted."""
    arrival: float = 0.0
    """When it came, in seconds of the engine's clock."""
    priority: int = 0
    deadline: float | None = None
    """The moment by which its first token is wanted, on the same clock."""
    rank: tuple[int, float, int] = (0, 0.0, 0)
    """Its place among all others, smallest first; given when it is submitted (see `policy`)."""
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    salt: str
    stop_ids: frozenset[int]
    num_computed: int = 0
    computed_max: int = 0
    """The most that `num_computed` has ever been: what is computed below it is computed again."""
    table: KVTable | None = field(default=None, repr=False)
    """None while waiting."""
    handoff: Handoff | None = None
    """"give": its blocks are kept when it ends, for another engine. "take": another engine computes its prompt."""
    leader: "Sequence | None" = field(default=None, repr=False)
    """Another choice of the same prompt, that came first: its prefill serves this one too."""
    expected_cached: int = 0
    """While waiting: tokens that a prefix match found when somebody last looked."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at the first admission; None before it."""
    drafts: list[int] = field(default_factory=list)
    """Guesses at what follows `tokens`, for the step that is being planned or computed; empty between steps."""
    pace: Pace = field(default_factory=Pace)
    """How far it paid to guess so far."""
    hear: Callable[[int], bool] = field(default=_hear_nothing, repr=False)
    """Told each generated token in turn; True ends the sequence there, as a stop string does."""
    matcher: Matcher | None = field(default=None, repr=False)
    """Where the answer stands in its grammar, if it has one: behind the last of `tokens` between two steps."""
    logprobs: list[TokenLogprob] = field(default_factory=list, repr=False)
    """One for each generated token, if the request asks for them."""
    finish: FinishReason | None = None
    streamed: bool = True
    """Does its reader see the tokens as they come? For the metrics only."""
    moments: Moments = field(default_factory=Moments, repr=False)

    @property
    def pending(self) -> int:
        """Tokens known but not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def ended_by_token(self) -> bool:
        """Is the last token one that ends an answer, and no part of its text?"""
        return self.finish is FinishReason.STOP and self.tokens[-1] in self.stop_ids

    @property
    def decodes(self) -> bool:
        """Only the token sampled last is pending."""
        length = len(self.tokens)
        return length - self.num_computed == 1 and length > self.num_prompt

    def known(self, start: int, end: int) -> list[int]:
        """Tokens of positions `start` to `end`, those behind the last one being drafts."""
        if not self.drafts:
            return self.tokens[start:end]
        length = len(self.tokens)
        return self.tokens[start:end] + self.drafts[max(0, start - length) : max(0, end - length)]

    @property
    def blocks(self) -> KVTable:
        """The table of a running sequence."""
        if self.table is None:
            raise RuntimeError(f"sequence {self.id} is waiting and has no blocks")
        return self.table

    def append(self, token: int) -> None:
        """Take a sampled token, and finish if it is the last."""
        if self.matcher and not self.matcher.advance((token,)):
            # The grammar became too costly, or allows no token of this vocabulary: what there is stays as it is.
            self.finish = FinishReason.ABORT
            return
        self.tokens.append(token)
        # A stop token is no part of the text, so nobody hears it. A stop string ends the answer for that reason,
        # even when its last token was also the last allowed.
        if token in self.stop_ids or self.hear(token) or (self.matcher and self.matcher.done):
            self.finish = FinishReason.STOP
        elif self.num_generated >= self.params.max_tokens:
            self.finish = FinishReason.LENGTH

    def extend(self, tokens: Iterable[int], logprobs: Iterable[TokenLogprob] = ()) -> int:
        """Take sampled tokens up to the one that finishes; the number taken."""
        before = len(self.tokens)
        for token in tokens:
            if self.finish:
                break
            self.append(token)
        taken = len(self.tokens) - before
        self.logprobs += islice(logprobs, taken)
        return taken
