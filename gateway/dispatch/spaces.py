"""Whose cache does an engine speak of? From the salt and the adapter of its events to a namespace of ours."""

from collections.abc import Mapping

from gateway.dispatch.catalogue import Catalogue
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.prefixes import Prefixes
from gateway.errors import ModelNotFound
from radix_cache.follower import Unfit
from radix_cache.match import WorkerId
from radix_cache.namespace import Space


class Spaces:
    """`groups`: isolation group by the salt that the engine is given for it."""

    def __init__(
        self, fleet: Fleet, catalogue: Catalogue, prefixes: Prefixes, groups: Mapping[str, str]
    ) -> None:
        self._fleet = fleet
        self._catalogue = catalogue
        self._prefixes = prefixes
        self._groups = groups

    def of(self, worker: WorkerId, salt: str, adapter: str, page_size: int) -> Space | None:
        """None if it is nobody's here.

        Raises Unfit where our blocks are no multiple of its pages or not of its tokens, or where a worker has
        several models and does not say which.
        """
        models, group = self._fleet[worker].models, self._groups.get(salt)
        name = adapter if adapter in models else next(iter(models), "")
        if group is None:
            return None
        if not adapter and len(models) != 1:
            raise Unfit
        try:
            model = self._catalogue.find(name)
        except ModelNotFound:
            return None
        if not model.encoder.exact or model.block_size % page_size:
            raise Unfit
        return self._prefixes.space(model, group)
