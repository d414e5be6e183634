"""A worker whose answers have every field that OpenAI's have: the SDK's own tests validate strictly."""

import json
from typing import Any

from tests.fakes.scripted_worker import Script, Seen
from tests.fakes.speech_worker import SpeechWorker

MODELS = (
    "gpt-3.5-turbo-instruct",
    "gpt-4o",
    "gpt-4o-transcribe",
    "gpt-5.4",
    "gpt-6-astra",
    "model",
    "omni-moderation-2024-09-26",
    "text-embedding-3-small",
    "whisper-1",
)
"""Names that the SDK's tests use."""

EMBEDDINGS = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


class CompleteWorker(SpeechWorker):
    def __init__(self) -> None:
        super().__init__(MODELS, Script(tokens=3))
        self.others["/v1/embeddings"] = "application/json", json.dumps(EMBEDDINGS).encode()

    def _whole(self, script: Script, seen: Seen, *, chat: bool) -> dict[str, Any]:
        whole = super()._whole(script, seen, chat=chat) | {"created": 1, "model": "model"}
        whole["object"] = "chat.completion" if chat else "text_completion"
        if chat:
            whole["choices"][0]["message"] |= {"refusal": None}
        return whole
