"""Finds the namespace of a KV event by the event's salt and adapter."""

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
        groups: Returns all groups; new ones are only appended.
        salt: Returns the salt of a group.
        followed: Returns whether a group's caches are followed here; None: all groups are followed.
    """

    def __init__(
        self,
        groups: Callable[[], Sequence[str]],
        salt: Callable[[str], str],
        followed: Callable[[str], bool] | None = None,
    ) -> None:
        self._groups = groups
        self._salt = salt
        self._followed = followed
        self._known = {salt(""): ""}
        self._seen = 0

    def group(self, salt: str) -> str | None:
        """Return the followed group with this salt; None if there is none."""
        group = self._known.get(salt)
        if group is None and self._seen < len(groups := self._groups()):
            for new in groups[self._seen :]:
                self._known[self._salt(new)] = new
            self._seen = len(groups)
            group = self._known.get(salt)
        if group is not None and self._followed is not None and not self._followed(group):
            return None
        return group


class NamespaceResolver:
    """Finds the namespace to which a worker's KV events belong.

    Args:
        models: Returns the models of a worker, its LoRA adapters among them.
        adapters: Returns the LoRA adapters of a worker.
        catalogue: The models that clients can request.
        prompt_hasher: Makes the namespaces.
        groups_by_salt: The isolation groups.
    """

    def __init__(
        self,
        models: Callable[[WorkerId], Collection[str]],
        adapters: Callable[[WorkerId], Collection[str]],
        catalogue: Catalogue,
        prompt_hasher: PromptHasher,
        groups_by_salt: GroupsBySalt,
    ) -> None:
        self._models = models
        self._adapters = adapters
        self._catalogue = catalogue
        self._prompt_hasher = prompt_hasher
        self._groups_by_salt = groups_by_salt

    def resolve(self, worker: WorkerId, salt: str, adapter: str, page_size: int) -> HashedNamespace | None:
        """Return the namespace of a cache; None if the group, the adapter or the model is unknown here.

        Raises UnusablePages if no blocks can be made of the pages: the block size is not a multiple of the page
        size, the model has no tokenizer here, or the worker has several models and the event names none.
        """
        models, group = self._models(worker), self._groups_by_salt.group(salt)
        if group is None or (adapter and adapter not in models):
            return None
        name = adapter
        if not adapter:
            adapters = self._adapters(worker)
            without = [model for model in models if model not in adapters]
            if len(without) != 1:
                raise UnusablePages
            name = without[0]
        try:
            model = self._catalogue.find(name)
        except ModelNotFound:
            return None
        if not model.encoder.exact or model.block_size % page_size:
            raise UnusablePages
        return self._prompt_hasher.namespace(model, group)
