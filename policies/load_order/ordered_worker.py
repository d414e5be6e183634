"""OrderedWorker, the interface of a worker for the order of a fleet by load."""

from functools import partial
from typing import Protocol

from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot


class OrderedSpeed(Protocol):
    """The speed of one worker."""

    @property
    def speed(self) -> Speed:
        """The speed to predict with."""
        ...


class OrderedLoad(Protocol):
    """The work under way on one worker."""

    on_change: "tuple[partial[None], ...]"
    """Called after every change of the load, and of what else ranks the worker among others."""

    @property
    def all_tokens_queued(self) -> int:
        """Tokens queued by all gateways."""
        ...

    def clock(self) -> float:
        """Return seconds, never backwards."""
        ...

    def computed(self, speed: Speed) -> int:
        """Estimate how many of the queued tokens the worker has computed by now."""
        ...


class OrderedWorker(Protocol):
    """One worker in an order by load."""

    @property
    def id(self) -> WorkerId:
        """The name of the worker."""
        ...

    @property
    def able(self) -> bool:
        """Whether it may get a new request."""
        ...

    @property
    def load(self) -> OrderedLoad:
        """The work under way there."""
        ...

    @property
    def learnt(self) -> OrderedSpeed:
        """The speed learnt from its answers."""
        ...

    def snapshot(self, now: float) -> WorkerSnapshot:
        """Return the worker's state at this moment, as policies get it."""
        ...
