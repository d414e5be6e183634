"""Chooses the model that answers a request: weighted splits (canaries), and fallbacks for models without workers.

The choice within a split depends on a key that is equal in all turns of a conversation (`prompt_cache_key` or
`user` of the client, else the first message), so that a conversation stays with one model. Models without workers,
and models that the tenant may not use, are left out.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.domain.errors import ModelNotFound
from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest
from gateway.domain.request_context import RequestContext
from gateway.domain.tenant import Tenant
from gateway.models.catalogue import Catalogue

TWO_TO_64 = 2.0**64
AUDIO_END_BYTES = 4096


def session_key(request: InferenceRequest, tenant: Tenant) -> int | None:
    """Return a hash of the tenant and the key that the client sends with each turn; None if it sends none."""
    named = request.fields.get("prompt_cache_key") or request.fields.get("user")
    if named is None:
        return None
    return xxh3_64_intdigest(bytes(named), seed=xxh3_64_intdigest(tenant.id.encode()))


class WorkersByModel(Protocol):
    """The workers that can answer requests for a model now."""

    def serving(self, model: str) -> Sequence[object]:
        """Return the deployment's own workers that may get a request for the model."""
        ...

    def providers(self, model: str) -> Sequence[object]:
        """Return the external providers that may get a request for the model."""
        ...


class ModelSelection:
    """Chooses among the models of a split, and lists the fallbacks of a model."""

    def __init__(self, catalogue: Catalogue, fleet: WorkersByModel) -> None:
        self._catalogue = catalogue
        self._fleet = fleet

    def split(self, model: Model, request: InferenceRequest, tenant: Tenant) -> Model:
        """Return the model of the split that answers the request; `model` itself if no model of a split can."""
        if not model.splits:
            return model
        candidates = [
            (found, weight)
            for name, weight in model.splits
            if (found := self._find(name)) is not None
            and weight > 0
            and (found.name == model.name or tenant.allows(found.name))
            and self.is_served(found.name, tenant)
        ]
        left = _split_position(model, request, tenant) * sum(weight for _, weight in candidates)
        for found, weight in candidates:
            left -= weight
            if left < 0:
                return found
        return candidates[-1][0] if candidates else model

    def fallbacks(self, ctx: RequestContext) -> Iterator[RequestContext]:
        """Yield the request once for each fallback model, in order.

        Fallbacks of the model that the client named come after those of the model that a split chose.
        """
        requested = self._find(ctx.request.model, ctx.tenant.id) or ctx.model
        names = dict.fromkeys((*ctx.model.fallbacks, *requested.fallbacks))
        for number, name in enumerate(names, start=1):
            model = self._find(name)
            if model is None or model.name == ctx.model.name or not ctx.tenant.allows(model.name):
                continue
            if self.is_served(model.name, ctx.tenant):
                # A new id gets a reservation of its own; a repeat of the same id would reserve nothing.
                yield msgspec.structs.replace(ctx, id=f"{ctx.id}~{number}", model=model)

    def is_served(self, model: str, tenant: Tenant) -> bool:
        """Return whether a worker, or a provider that the tenant may overflow to, serves the model."""
        return bool(self._fleet.serving(model) or (tenant.may_overflow and self._fleet.providers(model)))

    def _find(self, name: str, tenant: str = "") -> Model | None:
        try:
            return self._catalogue.find(name, tenant)
        except ModelNotFound:
            return None


def _split_position(model: Model, request: InferenceRequest, tenant: Tenant) -> float:
    session = session_key(request, tenant)
    if session is None:
        session = xxh3_64_intdigest(_first_message(request), seed=xxh3_64_intdigest(tenant.id.encode()))
    return xxh3_64_intdigest(model.name.encode(), seed=session) / TWO_TO_64


def _first_message(request: InferenceRequest) -> bytes:
    """Return what identifies a conversation without a key.

    That is the first message of the user, which all later turns repeat; a whole prompt; or the end of an audio
    file, since many begin alike.
    """
    if request.form is not None:
        return b"".join(bytes(part.body[-AUDIO_END_BYTES:]) for part in request.form if part.field == "file")
    first = next(
        (one for one in request.prompt if isinstance(one, dict) and one.get("role") == "user"),
        request.prompt[0] if request.prompt else None,
    )
    return first.tobytes() if isinstance(first, array) else msgspec.json.encode(first)
