"""Subscribes to sharded channels on the servers that have them, with one connection to each such server.

A channel is unsubscribed at first, after a lost connection, and after its slot has moved.
`subscribe` finds the server of each unsubscribed channel and subscribes there.
"""

import asyncio
from collections.abc import Callable, Iterable

import hiredis

from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import ConnectionLost, RedisAddress, RedisConnection, Reply
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import parse_redirect, slot_of

SUBSCRIBE_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.05


class _Subscription:
    """A connection and the channels that it subscribes to."""

    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.channels: set[bytes] = set()
        self.alive = True


class ShardedSubscriber:
    """Subscribes to sharded channels and follows them when their slots move.

    Args:
        redis: Finds the servers.
        channels: The channels to subscribe to.
        on_message: Gets the channel and the message.
        on_channels_lost: Called when channels have become unsubscribed.
    """

    def __init__(
        self,
        redis: ScriptCaller,
        channels: Iterable[bytes],
        on_message: Callable[[bytes, bytes], None],
        on_channels_lost: Callable[[], None],
    ) -> None:
        self.unsubscribed = set(channels)
        self._redis = redis
        self._on_message = on_message
        self._on_channels_lost = on_channels_lost
        self._subscriptions: dict[tuple[str, str, int], _Subscription] = {}
        self._requested: set[bytes] = set()
        self._confirmed = asyncio.Event()
        self._trouble = ""

    async def subscribe(self) -> None:
        """Subscribe to the unsubscribed channels; those without a server stay unsubscribed.

        Raises ConnectionLost if no connection could be opened.
        """
        refresh = bool(self._subscriptions)
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS_MAX):
                while self.unsubscribed:  # Slots may move meanwhile.
                    found = await self._redis.addresses_of(self.unsubscribed, refresh=refresh)
                    opened = await asyncio.gather(*(self._listen(*each) for each in found))
                    await self._wait_for_confirmations()
                    refresh = True
                    if not self.unsubscribed or not any(opened):
                        break
                    await asyncio.sleep(PAUSE_SECONDS)
        except (TimeoutError, RedisDown) as err:
            self._trouble = str(err) or "no server confirmed the subscriptions in time"
        self.unsubscribed |= self._requested
        self._requested.clear()
        if not self._subscriptions:
            raise ConnectionLost(self._trouble or "no server has any of the channels")

    def check_connections(self) -> None:
        """Drop connections that were silent since the last check, and ping the others."""
        for name, subscription in list(self._subscriptions.items()):
            if subscription.alive:
                subscription.alive = False
                subscription.connection.send(["PING"])
            else:
                self._trouble = "the server is silent"
                self._drop(name)

    def close(self) -> None:
        """Close all connections."""
        for name in list(self._subscriptions):
            self._drop(name)

    async def _listen(self, address: RedisAddress, channels: list[bytes]) -> bool:
        name = (address.path, address.host, address.port)
        subscription = self._subscriptions.get(name)
        if subscription is None:
            try:
                connection = await address.connect(
                    lambda connection: self._on_connection_lost(name, connection), self._message_handler(name)
                )
            except ConnectionLost as err:
                self._trouble = str(err)
                return False
            if not connection.is_open:
                return False
            subscription = self._subscriptions[name] = _Subscription(connection)
        subscription.channels.update(channels)
        self._requested.update(channels)
        self.unsubscribed.difference_update(channels)
        for channel in channels:  # One by one: the channels of a command must be of one slot.
            subscription.connection.send(["SSUBSCRIBE", channel])
        return True

    async def _wait_for_confirmations(self) -> None:
        """Wait until every subscription was confirmed or refused."""
        while self._requested:
            self._confirmed.clear()
            await self._confirmed.wait()

    def _message_handler(self, name: tuple[str, str, int]) -> Callable[[Reply], None]:
        def handle(message: Reply) -> None:
            subscription = self._subscriptions.get(name)
            if subscription is None:
                return
            subscription.alive = True
            if isinstance(message, hiredis.ReplyError):
                self._handle_error(name, subscription, str(message))
            elif message[0] == b"smessage":
                self._on_message(message[1], message[2])
            elif message[0] == b"ssubscribe":
                self._requested.discard(message[1])
                self._confirmed.set()
            elif message[0] == b"sunsubscribe" and message[1] in subscription.channels:
                self._mark_unheard(name, subscription, {message[1]})

        return handle

    def _handle_error(self, name: tuple[str, str, int], subscription: _Subscription, error: str) -> None:
        self._trouble = error
        redirect = parse_redirect(error, name[1])
        if redirect is None:
            self._drop(name)
        else:
            self._mark_unheard(
                name,
                subscription,
                {channel for channel in subscription.channels if slot_of(channel) == redirect.slot},
            )

    def _mark_unheard(
        self, name: tuple[str, str, int], subscription: _Subscription, channels: set[bytes]
    ) -> None:
        """Record that the server of this connection no longer sends these channels."""
        subscription.channels -= channels
        self._requested -= channels
        self.unsubscribed |= channels
        self._confirmed.set()
        if not subscription.channels:
            self._drop(name)
        self._on_channels_lost()

    def _on_connection_lost(self, name: tuple[str, str, int], connection: RedisConnection) -> None:
        subscription = self._subscriptions.get(name)
        if subscription is not None and subscription.connection is connection:
            self._trouble = "the connection was lost"
            self._drop(name)

    def _drop(self, name: tuple[str, str, int]) -> None:
        subscription = self._subscriptions.pop(name)
        subscription.connection.close()
        if subscription.channels:
            self._requested -= subscription.channels
            self.unsubscribed |= subscription.channels
            self._confirmed.set()
            self._on_channels_lost()
