"""Reading of request headers that have one meaning only, for the APIs of tenants and of operators."""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.errors import Unauthenticated, UnsupportedEncoding

IDENTITY = "identity"
"""The content encoding of a body that is sent as it is."""


class RequestHeaders(Protocol):
    """The headers of a request, as aiohttp and DirectRequest have them."""

    def get(self, name: str, /) -> str | None:
        """Return the first value of a header; None without the header."""
        ...

    def getall(self, name: str, default: Sequence[str], /) -> Sequence[str]:
        """Return all values of a header; `default` without the header."""
        ...


def credential_header(headers: RequestHeaders, name: str) -> str | None:
    """Return the value of a header with a secret; None without the header.

    Raises Unauthenticated if it was sent with different values: a proxy may have checked another one of them.
    """
    values = headers.getall(name, ())
    if len(values) > 1 and len(set(values)) > 1:
        raise Unauthenticated(f"The header {name} was sent with different values; send one.")
    return values[0] if values else None


def bearer_token(authorization: str) -> str | None:
    """Return the token in the value of an `Authorization` header; None with another scheme than `Bearer`."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def content_encoding(headers: RequestHeaders) -> str:
    """Return how the body is encoded, in small letters: `identity` also where the header is empty or missing."""
    encoding = headers.get("content-encoding")
    return encoding.strip().lower() or IDENTITY if encoding is not None else IDENTITY


def require_identity(headers: RequestHeaders) -> None:
    """Check that the body is sent as it is. Raises UnsupportedEncoding."""
    encoding = content_encoding(headers)
    if encoding != IDENTITY:
        raise UnsupportedEncoding(encoding)
