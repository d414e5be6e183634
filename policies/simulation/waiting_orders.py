"""Orders of waiting requests, in an engine or in a gateway: the request with the least value goes first."""

from collections.abc import Callable

TOKENS_PER_SECOND = 20_000.0
"""Prefill speed that the response ratio assumes; only its magnitude matters."""

WaitingOrder = Callable[[float, int, float], float]
"""A value of the seconds waited, the uncached tokens, and the time of arrival in seconds since the beginning."""


def _fcfs(waited: float, uncached: int, arrived_at: float) -> float:
    return arrived_at


def _shortest(waited: float, uncached: int, arrived_at: float) -> float:
    return uncached


def _hrrn(waited: float, uncached: int, arrived_at: float) -> float:
    return -waited / (uncached + 1000) * TOKENS_PER_SECOND


ORDERS: dict[str, WaitingOrder] = {
    "fcfs": _fcfs,  # first come, first served
    "shortest": _shortest,  # fewest uncached tokens first: least mean wait, but long prompts may starve
    "hrrn": _hrrn,  # highest response ratio next, waiting over own time: no request starves
}
