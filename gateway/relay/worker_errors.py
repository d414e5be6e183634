"""Reads the errors that workers report: as a whole answer, or as a frame of a stream.

Every engine has a shape of its own for them; here they get one, and lose addresses and files (redaction.py). Of an
error that comes with status 200 it is decided whether the client made a mistake or the worker failed.
"""

import re

import msgspec

from gateway.domain.errors import ContextExceeded
from gateway.relay.context_refusal import context_refusal
from gateway.relay.redaction import without_addresses

NAME_LENGTH_MAX = 200

ERROR_FIELD = b'"error"'
"""Part of every frame and answer that reports an error; inside generated text the quotes would be escaped."""
_DATA = re.compile(rb"^data: ?(\{[^\r\n]*)", re.MULTILINE)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class WorkerErrorFields(msgspec.Struct):
    """The fields of OpenAI's error object, as a worker filled them in."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None

    @property
    def context_refusal(self) -> ContextExceeded | None:
        """The error for a request that exceeds the context, if the worker refused it for that."""
        return context_refusal(self.message, (self.code, self.type), self.param)


class _ErrorBody(msgspec.Struct):
    """A body with an error object; some engines put its fields at the top level."""

    error: WorkerErrorFields | str | None = None
    message: str = ""
    detail: msgspec.Raw = msgspec.Raw(b"null")
    code: str | int | None = None


def read_error(body: bytes) -> WorkerErrorFields:
    """Return a worker's error without addresses; the message is empty where the body is not understood."""
    try:
        decoded = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WorkerErrorFields()
    found = decoded.error
    if not isinstance(found, WorkerErrorFields):
        text = found or decoded.message or _text(decoded.detail)
        found = WorkerErrorFields(message=text, code=decoded.code)
    return WorkerErrorFields(
        message=without_addresses(found.message),
        type=without_addresses(found.type)[:NAME_LENGTH_MAX] if found.type else None,
        param=found.param and without_addresses(found.param)[:NAME_LENGTH_MAX],
        code=without_addresses(found.code)[:NAME_LENGTH_MAX] if isinstance(found.code, str) else None,
    )


def _text(raw: msgspec.Raw) -> str:
    """Return a JSON string's text; nothing for any other value."""
    decoded = msgspec.json.decode(raw)
    return decoded if isinstance(decoded, str) else ""


class StreamError(msgspec.Struct, frozen=True):
    """An error that a worker reported in the place of an answer, or in the middle of one."""

    refusal: int | None
    """The status of a mistake of the client, 4xx; None for any other error."""
    fields: WorkerErrorFields


def error_in_answer(body: bytes) -> StreamError | None:
    """Return the error that a JSON object reports in the place of an answer; None if it reports none."""
    if ERROR_FIELD not in body:
        return None
    try:
        fields = _FIELDS.decode(body)
        error = msgspec.json.decode(fields.get("error", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not error and bytes(fields.get("object", b"")) != ERROR_FIELD:
        return None  # The field of that name is empty, or somewhere deeper.
    code = error.get("code") if isinstance(error, dict) else None
    if code is None and "code" in fields:
        code = msgspec.json.decode(fields["code"])
    reported = read_error(body)
    if isinstance(code, int) and 400 <= code < 500:
        return StreamError(code, reported)
    return StreamError(400 if reported.context_refusal is not None else None, reported)


def error_in_frame(frame: bytes) -> StreamError | None:
    """Return the error that a frame of a stream reports; None if it reports none."""
    data = _DATA.search(frame)
    return error_in_answer(data[1]) if data is not None else None
