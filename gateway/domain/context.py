"""RequestContext: who asks, what, since when, under which id. Made once, read by every step."""

import msgspec

from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.quotas.quota import Once
from policies.service_class import CHAT, ServiceClass


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`received_at`: seconds on the monotonic clock. `once`: the client's own key, under which it may repeat it.
    `expires_at`: the client is gone by then, on the same clock."""

    id: str
    tenant: Tenant
    model: Model
    request: InferenceRequest
    received_at: float
    service_class: ServiceClass = CHAT
    expires_at: float | None = None
    once: Once | None = None
