"""Sockets for KV events that bound what waits to be read, and how large a message is."""

import zmq
import zmq.asyncio

RECEIVED_MAX = 32
"""Largest number of received messages that wait to be read; further ones wait at the publisher."""
MESSAGE_BYTES_MAX = 6 * 1024**2
"""Larger messages end the connection. A message with the blocks of a million tokens is a little smaller."""


def bounded_socket(context: "zmq.asyncio.Context", kind: int) -> "zmq.asyncio.Socket":
    """Return a new socket of a kind, such as zmq.SUB."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
