"""What a client asks for: the API that was called, what the headers ask of the queue, and the decoded request."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from workers.adapter import FormPart


class Surface(StrEnum):
    """The API that was called; the value is its path below /v1 and the operation in traces."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    MESSAGES = "messages"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    MODERATIONS = "moderations"
    SPEECH = "audio/speech"
    TRANSCRIPTIONS = "audio/transcriptions"
    TRANSLATIONS = "audio/translations"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


GENERATING = frozenset({Surface.CHAT, Surface.COMPLETIONS})
"""The APIs that a worker answers with generated tokens. Requests of the Messages and Responses APIs are translated
to one of these."""


FORMS = frozenset({Surface.TRANSCRIPTIONS, Surface.TRANSLATIONS})
"""The APIs with requests that come with a file, as multipart/form-data."""


class QueueHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a client's headers ask of the queue."""

    service_class: str | None = None
    """The name of a service class."""
    patience_seconds: float | None = None
    """How long the client waits for an answer."""
    comment_seconds: float | None = None
    """How often the client wants a comment in its stream while the request waits for its turn."""


NO_QUEUE_HEADERS = QueueHeaders()
"""Of a client that asks nothing of the queue."""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded request: the part of it that the gateway understands, and all of its fields as they came."""

    surface: Surface
    model: str
    """The model by the name that the client used."""
    fields: Mapping[str, msgspec.Raw]
    """The client's top-level fields as raw JSON, without those that the gateway owns."""
    prompt: list[Any]
    """The messages of a chat, or a list of prompts that are texts or token ids."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage frame of a stream."""
    choices: int
    """Answers asked for, of each prompt."""
    output_tokens_max: int | None
    """The client's bound on the tokens of each answer; None where the client set none."""
    shortens: bool = False
    """Whether a shorter answer will do where the model's context leaves less room."""
    form: tuple[FormPart, ...] | None = None
    """The parts of a request that came as a form; see WorkerCall."""
    body_bytes: int = 0
    """Length of the JSON body; 0 of a form."""

    generates: bool = False
    """Whether a worker generates tokens. If not, nothing of the request stays in a worker's prefix cache either.
    Follows from the API."""
    answers: int = 0
    """Answers that are generated: so many choices of each prompt. Follows from the other fields."""

    def __post_init__(self) -> None:
        generates = self.surface in GENERATING
        answers = 0
        if generates:
            answers = self.choices * (len(self.prompt) if self.surface is Surface.COMPLETIONS else 1)
        msgspec.structs.force_setattr(self, "generates", generates)
        msgspec.structs.force_setattr(self, "answers", answers)

    @property
    def output_tokens_min(self) -> int:
        """Tokens of an answer that the prompt has to leave room for."""
        return 1 if self.shortens else self.output_tokens_max or int(self.generates)
