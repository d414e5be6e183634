"""The state of one request inside the engine.

    tokens        [ p p p p p p | g g g ]      the prompt, then the generated tokens
    num_computed    ^-------^                  the keys and values of these are in the blocks of `table`
    pending                  ^----------^      all other tokens: a prefill, the next decode, or a resumed request

There is no prefill phase and no decode phase, only pending tokens. The token sampled last is always pending.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Literal

from workers.engine.draft_tree import DraftTree
from workers.engine.grammar.matcher import Matcher
from workers.engine.kv.block_table import KVTable
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.draft_length import AdaptiveDraftLength

HandoffRole = Literal["prefill", "decode"]
"""The role of this engine in a handoff: "prefill" computes the prompt for another engine, "decode" the answer."""


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    """The deadline passed while the request waited; nothing of it was computed."""
    ERROR = "error"
    """A step that computed the sequence failed."""

    @property
    def early(self) -> bool:
        """Whether the sequence ended before its answer was complete."""
        return self in (FinishReason.ABORT, FinishReason.DEADLINE, FinishReason.ERROR)


def _ignore_token(_token: int) -> bool:
    return False


@dataclass(slots=True)
class SequenceTimes:
    """When a sequence started and generated, in seconds of the engine's clock; kept for the metrics."""

    started: float | None = None
    """When the first step that computed part of the sequence began."""
    first_token: float | None = None
    last_token: float | None = None
    preemptions: int = 0
    """How often the sequence was preempted."""


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Sequence:
    """One request inside the engine: its tokens, its blocks and its progress."""

    id: str
    order: int
    """The order of arrival, smallest first; a preempted sequence keeps it."""
    arrival: float = 0.0
    """When the request arrived, in seconds of the engine's clock."""
    priority: int = 0
    deadline: float | None = None
    """The moment by which the first token is due, in seconds of the engine's clock; None: no deadline."""
    rank: tuple[int, float, int] = (0, 0.0, 0)
    """The place among all sequences, smallest first; set when the sequence is submitted (see `policy`)."""
    tokens: list[int]
    """The prompt and the generated tokens."""
    num_prompt: int
    """Tokens of the prompt."""
    params: SamplingParams
    seed: int
    salt: str
    """Only sequences with the same salt share cached blocks."""
    lora: str = ""
    """The name of the LoRA adapter; only sequences with the same one share cached blocks. Empty: no adapter."""
    stop_ids: frozenset[int]
    """Tokens that end the answer."""
    num_computed: int = 0
    """Tokens, from the first, that have their keys and values in the blocks of `table`."""
    computed_max: int = 0
    """The most that `num_computed` has ever been: tokens below it that are computed are recomputed."""
    table: KVTable | None = field(default=None, repr=False)
    """The sequence's KV blocks; None while it waits."""
    handoff_role: HandoffRole | None = None
    """`prefill`: the blocks are kept for another engine when the sequence ends. `decode`: another engine computes
    the prompt. None: this engine computes everything."""
    leader: "Sequence | None" = field(default=None, repr=False)
    """An earlier choice of the same prompt; its prefill serves this sequence too."""
    expected_cached: int = 0
    """While waiting: tokens that the latest prefix match found."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at the first admission; None before it."""
    drafts: list[int] = field(default_factory=list)
    """Draft tokens after `tokens`, for the step that is being planned or computed; empty between steps."""
    draft_tree: DraftTree | None = None
    """The tree that `drafts` form; None: each follows the one before it."""
    draft_length: AdaptiveDraftLength = field(default_factory=AdaptiveDraftLength)
    """Chooses the number of drafts from how many were accepted so far."""
    on_token: Callable[[int], bool] = field(default=_ignore_token, repr=False)
    """Called with each generated token in turn; a result of True ends the sequence there, as a stop string does."""
    matcher: Matcher | None = field(default=None, repr=False)
    """The answer's position in its grammar, if it has one; between two steps it is behind the last of `tokens`."""
    logprobs: list[TokenLogprob] = field(default_factory=list, repr=False)
    """One entry for each generated token, if the request includes log probabilities."""
    finish: FinishReason | None = None
    streamed: bool = True
    """Whether the client gets the tokens as they are generated; for the metrics only."""
    times: SequenceTimes = field(default_factory=SequenceTimes, repr=False)

    @property
    def pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def ended_by_token(self) -> bool:
        """Whether the last token is a stop token, which is not part of the text."""
        return self.finish is FinishReason.STOP and self.tokens[-1] in self.stop_ids

    @property
    def is_decoding(self) -> bool:
        """Whether only the token sampled last is pending."""
        length = len(self.tokens)
        return length - self.num_computed == 1 and length > self.num_prompt

    def tokens_and_drafts(self, start: int, end: int) -> list[int]:
        """Return the tokens at positions `start` to `end`; positions behind the last token are drafts."""
        if not self.drafts:
            return self.tokens[start:end]
        length = len(self.tokens)
        return self.tokens[start:end] + self.drafts[max(0, start - length) : max(0, end - length)]

    @property
    def blocks(self) -> KVTable:
        """The block table of a running sequence; RuntimeError while it waits."""
        if self.table is None:
            raise RuntimeError(f"sequence {self.id} is waiting and has no blocks")
        return self.table

    def append(self, token: int) -> None:
        """Append a sampled token, and finish the sequence if it is the last."""
        if self.matcher and not self.matcher.advance((token,)):
            # The grammar became too costly, or allows no token of this vocabulary: the answer ends as it is.
            self.finish = FinishReason.ABORT
            return
        self.tokens.append(token)
        # A stop token is not part of the text, so on_token is not called with it. A stop string is the reason for
        # the end even when its last token was also the last one allowed.
        if token in self.stop_ids or self.on_token(token) or (self.matcher and self.matcher.done):
            self.finish = FinishReason.STOP
        elif self.num_generated >= self.params.max_tokens:
            self.finish = FinishReason.LENGTH

    def extend(self, tokens: Iterable[int], logprobs: Iterable[TokenLogprob] = ()) -> int:
        """Append sampled tokens up to the one that finishes the sequence, and return how many were appended."""
        before = len(self.tokens)
        for token in tokens:
            if self.finish:
                break
            self.append(token)
        appended = len(self.tokens) - before
        self.logprobs += islice(logprobs, appended)
        return appended
