"""When a certificate in a PEM file expires, read from its DER encoding without a crypto package."""

import ssl
from datetime import UTC, datetime

UTC_TIME, GENERALIZED_TIME, SEQUENCE, EXPLICIT_VERSION = 0x17, 0x18, 0x30, 0xA0
PEM_END = "-----END CERTIFICATE-----"


def expires_at(path: str) -> float | None:
    """Return when the first certificate of the file expires, in Unix time; None where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
        first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(PEM_END) + len(PEM_END)]
        return _not_after(ssl.PEM_cert_to_DER_cert(first))
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """Return the end of the validity of a certificate (RFC 5280, 4.1). Raises ValueError, IndexError."""
    _, certificate, _ = _element(der, 0)
    _, at, _ = _element(der, certificate)  # the part that is signed
    tag, _, following = _element(der, at)
    if tag == EXPLICIT_VERSION:
        at = following
    for _ in range(3):  # serial number, signature algorithm, issuer
        _, _, at = _element(der, at)
    tag, validity, _ = _element(der, at)
    if tag != SEQUENCE:
        raise ValueError("no validity where it should be")
    _, _, after = _element(der, validity)
    tag, begin, end = _element(der, after)
    text = der[begin:end].decode("ascii")
    if tag == UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError("no time where it should be")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, beginning and end of the contents of the element at this position."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    return tag, begin, begin + length
