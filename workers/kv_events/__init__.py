"""What engines publish of their caches: bytes to events (wire), events from a socket (subscriber)."""
