"""Admission arithmetic: when a worker has room, when a room is full, when to come back."""


def has_window(tokens_queued: int, uncached_tokens: int, window_tokens: int) -> bool:
    """May this much prefill be sent to a worker that has so much ahead of it already?

    Requests wait in the gateway, where their order is ours, and not in the engine's own queue. An idle worker
    takes anything, also a prompt longer than the window.
    """
    return tokens_queued == 0 or tokens_queued + uncached_tokens <= window_tokens


def retry_after_seconds(waiting: int, served_per_second: float, longest_seconds: float) -> float:
    """When a refused client should come back: once those who wait now have been served.

    Without a measured rate the answer is one second. Never less than a second, never more than the longest
    that anybody is left to wait.
    """
    if served_per_second <= 0:
        return 1.0
    return min(max(waiting / served_per_second, 1.0), longest_seconds)
