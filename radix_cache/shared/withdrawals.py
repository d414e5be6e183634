"""Predictions that have ended: those of one shard leave together, as one change that all gateways hear of.

A prediction that counts for a moment longer does no harm, since its blocks have been held since the first token.
"""

import asyncio
from collections.abc import Callable, Sequence

DELAY_SECONDS = 0.05
"""How long an ended prediction waits for others of its shard."""

TOGETHER_MAX = 128
"""Ended predictions of one shard that leave as one change."""


class Withdrawals:
    """The predictions of this process that have ended and that Redis still has."""

    def __init__(self, send: Callable[[int, Sequence[bytes]], None]) -> None:
        """`send` removes predictions of one shard, by their ids, from Redis."""
        self._send = send
        self._ended: dict[int, dict[bytes, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, shard: int, identity: bytes) -> None:
        """Note that a prediction has ended."""
        ended = self._ended.get(shard)
        if ended is None:
            ended = self._ended[shard] = {}
        ended[identity] = None
        if len(ended) >= TOGETHER_MAX:
            self._send(shard, list(self._ended.pop(shard)))
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self.flush)

    def flush_before(self, shard: int, identity: bytes) -> None:
        """Send those of a shard now if this prediction, which is about to be made anew, is one of them."""
        if identity in self._ended.get(shard, ()):
            self._send(shard, list(self._ended.pop(shard)))

    def flush(self) -> None:
        """Send all of them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._ended = self._ended, {}
        for shard, identities in ended.items():
            self._send(shard, list(identities))
