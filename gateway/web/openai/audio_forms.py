"""Requests that come with a file, as multipart/form-data: transcriptions and translations of speech.

    client's form   model | language | file, 25 MB | timestamp_granularities[] | timestamp_granularities[]
    fields          model, language, file, timestamp_granularities      what the gateway reads, as JSON
    worker's form   the same parts in the same order, without fields that the gateway has removed

Contents are held once, unchanged. Names of parts are rewritten, because form parsers differ in how they parse
names: a client could otherwise send one name to the gateway and another to the worker.
"""

import asyncio
import re
from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from aiohttp import BodyPartReader
from aiohttp.hdrs import CONTENT_DISPOSITION, CONTENT_LENGTH

from gateway.domain.errors import BadRequest, PayloadTooLarge
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.field_check import check_media
from gateway.web.bodies.multipart import MultipartForm
from gateway.web.exchange import HttpExchange
from gateway.web.openai.inference_requests import GATEWAY_OWNED, MODEL_NAME_MAX
from gateway.web.openai.prompts import NO_TOKENS
from gateway.web.request_identity import set_caller
from workers.adapter import FormPart
from workers.adapters.multipart import content_disposition

PARTS_MAX = 64
"""The most parts of one form."""
FIELD_BYTES_MAX = 4 * 1024**2
"""The most bytes of a part that is not a file; samples of known speakers' voices come as `data:` URLs."""
READ_BYTES_MAX = 4096
"""The bytes of a field that the gateway reads."""

SPEAKER_SAMPLES = "known_speaker_references"
_FIELD = re.compile(r"[^\[.]*")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


class FormExchange(HttpExchange):
    """An HTTP exchange with a form as its request."""

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Return the request in the form. Raises what MultipartForm raises, PayloadTooLarge, Overloaded."""
        set_caller(self._http, tenant)
        # The digest of the files is part of what an Idempotency-Key compares.
        digest = blake2b(digest_size=16) if self.idempotency_key is not None else None
        bytes_max = self._body_bytes_max
        if (self._http.content_length or 0) > bytes_max:
            raise PayloadTooLarge(bytes_max)
        form, parts = MultipartForm(self._http, self._body_seconds_max), list[FormPart]()
        async for arriving in form.parts():
            if len(parts) == PARTS_MAX:
                raise BadRequest(f"The form has more than {PARTS_MAX} parts.")
            part = await _read(arriving, form, self.memory, bytes_max)
            if digest is not None:
                digest.update(await asyncio.to_thread(_digest, part))
            parts.append(part)
        return decode_form(self.surface, parts, digest.hexdigest() if digest is not None else "")


async def _read(
    arriving: BodyPartReader, form: MultipartForm, memory: MemoryLease, bytes_max: int
) -> FormPart:
    """Return one part, read within the limits. Raises what MultipartForm raises, PayloadTooLarge, Overloaded."""
    name, head = _head(arriving)
    content = bytearray()
    is_file, before = arriving.filename is not None, memory.bytes_held + len(head)
    memory.resize(before)
    while piece := await form.piece(arriving):
        content += piece
        if before + len(content) > bytes_max:
            raise PayloadTooLarge(bytes_max)
        if not is_file and len(content) > FIELD_BYTES_MAX:
            raise BadRequest(f"{name} has more than {FIELD_BYTES_MAX} bytes.", param=name)
        memory.resize(before + len(content))
    field = _FIELD.match(name)
    part = FormPart(field=field[0] if field is not None else "", head=head, body=content)
    if part.field == "file" and not is_file:
        raise BadRequest("The file must be sent as a file part, with a file name.", param="file")
    return part


def decode_form(surface: Surface, parts: list[FormPart], digest: str) -> InferenceRequest:
    """Return the request in a form. Raises BadRequest that names the field.

    Args:
        surface: The API that was called.
        parts: The parts of the form.
        digest: The digest of the parts' contents if the request has an Idempotency-Key, else empty.
    """
    texts: dict[str, list[str]] = {}
    for part in parts:
        if part.field not in GATEWAY_OWNED:
            texts.setdefault(part.field, []).append(_text(part))
    for name in ("file", "model"):
        if len(texts.get(name, ())) != 1:
            raise BadRequest(f"The form must have one {name}.", param=name)
    (model,) = texts["model"]
    if not model or len(model) > MODEL_NAME_MAX:
        raise BadRequest("The form must name a model.", param="model")
    fields = {name: _json(values) for name, values in texts.items()}
    check_media({name: raw for name, raw in fields.items() if name != "file"})
    if not all(sample.startswith("data:") for sample in texts.get(SPEAKER_SAMPLES, ())):
        raise BadRequest(f"{SPEAKER_SAMPLES}: media have to be sent as data: URLs.", param=SPEAKER_SAMPLES)
    fields["file"] = _json([digest])
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        prompt=[NO_TOKENS],
        stream=_true(texts.get("stream")),
        include_usage=_true(texts.get("stream_include_usage")),
        choices=1,
        output_tokens_max=None,
        form=tuple(parts),
    )


def _head(part: BodyPartReader) -> tuple[str, bytes]:
    """Return the name of a part, and the header lines for the worker."""
    if not part.name:
        raise BadRequest("A part of the form has no name.")
    head = content_disposition(part.name, part.filename)
    for name, value in part.headers.items():
        if name.upper() not in (CONTENT_DISPOSITION.upper(), CONTENT_LENGTH.upper()):
            head += f"{name}: {value}\r\n".encode("utf-8", "surrogateescape")
    return part.name, head


def _digest(part: FormPart) -> bytes:
    return blake2b(part.body, digest_size=16).digest()


def _text(part: FormPart) -> str:
    return "" if part.field == "file" else part.body[:READ_BYTES_MAX].decode("utf-8", "replace")


def _json(values: list[str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(values[0] if len(values) == 1 else values))


def _true(values: Iterable[str] | None) -> bool:
    """Return whether a field is true, in the spellings that engines accept."""
    return any(text.strip().lower() in _TRUE for text in values or ())
