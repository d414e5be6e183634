"""Token counts of one request: as workers report them (`usage` in an answer), and as quotas charge them."""

import msgspec

TOKENS_MAX = 2**40
"""More tokens than any request can have: larger counts from a worker are wrong."""


class PromptDetails(msgspec.Struct, frozen=True):
    """The object `usage.prompt_tokens_details` of an answer."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """The object `usage.completion_tokens_details` of an answer."""

    reasoning_tokens: int | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    """The object `usage` of an answer, as a worker reports it."""

    prompt_tokens: int
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def reasoning_tokens(self) -> int:
        """Output tokens that the model spent on reasoning; 0 if the worker does not report them."""
        return (self.completion_tokens_details and self.completion_tokens_details.reasoning_tokens) or 0

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the worker had cached; None, which is not zero, if the worker does not report them."""
        details = self.prompt_tokens_details
        return details.cached_tokens if details is not None else None

    @property
    def plausible(self) -> bool:
        """Whether these counts are possible.

        Impossible counts would spoil quotas, estimates and counters that never decrease.
        """
        details, output = self.prompt_tokens_details, self.completion_tokens or 0
        cached = (details.cached_tokens or 0) if details is not None else 0
        return 0 <= cached <= self.prompt_tokens <= TOKENS_MAX and 0 <= output <= TOKENS_MAX


def read_usage(raw: bytes | msgspec.Raw) -> TokenUsage | None:
    """Return the usage in an answer; None where it is absent, malformed or impossible."""
    try:
        usage: TokenUsage | None = _USAGE.decode(raw)
    except msgspec.ValidationError:
        usage = _read_transcription_usage(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return usage if usage is not None and usage.plausible else None


class TranscriptionUsage(msgspec.Struct, frozen=True):
    """The object `usage` of a transcription that is counted in tokens; other transcriptions count seconds."""

    input_tokens: int
    output_tokens: int


def _read_transcription_usage(raw: bytes | msgspec.Raw) -> TokenUsage | None:
    try:
        reported = _TRANSCRIPTION_USAGE.decode(raw)
    except msgspec.ValidationError:
        return None
    return TokenUsage(reported.input_tokens, reported.output_tokens)


_USAGE = msgspec.json.Decoder(TokenUsage | None)
_TRANSCRIPTION_USAGE = msgspec.json.Decoder(TranscriptionUsage)


class ChargedTokens(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens that a request is charged for."""

    prompt_tokens: int
    cached_tokens: int | None = None
    """How many of the prompt tokens were cached; None where the worker does not report that."""
    output_tokens: int = 0
