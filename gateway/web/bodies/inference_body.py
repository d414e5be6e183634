"""Decodes the body of an inference request within its bounds and the memory that all requests share."""

import asyncio
from array import array

from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.bodies.body_decoding import LONG_BYTES
from gateway.web.bodies.body_limits import BYTE_COPIES, check_values
from gateway.web.dialect import Dialect

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark, which some clients write before the JSON."""

ITEM_COPIES = 2
"""Copies of a response's items in memory: as received, as stored, and as messages for the worker."""


async def decode_inference_body(
    body: bytes, dialect: Dialect, tenant: Tenant, memory: MemoryLease
) -> InferenceRequest:
    """Return the request in a body.

    Args:
        body: The whole body, without Content-Encoding.
        dialect: The API that was called.
        tenant: The tenant that sent it.
        memory: Takes the memory of the request.

    Raises BadRequest, NotFound, Overloaded.
    """
    if body[:3] == BYTE_ORDER_MARK:
        body = body[3:]
    # Reserved before decoding, since a decoded body may be many times as large.
    copies = ITEM_COPIES if dialect.surface is Surface.RESPONSES else 1
    long = len(body) > LONG_BYTES
    memory.resize(await asyncio.to_thread(check_values, body, copies) if long else check_values(body, copies))
    request = await dialect.decode_request(body, tenant)
    if len(body) > LONG_BYTES and isinstance(request.prompt[0], array):
        # An array takes less than the estimate for a list of numbers.
        memory.resize(len(body) * BYTE_COPIES)
    if request.body_bytes > len(body) + LONG_BYTES:
        # The earlier items of a stored conversation take memory, too.
        memory.reserve((request.body_bytes - len(body)) * 2 * BYTE_COPIES)
    return request
