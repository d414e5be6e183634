"""Which model answers a request for another: weighted splits (canaries), and fallbacks where nobody can.

A split is drawn by what the turns of a conversation have in common, so that one conversation stays with one model:
what the client names (`prompt_cache_key`, `user`), else its first words. A model that nobody serves now takes no
part, nor does one that the tenant may not use.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.domain.context import RequestContext
from gateway.domain.errors import ModelNotFound
from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest
from gateway.domain.tenant import Tenant
from gateway.models.catalogue import Catalogue

TWO_TO_64 = 2.0**64
END_BYTES = 4096


def session_of(request: InferenceRequest, tenant: Tenant) -> int | None:
    """What the client says the turns of a conversation have in common, among those of its tenant."""
    named = request.fields.get("prompt_cache_key") or request.fields.get("user")
    if named is None:
        return None
    return xxh3_64_intdigest(bytes(named), seed=xxh3_64_intdigest(tenant.id.encode()))


class ModelWorkers(Protocol):
    """The workers that can answer requests for a model now."""

    def serving(self, model: str) -> Sequence[object]:
        """Return the deployment's own workers that may get a request for the model."""
        ...

    def providers(self, model: str) -> Sequence[object]:
        """Return the external providers that may get a request for the model."""
        ...


class Choices:
    def __init__(self, catalogue: Catalogue, fleet: ModelWorkers) -> None:
        self._catalogue = catalogue
        self._fleet = fleet

    def split(self, model: Model, request: InferenceRequest, tenant: Tenant) -> Model:
        """The one of its split that answers this request; itself where it has none, or nobody serves any."""
        if not model.splits:
            return model
        able = [
            (found, weight)
            for name, weight in model.splits
            if (found := self._known(name)) is not None
            and weight > 0
            and (found.name == model.name or tenant.allows(found.name))
            and self.serves(found.name, tenant)
        ]
        left = _draw(model, request, tenant) * sum(weight for _, weight in able)
        for found, weight in able:
            left -= weight
            if left < 0:
                return found
        return able[-1][0] if able else model

    def fallbacks(self, ctx: RequestContext) -> Iterator[RequestContext]:
        """The same request for the models that answer in place of it, in order; also in place of what was asked for
        before a split, if that is still there."""
        asked = self._known(ctx.request.model) or ctx.model
        names = dict.fromkeys((*ctx.model.fallbacks, *asked.fallbacks))
        for number, name in enumerate(names, start=1):
            model = self._known(name)
            if model is None or model.name == ctx.model.name or not ctx.tenant.allows(model.name):
                continue
            if self.serves(model.name, ctx.tenant):
                # Another reservation: of what one holds, a repeat under the same id would be none.
                yield msgspec.structs.replace(ctx, id=f"{ctx.id}~{number}", model=model)

    def serves(self, model: str, tenant: Tenant) -> bool:
        """Does anybody who may answer this tenant?"""
        return bool(self._fleet.serving(model) or (tenant.overflows and self._fleet.providers(model)))

    def _known(self, name: str) -> Model | None:
        try:
            return self._catalogue.find(name)
        except ModelNotFound:
            return None


def _draw(model: Model, request: InferenceRequest, tenant: Tenant) -> float:
    session = session_of(request, tenant)
    if session is None:
        session = xxh3_64_intdigest(_first_words(request), seed=xxh3_64_intdigest(tenant.id.encode()))
    return xxh3_64_intdigest(model.name.encode(), seed=session) / TWO_TO_64


def _first_words(request: InferenceRequest) -> bytes:
    """Of the first user's message, which all later turns repeat; of a prompt, all of it; of a sound its end, as
    many begin alike."""
    if request.form is not None:
        return b"".join(bytes(part.body[-END_BYTES:]) for part in request.form if part.field == "file")
    first = next(
        (one for one in request.prompt if isinstance(one, dict) and one.get("role") == "user"),
        request.prompt[0] if request.prompt else None,
    )
    return first.tobytes() if isinstance(first, array) else msgspec.json.encode(first)
