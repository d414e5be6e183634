"""InferenceRequest: what a client wants, whatever wire it came on."""

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
"""What a worker answers with tokens of its own. Other APIs that do are translated to one of these."""


FORMS = frozenset({Surface.TRANSCRIPTIONS, Surface.TRANSLATIONS})
"""What comes with a file, as multipart/form-data."""


class QueueHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a client's headers ask of the queue.

    `service_class`: by name. `patience_seconds`: how long it waits for an answer. `comment_seconds`: it wants
    a sign of life so often while it waits for its turn, as a comment in the stream.
    """

    service_class: str | None = None
    patience_seconds: float | None = None
    comment_seconds: float | None = None


NO_QUEUE_HEADERS = QueueHeaders()


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the gateway knows of a request.

    `fields`: the client's top-level fields as raw JSON, less those that the gateway owns. `prompt`: chat messages,
    or a list of prompts that are texts or token ids. `choices`: answers asked for, of each. `output_tokens_max`:
    the client's bound on each, None where it set none. `shortens`: less will do where its context leaves less.
    `include_usage`: it asked for the usage frame. `form`: what came as a form; see WorkerCall.
    """

    surface: Surface
    model: str
    fields: Mapping[str, msgspec.Raw]
    prompt: list[Any]
    stream: bool
    include_usage: bool
    choices: int
    output_tokens_max: int | None
    shortens: bool = False
    form: tuple[FormPart, ...] | None = None

    @property
    def output_tokens_min(self) -> int:
        """What its prompt has to leave room for."""
        return 1 if self.shortens else self.output_tokens_max or int(self.generates)

    @property
    def size(self) -> int:
        """Bytes of its fields as they came."""
        return sum(len(memoryview(value)) for value in self.fields.values())

    @property
    def generates(self) -> bool:
        """Will tokens come? If not, nothing of it stays in a worker's prefix cache either."""
        return self.surface in GENERATING

    @property
    def answers(self) -> int:
        """Answers that will come: so many choices of each prompt."""
        if not self.generates:
            return 0
        return self.choices * (len(self.prompt) if self.surface is Surface.COMPLETIONS else 1)
