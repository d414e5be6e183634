"""What goes into an engine, and what comes out of it."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from workers.engine.grammar.matcher import Matcher
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.limits import Limits
from workers.engine.scheduler.sequence import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The prefill engine's address for handoffs, and the number that both sides know the prompt by."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how to continue it. Requests with different salts share no cached block."""

    id: str
    prompt: Tokens[int]
    params: SamplingParams
    salt: str = ""
    fork_of: str | None = None
    """The id of an earlier request with the same prompt and salt, whose prefill serves this one too."""
    bootstrap: Bootstrap | None = None
    """Where this prompt's prefill and decode meet, on engines that do one of the two only."""
    priority: int = 0
    """Which direction goes first is the engine's setting."""
    deadline_seconds: float | None = None
    """How long it may wait for its first token; then it ends with the reason "deadline"."""
    streamed: bool = True
    """Does its reader see the tokens as they come? For the metrics only."""
    matcher: Matcher | None = None
    """Holds the answer to a grammar; it is at the grammar's beginning, and belongs to this request alone."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are part of the answer's text, as they are written."""

    def check_limits(self, limits: Limits) -> None:
        """RequestRefused when it can never run."""
        limits.check(self.prompt, self.params.max_tokens)
        self.params.check_token_ids(limits.vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one answer, and its counts so far. The last one has `finish`.

    `logprobs`: one for each of `tokens`, if the request asked for them. `stop`: the stop string that has ended it.
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None
