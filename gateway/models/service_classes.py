"""Of which service class a request is: what it asks for, within what its plan allows.

    header  >  service_tier  >  key  >  model  >  first class of the plan

A class that the plan does not have is refused where the header names it, for that is a client of this gateway; a
`service_tier` or a model that would lead to one is passed over.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from gateway.domain.errors import BadRequest, ClassNotAllowed
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.settings.classes import ServiceClassesSettings, ServiceClassSettings
from policies.service_class import BATCH, CHAT, CODE, VOICE, ServiceClass

HEADER = "x-radixgate-class"


class ServiceClasses:
    """Those of the settings."""

    def __init__(self, settings: ServiceClassesSettings | None = None) -> None:
        self.restate(settings)

    def restate(self, settings: ServiceClassesSettings | None) -> None:
        """For whoever comes from now on."""
        given = settings if settings is not None else ServiceClassesSettings()
        pairs = [(VOICE, given.voice), (CODE, given.code), (CHAT, given.chat), (BATCH, given.batch)]
        self._classes = {kind.name: _of(kind, told) for kind, told in pairs}
        self._tiers = {tier: kind.name for kind, told in pairs for tier in (kind.name, *told.service_tiers)}
        self._models = [(pattern, kind.name) for kind, told in pairs for pattern in told.models]
        self.batch = self._classes[BATCH.name]

    def __getitem__(self, name: str) -> ServiceClass:
        return self._classes[name]

    def __iter__(self) -> Iterator[ServiceClass]:
        return iter(self._classes.values())

    def of(self, asked: str | None, request: InferenceRequest, tenant: Tenant, model: str) -> ServiceClass:
        """The class of this request. `asked`: by the header. Raises BadRequest, ClassNotAllowed."""
        allowed = tenant.plan.classes
        if asked is not None:
            if asked not in self._classes:
                raise BadRequest(f"{HEADER} is one of {', '.join(self._classes)}.")
            if allowed and asked not in allowed:
                raise ClassNotAllowed(asked)
            return self._classes[asked]
        for name in (self._tier(request), tenant.service_class, self._of_model(model)):
            if name is not None and (not allowed or name in allowed):
                return self._classes[name]
        return self._classes[allowed[0] if allowed else CHAT.name]

    def sent(self, request: InferenceRequest) -> InferenceRequest:
        """As a worker gets it: it has never heard of tiers with these names."""
        if (tier := _text(request)) in self._classes and tier is not None:
            fields = {name: value for name, value in request.fields.items() if name != "service_tier"}
            return msgspec.structs.replace(request, fields=fields)
        return request

    def _tier(self, request: InferenceRequest) -> str | None:
        tier = _text(request)
        return self._tiers.get(tier) if tier is not None else None

    def _of_model(self, model: str) -> str | None:
        return next((name for pattern, name in self._models if fnmatchcase(model, pattern)), None)


def _text(request: InferenceRequest) -> str | None:
    """`service_tier`, if it is a text."""
    given = request.fields.get("service_tier")
    if given is None:
        return None
    tier = msgspec.json.decode(given)
    return tier if isinstance(tier, str) else None


def _of(kind: ServiceClass, told: ServiceClassSettings) -> ServiceClass:
    return msgspec.structs.replace(kind, ttft_seconds=told.ttft_ms / 1000, late=told.late, sheds=told.sheds)
