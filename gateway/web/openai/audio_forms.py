"""What comes with a file: transcriptions and translations of speech, as multipart/form-data.

    client's form   model | language | file, 25 MB | timestamp_granularities[] | timestamp_granularities[]
    fields          model, language, file, timestamp_granularities      what the gateway looks at, as JSON
    worker's form   the same parts in their order, less those whose field is no more among the fields

Contents are kept once, as they came. A part's name is written anew: where readers of forms differ over a name, a
client could say one thing to the gateway and another to the worker.
"""

import asyncio
import re
from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from aiohttp import BodyPartReader
from aiohttp.hdrs import CONTENT_DISPOSITION, CONTENT_LENGTH

from gateway.domain.errors import BadRequest, PayloadTooLarge
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.bodies import media_check
from gateway.web.bodies.body_reader import BodyReader
from gateway.web.bodies.multipart import MultipartForm
from gateway.web.exchange import HttpExchange
from gateway.web.openai.inference_requests import GATEWAY_OWNED, MODEL_NAME_MAX, NO_TOKENS
from gateway.web.request_identity import set_caller
from workers.adapter import Part
from workers.adapters.multipart import disposition

PARTS_MAX = 64
FIELD_BYTES_MAX = 4 * 1024**2
"""Of a part that is no file: voices to be known come as `data:` URLs."""
READ_BYTES_MAX = 4096
"""Of a field, as far as the gateway looks at it."""

VOICES = "known_speaker_references"
_PLACE = re.compile(r"\s*(?!data:)[^:]{0,20}[:/]")
_FIELD = re.compile(r"[^\[.]*")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


class FormExchange(HttpExchange):
    """See Exchange."""

    async def request(self, tenant: Tenant) -> InferenceRequest:
        set_caller(self._http, tenant)
        # Files in it are part of what may be repeated under a key.
        digest = blake2b(digest_size=16) if self.idempotency_key is not None else None
        bytes_max = self._bodies.body_bytes_max
        if (self._http.content_length or 0) > bytes_max:
            raise PayloadTooLarge(bytes_max)
        form, parts = MultipartForm(self._http, self._body_seconds_max), list[Part]()
        with self._bodies.reading() as held:
            async for came in form.parts():
                if len(parts) == PARTS_MAX:
                    raise BadRequest(f"The form has more than {PARTS_MAX} parts.")
                part = await _read(came, form, held, bytes_max)
                if digest is not None:
                    digest.update(await asyncio.to_thread(_digest, part))
                parts.append(part)
        return decode(self.surface, parts, digest.hexdigest() if digest is not None else "")


async def _read(came: BodyPartReader, form: MultipartForm, held: BodyReader, bytes_max: int) -> Part:
    """One part, within what is left for it. Raises what MultipartForm raises, PayloadTooLarge, Overloaded."""
    name, head = _head(came)
    content = bytearray()
    is_file, before = came.filename is not None, held.size + len(head)
    held.keep(before)
    while piece := await form.piece(came):
        content += piece
        if before + len(content) > bytes_max:
            raise PayloadTooLarge(bytes_max)
        if not is_file and len(content) > FIELD_BYTES_MAX:
            raise BadRequest(f"{name} has more than {FIELD_BYTES_MAX} bytes.", param=name)
        held.keep(before + len(content))
    field = _FIELD.match(name)
    part = Part(field=field[0] if field is not None else "", head=head, body=content)
    if part.field == "file" and not is_file:
        raise BadRequest("The file must come as one, with a file name.", param="file")
    return part


def decode(surface: Surface, parts: list[Part], digest: str) -> InferenceRequest:
    """The request in a form. `digest`: of its files, where that matters. Raises BadRequest that names the field."""
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
    fields = {name: _json(said) for name, said in texts.items()}
    media_check.check({name: raw for name, raw in fields.items() if name != "file"})
    if any(_PLACE.match(said) for said in texts.get(VOICES, ())):
        raise BadRequest(f"{VOICES}: media come as data: URLs.", param=VOICES)
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
    """Its name, and its header lines."""
    if not part.name:
        raise BadRequest("A part of the form has no name.")
    head = disposition(part.name, part.filename)
    for name, value in part.headers.items():
        if name.upper() not in (CONTENT_DISPOSITION.upper(), CONTENT_LENGTH.upper()):
            head += f"{name}: {value}\r\n".encode("utf-8", "surrogateescape")
    return part.name, head


def _digest(part: Part) -> bytes:
    return blake2b(part.body, digest_size=16).digest()


def _text(part: Part) -> str:
    return "" if part.field == "file" else part.body[:READ_BYTES_MAX].decode("utf-8", "replace")


def _json(said: list[str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(said[0] if len(said) == 1 else said))


def _true(said: Iterable[str] | None) -> bool:
    """As engines read it."""
    return any(text.strip().lower() in _TRUE for text in said or ())
