"""Idempotency keys: requests that their client may repeat, as SDKs send `Idempotency-Key` with their retries.

A repeat is refused while another attempt is being answered, if its content is another one, and beyond a number of
attempts. No answer is kept: each attempt is computed again and charged, since one price for all attempts would make
the key a discount. This file only names a request under its key, as hashes; the quota store recognises repeats with
the reservation: gateway/quotas/lua/reserve.lua, while Redis is away local_store.py.
"""

from hashlib import blake2b

from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.quotas.quota_store import IdempotencyKey


def repeatable(key: str, tenant: Tenant, request: InferenceRequest, repeats_max: int) -> IdempotencyKey:
    """Return the request's identity under the client's key, as hashes."""
    name = blake2b(f"{tenant.id}\0{key}".encode(), digest_size=16)
    content = blake2b(request.surface.encode(), digest_size=16)
    for field, value in sorted(request.fields.items()):
        raw = bytes(value)
        content.update(f"\0{field}\0{len(raw)}\0".encode("utf-8", "surrogatepass"))
        content.update(raw)
    return IdempotencyKey(name=name.hexdigest(), fingerprint=content.hexdigest(), repeats_max=repeats_max)
