"""A worker's words, before a client gets them: what is said of the request stays, what says where workers are goes.

Engines quote addresses of their own in errors (where they could not connect, what they listen on), and tell with
`cached_tokens` how much of a prompt somebody has sent before. The latter is a tenant's own business only where the
engine keeps tenants apart.
"""

import re

import msgspec

MESSAGE_LENGTH_MAX = 2000
NAME_LENGTH_MAX = 200

_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`<>]+|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)"
    r"|\[[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]*\](?::\d{1,5})?|\b(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}\b"
)
_ERROR = b'"error"'
"""In every frame that reports one; in an answer's own text the quotes would be escaped."""
_FRAME = re.compile(rb'^data: ?(\{ ?"(?:error"|object" ?: ?"error")[^\r\n]*)', re.M)


class WorkerError(msgspec.Struct):
    """The fields of OpenAI's error object."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct):
    """Some engines put its fields at the top."""

    error: WorkerError | str | None = None
    message: str = ""
    code: str | int | None = None


def read_error(body: bytes) -> WorkerError:
    """What a worker says of an error, fit for a client; no words where they are not understood."""
    try:
        decoded = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WorkerError()
    found = decoded.error
    if not isinstance(found, WorkerError):
        found = WorkerError(message=found or decoded.message, code=decoded.code)
    return WorkerError(
        message=without_addresses(found.message),
        param=found.param and without_addresses(found.param)[:NAME_LENGTH_MAX],
        code=without_addresses(found.code)[:NAME_LENGTH_MAX] if isinstance(found.code, str) else None,
    )


def without_addresses(text: str) -> str:
    """The text, shortened, with dots in place of addresses."""
    return _ADDRESS.sub("...", text[:MESSAGE_LENGTH_MAX])


def with_safe_errors(frames: bytes) -> bytes:
    """Whole frames of a stream; those that report an error in our shape and without addresses."""
    return _FRAME.sub(_safe_frame, frames) if _ERROR in frames else frames


def without_cached_tokens(body: bytes) -> bytes:
    """A body or chunk without `usage.prompt_tokens_details.cached_tokens`; what is not understood stays."""
    try:
        fields = _FIELDS.decode(body)
        usage = _FIELDS.decode(fields["usage"])
        details = _FIELDS.decode(usage["prompt_tokens_details"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return body
    if details.pop("cached_tokens", None) is None:
        return body
    usage["prompt_tokens_details"] = msgspec.Raw(msgspec.json.encode(details) if details else b"null")
    return msgspec.json.encode({**fields, "usage": usage})


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _safe_frame(found: "re.Match[bytes]") -> bytes:
    said = read_error(found[1])
    error = {
        "message": said.message or "The worker reported an error.",
        "type": "server_error",
        "param": said.param,
        "code": said.code,
    }
    return b"data: " + msgspec.json.encode({"error": error})
