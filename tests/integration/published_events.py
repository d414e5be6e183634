"""Waiting until a gateway's index has what workers have published in KV events."""

import zmq
import zmq.asyncio


def index_of(running):
    return running.here.gateway.index.index


def feeds_of(running):
    return running.here.gateway.event_feeds


def feed_of(running, worker="w0"):
    (feed,) = feeds_of(running).rank_feeds(worker)
    return feed


def held(running, worker="w0"):
    """How many blocks the worker holds, as the replica of the index shows."""
    copy = index_of(running).replica
    return copy.held.get(copy.tenures.get(worker, 0), 0)


async def heard(running, worker="w0", *, followed=True):
    """Wait until all that the worker has published is in the index; it publishes before it answers."""
    await running.until(lambda: feeds_of(running).rank_feeds(worker))
    feed = feed_of(running, worker)
    last = await last_published(feed.subscriber.source.replay)
    await running.until(
        lambda: feed.subscriber._order.expected > last and not running.here.gateway.index.scripts.busy
    )
    if followed:
        await running.until(lambda: worker in index_of(running).followed)
        await running.until(lambda: held(running, worker) == len(feed.follower.held_blocks()))


async def all_heard(running):
    """Wait until all that the workers have published is in the index."""
    for worker in running.here.gateway.fleet:
        await heard(running, worker.id)


async def last_published(replay):
    """Return the number of the last batch that a worker has published, by its replay; -1: it has published none."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(replay)
        await socket.send_multipart([b"", bytes(8)])
        last = -1
        while (frames := await socket.recv_multipart())[-1]:
            last = int.from_bytes(frames[-2], "big")
        return last
