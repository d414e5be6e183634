"""The identity of a request and its answer: request id, presented API key, tenant, server name."""

import os
import time

from aiohttp import web

from gateway.domain.request_headers import RequestHeaders, bearer_token, credential_header
from gateway.domain.tenant import Tenant

SERVER = "radixgate"
"""Value of the `server` header of every answer."""

CALLER = web.RequestKey("caller", tuple[str, str])
"""Tenant id and key id of an aiohttp request, present once the key has been accepted."""

REQUEST_ID = web.RequestKey("request_id", str)


def set_caller(http: web.Request, tenant: Tenant) -> None:
    """Record the tenant and its key on the request, for the access log."""
    http[CALLER] = tenant.id, tenant.key_id


def new_request_id() -> str:
    """Return an id that is unique among all gateways: the time in milliseconds, and 80 random bits.

    Later requests have larger ids, so that the index of the usage ledger grows at its end; each random id would
    change a page of it somewhere. Clients cannot choose the id, because quotas are idempotent by it.
    """
    return f"req-{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def presented_key(headers: RequestHeaders) -> str | None:
    """Return the API key that was sent as a bearer token, or else as `x-api-key`, or else as Azure's `api-key`.

    Bytes that are not valid UTF-8 are surrogates in the returned key. Raises Unauthenticated if the header was sent
    with different values.
    """
    authorization = credential_header(headers, "authorization")
    if authorization is not None:
        return bearer_token(authorization)
    return credential_header(headers, "x-api-key") or credential_header(headers, "api-key")
