"""The requests that an engine takes, and the outputs that it returns."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from workers.engine.grammar.matcher import Matcher
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.limits import Limits
from workers.engine.scheduler.sequence import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The address of the prefill engine for the handoff of one request (SGLang's `bootstrap_*` fields)."""

    host: str
    port: int
    room: int
    """The number by which both engines identify the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and how to continue it."""

    id: str
    prompt: Tokens[int]
    params: SamplingParams
    salt: str = ""
    """Requests with different cache salts share no cached block."""
    lora: str = ""
    """The name of the LoRA adapter that answers; empty: the model itself."""
    fork_of: str | None = None
    """The id of an earlier request with the same prompt and salt; its prefill is shared by this one."""
    bootstrap: Bootstrap | None = None
    """Where the prefill and the decode engine meet for this prompt, on engines that do one of the two only."""
    priority: int = 0
    """The class of priority; the engine's `priority_first` is the direction that goes first."""
    deadline_seconds: float | None = None
    """How long the request may wait for its first token; then it ends with the finish reason "deadline"."""
    streamed: bool = True
    """Whether the client receives the tokens as they are generated; for the metrics only."""
    matcher: Matcher | None = None
    """Restricts the answer to a grammar. It is at the grammar's beginning, and used by this request alone."""
    shown_ids: frozenset[int] = frozenset()
    """Special tokens that are part of the answer's text, in their written form."""

    def check_limits(self, limits: Limits) -> None:
        """Raise RequestRefused when the request can never run."""
        limits.check(self.prompt, self.params.max_tokens)
        self.params.check_token_ids(limits.vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step added to one answer, and the answer's token counts so far."""

    id: str
    """The id of the request."""
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None
    """Why the answer ended, in its last output; None before."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `tokens`, if the request includes log probabilities."""
    stop: str | None = None
    """The stop string that ended the answer."""
