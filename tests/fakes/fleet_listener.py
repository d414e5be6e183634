"""A listener that records what the fleet reports of its workers."""


class NotingListener:
    """Notes the ids of workers whose caches were lost and which left, the reports, and the rests of providers."""

    def __init__(self):
        self.lost = []
        self.gone = []
        self.reports = []
        self.rests = []

    def capacity_freed(self):
        """Ignore it."""

    def cache_lost(self, worker):
        """Note the worker's id."""
        self.lost.append(worker)

    def reported(self, worker):
        """Note the report."""
        self.reports.append(worker.report)

    def left(self, worker):
        """Note the worker's id."""
        self.gone.append(worker)

    def provider_rests(self, worker, seconds):
        """Note the provider's id and for how long it rests."""
        self.rests.append((worker, seconds))
