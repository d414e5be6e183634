"""RequestContext: the values that every step of a request's way through the gateway reads."""

import msgspec

from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.quotas.quota_store import IdempotencyKey
from policies.service_class import CHAT, ServiceClass
from workers.carrier import Carrier


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An authenticated request, with its tenant, its model and its deadlines; made once per request."""

    id: str
    tenant: Tenant
    model: Model
    request: InferenceRequest
    received_at: float
    """Seconds on the monotonic clock."""
    service_class: ServiceClass = CHAT
    expires_at: float | None = None
    """When the client stops waiting, in seconds on the monotonic clock; None where the client sets no timeout."""
    comment_seconds: float | None = None
    """The interval of comments in the stream of a client that waits, as a keep-alive; None: no comments."""
    idempotency_key: IdempotencyKey | None = None
    """The client's idempotency key, under which the request may be repeated so many times; None without a key."""
    carrier: Carrier | None = None
    """Carries the request to its worker; None: the gateway does, over its own connections."""
