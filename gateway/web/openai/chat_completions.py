"""ChatCompletion completions as workers write them: what is decode_chat_completion of an answer, or of a stream's chunk, to say it otherwise.

Reasoning is `reasoning_content` at SGLang and `reasoning` at vLLM; the stop string that ended an answer is
`matched_stop` at the one and `stop_reason` at the other.
"""

import msgspec

from gateway.domain.errors import WorkerError
from gateway.domain.token_usage import TokenUsage, read_usage


class ChatFunctionCall(msgspec.Struct, frozen=True):
    """A part of a call in a chunk, a whole one in an answer."""

    name: str | None = None
    arguments: str | None = None


class ChatToolCall(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: ChatFunctionCall = ChatFunctionCall()


class ChatMessage(msgspec.Struct, frozen=True):
    """A message, or the next piece of one."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None

    @property
    def reasoning_text(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        return self.content or self.refusal or ""

    @property
    def has_text(self) -> bool:
        """Is there a text in it? One that is empty stands for an answer that has nothing else, either."""
        return bool(self.text) or not (self.tool_calls or self.reasoning_text)


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of each token, as OpenAI writes them in both of its APIs."""

    content: list[msgspec.Raw] | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """`delta` in a chunk, `message` in an answer."""

    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None
    logprobs: ChatLogprobs | None = None

    @property
    def token_logprobs(self) -> list[msgspec.Raw]:
        return (self.logprobs.content or []) if self.logprobs is not None else []

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended it; engines also name tokens here."""
        return next((stop for stop in (self.stop_reason, self.matched_stop) if isinstance(stop, str)), None)


class ChatStreamError(msgspec.Struct, frozen=True):
    """An error in the middle of a stream."""

    message: str = ""


class ChatCompletion(msgspec.Struct, frozen=True):
    """An answer, or a chunk of one."""

    model: str = ""
    choices: list[ChatChoice] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: ChatStreamError | str | None = None

    @property
    def parsed_usage(self) -> TokenUsage | None:
        return read_usage(self.usage)


_DECODER = msgspec.json.Decoder(ChatCompletion)


def decode_chat_completion(body: bytes) -> ChatCompletion:
    """Raises WorkerError for what is no chat completion."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WorkerError from err
