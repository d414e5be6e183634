"""Lets workers enter the index, leave it, and lose their blocks, as the fleet reports them."""

from gateway.fleet.announced_dispatches import AnnouncedDispatches
from gateway.fleet.load_feeds import LoadFeeds
from gateway.fleet.worker import Worker
from gateway.kv_index.kv_event_feeds import KvEventFeeds
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.models.catalogue import Catalogue
from radix_cache.match import WorkerId


class IndexFollowsFleet:
    """Keeps the catalogue, the prefix index and the feeds up to date with the workers; see FleetListener."""

    def __init__(
        self,
        catalogue: Catalogue,
        index: SharedIndexParts,
        event_feeds: KvEventFeeds,
        load_feeds: LoadFeeds,
        announced: AnnouncedDispatches,
    ) -> None:
        self._catalogue = catalogue
        self._announced = announced
        self._index = index.index
        self._event_feeds = event_feeds
        self._load_feeds = load_feeds

    def capacity_freed(self) -> None:
        """Do nothing: the index does not depend on free capacity."""

    def cache_lost(self, worker: WorkerId) -> None:
        """Forget what the worker held."""
        self._load_feeds.ranks.forget(worker)
        self._index.forget(worker)

    def reported(self, worker: Worker) -> None:
        """Take over the worker's models, the size of its cache and the addresses of its feeds.

        A new instance id means that the worker has restarted: `enrol` then ends the old tenure, and with it all
        blocks that were recorded for the worker.
        """
        self._catalogue.add_reported(worker.models, worker.report.parents)
        if worker.provider is not None:
            return
        report = worker.report
        self._index.enrol(worker.id, report.instance_id or "")
        self._event_feeds.follow(
            worker.id, report.events if worker.event_sources is None else worker.event_sources
        )
        self._load_feeds.follow(worker, report.loads if worker.load_sources is None else worker.load_sources)
        if worker.ranks < 2:
            self._load_feeds.ranks.forget(worker.id)
        models = self._catalogue.by_name_or_alias().items()
        block_size = min((model.block_size for name, model in models if name in worker.models), default=None)
        if block_size is not None:
            self._announced.set_block_size(worker.id, block_size)
        if report.kv_tokens_max is not None:
            self._index.set_capacity(worker.id, report.kv_tokens_max // (block_size or 1))

    def left(self, worker: WorkerId) -> None:
        """Stop following the worker's feeds, and forget what it held."""
        self._event_feeds.follow(worker, ())
        self._load_feeds.forget(worker)
        self._announced.forget(worker)
        self.cache_lost(worker)

    def provider_rests(self, worker: WorkerId, seconds: float) -> None:
        """Do nothing: providers are not in the index."""
