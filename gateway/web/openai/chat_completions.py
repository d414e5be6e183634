"""Chat completions of workers: the fields that are read to translate an answer, or a chunk of a stream.

SGLang sends reasoning as `reasoning_content`, vLLM as `reasoning`. SGLang sends the stop string that ended an
answer as `matched_stop`, vLLM as `stop_reason`.
"""

import msgspec

from gateway.domain.errors import ContextExceeded, StreamInterrupted, WorkerError
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.relay.context_refusal import context_refusal


class ChatFunctionCall(msgspec.Struct, frozen=True, gc=False):
    """The function of a tool call: whole in an answer, a piece of it in a chunk."""

    name: str | None = None
    arguments: str | None = None


class ChatToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call of a message, or the next piece of one."""

    index: int = 0
    id: str | None = None
    function: ChatFunctionCall = ChatFunctionCall()


class ChatMessage(msgspec.Struct, frozen=True, gc=False):
    """The message of an answer, or the next piece of it in a chunk."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    @property
    def reasoning_text(self) -> str:
        """The reasoning, whatever the engine calls it."""
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        """The content, or the refusal."""
        return self.content or self.refusal or ""

    @property
    def has_text(self) -> bool:
        """Whether the answer has a text; an empty one counts if there are neither tool calls nor reasoning."""
        return bool(self.text) or not (self.tool_calls or self.reasoning_text)


class ChatLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log probabilities of the tokens, in the form that both of OpenAI's APIs have."""

    content: list[msgspec.Raw] | None = None


class ChatChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice: an answer has its `message`, a chunk its `delta`."""

    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None
    logprobs: ChatLogprobs | None = None

    @property
    def token_logprobs(self) -> list[msgspec.Raw]:
        """The log probabilities of each token as raw JSON; empty if there are none."""
        return (self.logprobs.content or []) if self.logprobs is not None else []

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the answer; None for a stop token, which engines report in the same fields."""
        return next((stop for stop in (self.stop_reason, self.matched_stop) if isinstance(stop, str)), None)


class ChatStreamError(msgspec.Struct, frozen=True, gc=False):
    """An error that a worker sends in the middle of a stream."""

    message: str = ""
    code: str | int | None = None


class ChatCompletion(msgspec.Struct, frozen=True, gc=False):
    """A chat completion, or a chunk of a streamed one."""

    model: str = ""
    choices: list[ChatChoice] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: ChatStreamError | str | None = None

    @property
    def parsed_usage(self) -> TokenUsage | None:
        """The token counts, if the worker sent valid ones."""
        return read_usage(self.usage)


_DECODER = msgspec.json.Decoder(ChatCompletion)


def stream_failure(error: ChatStreamError | str) -> ContextExceeded | StreamInterrupted:
    """Return the error for an error that a worker reports within a stream.

    Some engines refuse a prompt that is too long only within the stream.
    """
    known = error if isinstance(error, ChatStreamError) else ChatStreamError(message=error)
    return context_refusal(known.message, (known.code,)) or StreamInterrupted()


def decode_chat_completion(body: bytes) -> ChatCompletion:
    """Return the chat completion or chunk in a body. Raises WorkerError for anything else."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WorkerError from err
