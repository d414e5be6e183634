"""RequestContext: who asks, what, since when, under which id. Made once, read by every step."""

import msgspec

from gateway.model import Model
from gateway.quotas.quota import Once
from gateway.request import InferenceRequest
from gateway.tenants.tenant import Tenant


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`received_at`: seconds on the monotonic clock. `once`: the client's own key, under which it may repeat it."""

    id: str
    tenant: Tenant
    model: Model
    request: InferenceRequest
    received_at: float
    once: Once | None = None
