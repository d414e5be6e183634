"""Every key of the shared queue. One hash tag: turns and loads of all models are decided in one place."""

from collections.abc import Sequence

SHARED = ("gateways", "loads", "places", "owned", "grants", "ended", "turns")
OF_A_QUEUE = ("meta", "active", "finish", "tickets")

BATCH = "#batch"
"""The end of the names of queues that give turns only while nobody else waits; lua/queue.lua knows it."""


def queue_of(model: str, *, background: bool) -> str:
    """The name of a model's queue."""
    return model + BATCH if background else model


def model_of(queue: str) -> str:
    return queue.removesuffix(BATCH)


class QueueKeys:
    """`prefix`: what all keys of the deployment begin with."""

    def __init__(self, prefix: str) -> None:
        self._tag = f"{prefix}:{{queue}}"
        self._shared = [f"{self._tag}:{name}" for name in SHARED]
        self._queues: dict[str, list[str]] = {}

    @property
    def turns(self) -> str:
        """The stream that tells of turns."""
        return f"{self._tag}:turns"

    def report(self, look: str, gateway: str) -> str:
        """What a gateway says to whoever looks."""
        return f"{self._tag}:report:{look}:{gateway}"

    def preemption(self, name: str) -> str:
        """Return the key that names the gateway which meets a need for room."""
        return f"{self._tag}:favour:{name}"

    def of(self, models: Sequence[str]) -> list[str]:
        """All that a verb touches that concerns these models."""
        keys = list(self._shared)
        for model in models:
            if model not in self._queues:
                self._queues[model] = [f"{self._tag}:{name}:{model}" for name in OF_A_QUEUE]
            keys += self._queues[model]
        return keys
