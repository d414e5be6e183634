"""Tokens instead of texts, as vLLM, SGLang and the embedded engine have them: asked for, and handed over."""

from array import array
from collections.abc import Mapping

import msgspec

from radix_cache.blocks import Tokens
from workers.adapter import WorkerCall, WorkerUnreachable
from workers.adapters.http import ANSWERS, HttpWorker

ANSWER_BYTES_MAX = 16 * 1024**2
"""Of two million tokens, about."""

NOT_FOUND = 404
COMPLETIONS = "v1/completions"


class Tokenized(msgspec.Struct):
    """What is read of its answer. More than one prompt was never asked about."""

    tokens: list[int]


def with_ids(
    fields: dict[str, msgspec.Raw], call: WorkerCall, chat_field: str | None = None
) -> dict[str, msgspec.Raw]:
    """The prompt as tokens: a completion's in place of its text, a chat's beside its messages under that name."""
    field = "prompt" if call.path == COMPLETIONS else chat_field
    if call.ids is None or field is None:
        return fields
    return {**fields, field: msgspec.Raw(call.ids)}


async def tokenize(http: HttpWorker, fields: Mapping[str, msgspec.Raw], seconds_max: float) -> Tokens | None:
    """See Tokenizes. An engine without this is as good as one that does not answer."""
    status, text = await http.post("tokenize", msgspec.json.encode(fields), seconds_max, ANSWER_BYTES_MAX)
    if status in ANSWERS and status != NOT_FOUND:
        return None
    if status != 200:
        raise WorkerUnreachable(f"status {status} from /tokenize")
    try:
        return array("I", msgspec.json.decode(text, type=Tokenized).tokens)
    except (msgspec.DecodeError, UnicodeError, OverflowError) as err:
        raise WorkerUnreachable(f"/tokenize: not the JSON that was expected: {err}") from err
