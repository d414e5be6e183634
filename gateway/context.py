"""RequestContext: who asks, what, since when, under which id. Made once, read by every step."""

from dataclasses import dataclass

from gateway.model import Model
from gateway.request import InferenceRequest
from gateway.tenants.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """`received_at`: seconds on the monotonic clock."""

    id: str
    tenant: Tenant
    model: Model
    request: InferenceRequest
    received_at: float
