"""A client's request: the API that was called, the headers for the queue, and the decoded body."""

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


GENERATING_SURFACES = frozenset({Surface.CHAT, Surface.COMPLETIONS})
"""The APIs that a worker answers with generated tokens. Requests of the Messages and Responses APIs are translated
to one of these."""

FORM_SURFACES = frozenset({Surface.TRANSCRIPTIONS, Surface.TRANSLATIONS})
"""The APIs that take a file: their requests come as multipart/form-data."""


class QueueHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The headers of a request that concern the queue."""

    service_class: str | None = None
    """The name of a service class."""
    timeout_seconds: float | None = None
    """How long the client waits for an answer."""
    comment_seconds: float | None = None
    """The interval at which the client gets a comment in its stream while the request waits for its turn."""


NO_QUEUE_HEADERS = QueueHeaders()
"""The value for a request without such headers."""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded request: the part of it that the gateway understands, and all of its fields as they came."""

    surface: Surface
    model: str
    """The model by the name that the client used."""
    fields: Mapping[str, msgspec.Raw]
    """The client's top-level fields as raw JSON, without the fields that the gateway sets itself."""
    prompt: list[Any]
    """The messages of a chat, or a list of prompts that are texts or token ids."""
    stream: bool
    include_usage: bool
    """Whether the client asked for a usage chunk at the end of the stream."""
    choices: int
    """Answers requested for each prompt (`n`)."""
    output_tokens_max: int | None
    """The client's bound on the tokens of each answer; None where the client set none."""
    running_usage: bool = False
    """Whether the client asked for usage in every chunk of the stream."""
    accepts_shorter_answers: bool = False
    """Whether the client takes a shorter answer where the model's context leaves less room than it asked for."""
    form: tuple[FormPart, ...] | None = None
    """The parts of a request that came as a form; None for a JSON body."""
    body_bytes: int = 0
    """Length of the JSON body; 0 for a form."""

    generates: bool = False
    """Whether a worker generates tokens; derived from the API. If not, nothing of the request stays in a worker's
    prefix cache either."""
    answers: int = 0
    """Answers that are generated: the choices of all prompts together; derived from the other fields."""

    def __post_init__(self) -> None:
        generates = self.surface in GENERATING_SURFACES
        answers = 0
        if generates:
            answers = self.choices * (len(self.prompt) if self.surface is Surface.COMPLETIONS else 1)
        msgspec.structs.force_setattr(self, "generates", generates)
        msgspec.structs.force_setattr(self, "answers", answers)

    @property
    def output_tokens_needed(self) -> int:
        """Tokens of the answer for which the context must have room beside the prompt."""
        return 1 if self.accepts_shorter_answers else self.output_tokens_max or int(self.generates)
