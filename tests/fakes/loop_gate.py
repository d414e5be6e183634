"""A call in a thread that waits until the event loop has run something else; it fails if the loop is blocked."""

import asyncio
import threading

SECONDS_MAX = 60.0


class LoopGate:
    """Stands for a call in a thread; the first one returns once the event loop has run `open`."""

    def __init__(self) -> None:
        self._called, self._loop_ran = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        """Wait for the event loop. Raises AssertionError when this call holds it up."""
        self._called.set()
        assert self._loop_ran.wait(SECONDS_MAX), "the event loop was held up"

    async def open(self) -> None:
        """Wait in the event loop for the first call, and let it and all later ones return."""
        while not self._called.is_set():
            await asyncio.sleep(0.001)
        self._loop_ran.set()
