"""Whose cache does an engine speak of? From the salt and the adapter of its events to a namespace of ours."""

from collections.abc import Callable, Collection, Sequence

from gateway.domain.errors import ModelNotFound
from gateway.models.catalogue import Catalogue
from gateway.tokenization.prompt_hasher import PromptHasher
from radix_cache.follower import UnusablePages
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace


class GroupsBySalt:
    """Isolation groups by the salt that engines are given for them.

    `groups`: all there are; it only grows, at its end. `salt`: of a group.
    """

    def __init__(self, groups: Callable[[], Sequence[str]], salt: Callable[[str], str]) -> None:
        self._groups = groups
        self._salt = salt
        self._known = {salt(""): ""}
        self._seen = 0

    def group(self, salt: str) -> str | None:
        """None if it is nobody's here."""
        group = self._known.get(salt)
        if group is None and self._seen < len(groups := self._groups()):
            for new in groups[self._seen :]:
                self._known[self._salt(new)] = new
            self._seen = len(groups)
            group = self._known.get(salt)
        return group


class NamespaceResolver:
    """`salts`: whose cache an engine means."""

    def __init__(
        self,
        models: Callable[[WorkerId], Collection[str]],
        catalogue: Catalogue,
        prompt_hasher: PromptHasher,
        salts: GroupsBySalt,
    ) -> None:
        self._models = models
        self._catalogue = catalogue
        self._prompt_hasher = prompt_hasher
        self._salts = salts

    def of(self, worker: WorkerId, salt: str, adapter: str, page_size: int) -> HashedNamespace | None:
        """None if it is nobody's here.

        Raises Unfit where our blocks are no multiple of its pages or not of its tokens, or where a worker has
        several models and does not say which.
        """
        models, group = self._models(worker), self._salts.group(salt)
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
