"""A place that was given, and what bounds the giving."""

from dataclasses import dataclass

import msgspec

from gateway.dispatch.pairs import Through
from gateway.domain.model import Model
from gateway.fleet.loads import Place
from gateway.fleet.ranks import RankPlace
from gateway.fleet.worker import Worker
from gateway.queueing.shared.store import SharedTicket
from gateway.quotas.prices import Prices
from gateway.quotas.quota import Lease
from gateway.telemetry.record import PromptDetails, Usage
from policies.queueing.cost_weights import CostWeights
from policies.routing.protocol import Route
from policies.service_class import BATCH, ServiceClass
from radix_cache.match import WorkerId
from workers.adapters.disaggregation import Pair


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A place that was given: where, why, and since when. `shared`: its name among all gateways' places.

    `worker`: who answers; `computes`: who computes the prompt, mostly the same, and else `answering` is the name of
    the answer's own place there. `through`: whom to call. `rank`: whose cache it is to find, among several at who
    computes. `allowance`: what is held of a provider's own limits.
    """

    worker: Worker
    computes: Worker
    through: Through
    route: Route
    place: Place
    shared: SharedTicket
    answering: SharedTicket | None = None
    rank: RankPlace | None = None
    allowance: Lease | None = None
    tokens_ahead: int
    since: float

    @property
    def outside(self) -> bool:
        """Is it a provider that has the request?"""
        return self.worker.provider is not None

    @property
    def holders(self) -> tuple[WorkerId, ...]:
        """Who has the prompt's KV in a prefix cache once it is computed."""
        if self.computes is self.worker:
            return (self.worker.id,)
        half = self.worker.half
        keeps = half is not None and half.alone
        return (self.computes.id, self.worker.id) if keeps else (self.computes.id,)

    def prices(self, model: Model) -> Prices | None:
        """Of who answers."""
        provider = self.worker.provider
        return provider.prices_of(model) if provider is not None else model.prices

    def cached(self, usage: Usage | None) -> Usage | None:
        """What the worker that answers reports, less the tokens that it only was handed over."""
        if usage is None or not isinstance(self.through, Pair):
            return usage
        details = PromptDetails(self.through.cached(usage.cached_tokens))
        return msgspec.structs.replace(usage, prompt_tokens_details=details)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`release_window_tokens`: see policies/admission. `attempts_max`: workers tried before the first byte.

    `batch`: what others are demoted to. `background`: batch work has queues of its own, behind all others; a policy
    that knows classes itself needs none. `preempts`, `hold`: see settings.
    """

    release_window_tokens: int
    costs: CostWeights
    attempts_max: int
    batch: ServiceClass = BATCH
    background: bool = True
    preempts: bool = False
    hold: float | None = None
