"""Decompresses request bodies (gzip, deflate, zstd) within the bounds of an uncompressed body.

A few kilobytes can become as many gigabytes. So a body is decompressed only once the client is authenticated, in
slices, each of which is accounted for before the next.
"""

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Any

from gateway.domain.errors import BadRequest, PayloadTooLarge, UnsupportedEncoding
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request_headers import IDENTITY, RequestHeaders, content_encoding

if sys.version_info >= (3, 14):  # pragma: no cover
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

FIRST_SLICE_BYTES = 64 * 1024
"""The bytes that are decompressed on the event loop; the rest of longer bodies is decompressed in a thread."""
SLICE_BYTES = 1024**2
ZSTD_WINDOW_LOG_MAX = 23
"""Windows of up to 8 MiB, as RFC 9659 sets for HTTP; a larger one would take memory that is not accounted for."""


def _zstd() -> Any:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX})


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "x-gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "deflate": zlib.decompressobj,
    "zstd": _zstd,
}
"""The factory of the decompressor for each Content-Encoding."""


def decompressor_for(headers: RequestHeaders) -> Any:
    """Return the decompressor of a body; None if it is sent as it is. Raises UnsupportedEncoding."""
    encoding = content_encoding(headers)
    if encoding == IDENTITY:
        return None
    make = DECOMPRESSORS.get(encoding)
    if make is None:
        raise UnsupportedEncoding(encoding)
    return make()


async def decompress(compressed: bytes, decompressor: Any, memory: MemoryLease, bytes_max: int) -> bytes:
    """Return the decompressed body.

    Args:
        compressed: The whole compressed body.
        decompressor: Of `decompressor_for`.
        memory: Takes the memory of the decompressed body.
        bytes_max: Largest decompressed body.

    Raises:
        PayloadTooLarge: The decompressed body is too large.
        Overloaded: The memory of all bodies is used up.
        BadRequest: The body is not compressed in this way, or is not complete.
    """
    whole, left = bytearray(), compressed
    try:
        while not decompressor.eof:
            size = SLICE_BYTES if whole else FIRST_SLICE_BYTES
            step = decompressor.decompress
            piece = await asyncio.to_thread(step, left, size) if whole else step(left, size)
            left = getattr(decompressor, "unconsumed_tail", b"")
            if len(whole) + len(piece) > bytes_max:
                raise PayloadTooLarge(bytes_max)
            whole += piece
            memory.reserve(len(piece))
            if not piece and not left and not decompressor.eof:
                raise BadRequest("The compressed body is not complete.")
    except (zlib.error, ZstdError) as err:
        raise BadRequest("The body is not compressed as its Content-Encoding says.") from err
    if decompressor.unused_data:
        raise BadRequest("The compressed body has more behind its end.")
    return bytes(whole)
