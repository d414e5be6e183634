"""In which order waiting requests go, in an engine's own queue or in a gateway that holds them. Least first."""

from collections.abc import Callable

TOKENS_PER_SECOND = 20_000.0
"""Of a prefill, for the response ratio; only its size matters."""

Order = Callable[[float, int, float], float]
"""Of seconds waited, uncached tokens, and seconds since the beginning at which it came."""


def _fcfs(waited: float, uncached: int, arrived_at: float) -> float:
    return arrived_at


def _shortest(waited: float, uncached: int, arrived_at: float) -> float:
    return uncached


def _hrrn(waited: float, uncached: int, arrived_at: float) -> float:
    return -waited / (uncached + 1000) * TOKENS_PER_SECOND


ORDERS: dict[str, Order] = {
    "fcfs": _fcfs,  # first come, first served
    "shortest": _shortest,  # fewest uncached tokens first: least mean wait, and the longest may starve
    "hrrn": _hrrn,  # highest response ratio next, waiting over own time: nobody starves
}
