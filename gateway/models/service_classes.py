"""Finds the service class of a request: the requested class, if the tenant's plan allows it.

    header  >  service_tier  >  key  >  model  >  first class of the plan; `chat` if the plan lists none

A class that the plan does not allow is refused where the header names it, since only clients of this gateway send
the header; a `service_tier`, a key or a model that would lead to such a class is ignored.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from gateway.domain.errors import BadRequest, ClassNotAllowed
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.settings.service_classes import ServiceClassesSettings, ServiceClassSettings
from policies.service_class import BATCH, CHAT, CODE, VOICE, ServiceClass

HEADER = "x-radixgate-class"


class ServiceClasses:
    """The service classes of the settings, and the rules that assign requests to them."""

    def __init__(self, settings: ServiceClassesSettings | None = None) -> None:
        self.reconfigure(settings)

    def reconfigure(self, settings: ServiceClassesSettings | None) -> None:
        """Apply new settings to all requests from now on."""
        settings = settings if settings is not None else ServiceClassesSettings()
        pairs = [
            (VOICE, settings.voice),
            (CODE, settings.code),
            (CHAT, settings.chat),
            (BATCH, settings.batch),
        ]
        self._classes = {kind.name: _with_settings(kind, given) for kind, given in pairs}
        self._tiers = {tier: kind.name for kind, given in pairs for tier in (kind.name, *given.service_tiers)}
        self._models = [(pattern, kind.name) for kind, given in pairs for pattern in given.models]
        self.batch = self._classes[BATCH.name]

    def __getitem__(self, name: str) -> ServiceClass:
        return self._classes[name]

    def __iter__(self) -> Iterator[ServiceClass]:
        return iter(self._classes.values())

    def find(
        self, requested: str | None, request: InferenceRequest, tenant: Tenant, model: str
    ) -> ServiceClass:
        """Return the class of a request; `requested` is the header's. Raises BadRequest, ClassNotAllowed."""
        allowed = tenant.plan.classes
        if requested is not None:
            if requested not in self._classes:
                raise BadRequest(f"{HEADER} is one of {', '.join(self._classes)}.")
            if allowed and requested not in allowed:
                raise ClassNotAllowed(requested)
            return self._classes[requested]
        of_tier = self._class_of_tier(request) if "service_tier" in request.fields else None
        of_model = self._class_of_model(model) if self._models else None
        for name in (of_tier, tenant.service_class, of_model):
            if name is not None and (not allowed or name in allowed):
                return self._classes[name]
        return self._classes[allowed[0] if allowed else CHAT.name]

    def without_own_tiers(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request without a `service_tier` that names one of the gateway's own classes.

        Workers have no such tiers.
        """
        if "service_tier" in request.fields and _requested_tier(request) in self._classes:
            fields = {name: value for name, value in request.fields.items() if name != "service_tier"}
            return msgspec.structs.replace(request, fields=fields)
        return request

    def _class_of_tier(self, request: InferenceRequest) -> str | None:
        tier = _requested_tier(request)
        return self._tiers.get(tier) if tier is not None else None

    def _class_of_model(self, model: str) -> str | None:
        for pattern, name in self._models:
            if fnmatchcase(model, pattern):
                return name
        return None


def _requested_tier(request: InferenceRequest) -> str | None:
    """Return the request's `service_tier`, if it is a string."""
    raw = request.fields.get("service_tier")
    if raw is None:
        return None
    tier = msgspec.json.decode(raw)
    return tier if isinstance(tier, str) else None


def _with_settings(kind: ServiceClass, settings: ServiceClassSettings) -> ServiceClass:
    return msgspec.structs.replace(
        kind, ttft_seconds=settings.ttft_ms / 1000, late=settings.late, sheds=settings.sheds
    )
