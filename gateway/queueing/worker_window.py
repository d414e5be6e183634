"""How many uncached prompt tokens this gateway may have ahead of each worker."""

from gateway.queueing.shared.shared_queue import SharedQueue


class WorkerWindow:
    """This gateway's part of every worker's window, in uncached prompt tokens.

    It is the whole window where all gateways decide together; a gateway that decides alone has its share of it.
    """

    def __init__(self, queue: SharedQueue, tokens_of_all: int) -> None:
        """`tokens_of_all`: the window that all gateways together may fill, as the settings have it."""
        self._membership = queue.membership
        self.tokens_of_all = tokens_of_all

    @property
    def tokens(self) -> int:
        """This gateway's part as of now."""
        membership = self._membership
        return self.tokens_of_all if membership.shared else membership.share_of(self.tokens_of_all)
