"""KV events, by which engines publish the changes of their caches.

Read source.py first (where an engine publishes), then wire.py (bytes to events) and subscriber.py (a socket to
events).
"""
