"""Finds the namespace of a KV event by its salt and its adapter."""

from collections.abc import Callable, Collection, Sequence

from gateway.domain.errors import ModelNotFound
from gateway.models.catalogue import Catalogue
from gateway.tokenization.prompt_hasher import PromptHasher
from radix_cache.follower import UnusablePages
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace


class GroupsBySalt:
    """Isolation groups by the `cache_salt` that engines get for them.

    Args:
        groups: Returns all groups; the sequence only grows, at its end.
        salt: Returns the salt of a group.
    """

    def __init__(self, groups: Callable[[], Sequence[str]], salt: Callable[[str], str]) -> None:
        self._groups = groups
        self._salt = salt
        self._known = {salt(""): ""}
        self._seen = 0

    def group(self, salt: str) -> str | None:
        """Return the group with this salt; None if there is none."""
        group = self._known.get(salt)
        if group is None and self._seen < len(groups := self._groups()):
            for new in groups[self._seen :]:
                self._known[self._salt(new)] = new
            self._seen = len(groups)
            group = self._known.get(salt)
        return group


class NamespaceResolver:
    """Finds the namespace that a worker's KV events are of; `models` returns the models of a worker."""

    def __init__(
        self,
        models: Callable[[WorkerId], Collection[str]],
        catalogue: Catalogue,
        prompt_hasher: PromptHasher,
        groups_by_salt: GroupsBySalt,
    ) -> None:
        self._models = models
        self._catalogue = catalogue
        self._prompt_hasher = prompt_hasher
        self._groups_by_salt = groups_by_salt

    def resolve(self, worker: WorkerId, salt: str, adapter: str, page_size: int) -> HashedNamespace | None:
        """Return the namespace of a cache; None if the gateway does not know the group or the model.

        Raises UnusablePages if no blocks can be made of the pages: the block size is not a multiple of the page
        size, the model has no tokenizer here, or the worker has several models and does not say which.
        """
        models, group = self._models(worker), self._groups_by_salt.group(salt)
        name = adapter if adapter in models else next(iter(models), "")
        if group is None:
            return None
        if not adapter and len(models) != 1:
            raise UnusablePages
        try:
            model = self._catalogue.find(name)
        except ModelNotFound:
            return None
        if not model.encoder.exact or model.block_size % page_size:
            raise UnusablePages
        return self._prompt_hasher.namespace(model, group)
