"""KV events of engines: what they publish of their caches.

Read source.py first (where an engine publishes), then wire.py (bytes to events) and subscriber.py (a socket to
events).
"""
