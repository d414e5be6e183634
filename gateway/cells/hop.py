"""The header of a request that one cell relays to another: the client's address, signed by the sending cell.

    x-radixgate-hop: <the client's address, or -> <HMAC-SHA256 over the receiving cell, the address and the API key>

A request with this header is served where it arrives, so that it is relayed once at most. The signature holds for
one cell and one API key: no client can make it, to choose its cell or its address.
"""

import hashlib
import hmac

HEADER = "x-radixgate-hop"
UNKNOWN = "-"


class HopInvalid(Exception):
    """The header was not made by a gateway of this deployment for this cell and this API key."""


class HopSignature:
    """Makes and checks the header."""

    def __init__(self, deployment_secret: bytes) -> None:
        self._key = hmac.digest(deployment_secret, b"radixgate relays between cells", hashlib.sha256)

    def header(self, cell: str, address: str | None, api_key: str | None) -> str:
        """Return the header of a request for a cell, with the address of its client if that is known."""
        shown = address or UNKNOWN
        return f"{shown} {self._mac(cell, shown, api_key)}"

    def address(self, header: str, cell: str, api_key: str | None) -> str | None:
        """Return the client's address from a header that arrives at a cell; None if unknown. Raises HopInvalid."""
        shown, _, mac = header.partition(" ")
        if not hmac.compare_digest(mac.encode(errors="replace"), self._mac(cell, shown, api_key).encode()):
            raise HopInvalid
        return None if shown == UNKNOWN else shown

    def _mac(self, cell: str, address: str, api_key: str | None) -> str:
        text = "\0".join((cell, address, api_key or "")).encode(errors="surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256).hex()
