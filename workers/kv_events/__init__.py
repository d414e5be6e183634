"""KV events, by which engines publish the changes of their caches.

Read source.py first (where an engine publishes), then wire.py (bytes to events) and subscriber.py (a socket to
batches in order: batch_order.py has what their numbers mean, replay.py requests those that were missed,
bounded_socket.py has the bounds of sockets).
"""
