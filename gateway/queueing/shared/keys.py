"""Every key of the shared queue. One hash tag: turns and loads of all models are decided in one place."""

from collections.abc import Sequence

SHARED = ("gateways", "loads", "places", "owned", "grants", "ended", "turns")
OF_A_QUEUE = ("meta", "active", "finish", "tickets")

BATCH = "#batch"
"""The end of the names of queues that give turns only while no request waits elsewhere; lua/queue.lua knows it."""


def queue_of(model: str, *, background: bool) -> str:
    """Return the name of a model's queue; `background`: of its batch work."""
    return model + BATCH if background else model


def model_of(queue: str) -> str:
    """Return the model of a queue."""
    return queue.removesuffix(BATCH)


class QueueKeys:
    """The names of the shared queue's keys."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: the beginning of all keys of the deployment."""
        self._tag = f"{prefix}:{{queue}}"
        self._shared = [f"{self._tag}:{name}" for name in SHARED]
        self._queues: dict[str, list[str]] = {}

    @property
    def turns(self) -> str:
        """The stream of turns, and of messages between gateways."""
        return f"{self._tag}:turns"

    def report(self, look: str, gateway: str) -> str:
        """Return the key of a gateway's report for one look of another gateway."""
        return f"{self._tag}:report:{look}:{gateway}"

    def preemption(self, name: str) -> str:
        """Return the key that names the gateway which meets a need for room."""
        return f"{self._tag}:favour:{name}"

    def of(self, queues: Sequence[str]) -> list[str]:
        """Return all keys that a function touches that concerns these queues."""
        keys = list(self._shared)
        for queue in queues:
            if queue not in self._queues:
                self._queues[queue] = [f"{self._tag}:{name}:{queue}" for name in OF_A_QUEUE]
            keys += self._queues[queue]
        return keys
