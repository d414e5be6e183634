"""The share of cached tokens after each request of a run, and a chart of it for a terminal."""

from collections.abc import Iterator, Mapping, Sequence

from gateway.bench.results import RequestResult

HEIGHT = 10
WIDTH_MAX = 60
MARKS = "ox"
BOTH = "*"


class CachedShares:
    """The cached share of all prompt tokens so far, after each request, by policy."""

    def __init__(self) -> None:
        self.by_policy: dict[str, list[float]] = {}
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def begin(self, policy: str) -> None:
        """Begin the run of a policy."""
        self.by_policy[policy] = []
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, result: RequestResult) -> None:
        """Add a finished request to the run that was begun last."""
        self._prompt_tokens += result.prompt_tokens or 0
        self._cached_tokens += result.cached_tokens or 0
        ratio = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
        self.by_policy[next(reversed(self.by_policy))].append(round(ratio, 4))


def chart(ratios: Mapping[str, Sequence[float]], requests: int) -> Iterator[str]:
    """Yield the lines of a chart: the hit ratio after each request, one mark for each policy.

    Args:
        ratios: the ratios after each request so far, by policy.
        requests: the number of requests of a whole run, which is the width of the chart.
    """
    width = min(WIDTH_MAX, max(requests, 1))
    cells = [[" "] * width for _ in range(HEIGHT + 1)]
    for mark, values in zip(MARKS, ratios.values(), strict=False):
        for column in range(width):
            at = (column + 1) * requests // width - 1
            if 0 <= at < len(values):
                row = HEIGHT - round(values[at] * HEIGHT)
                cells[row][column] = mark if cells[row][column] in (" ", mark) else BOTH
    for number, row_cells in enumerate(cells):
        label = f"{100 * (HEIGHT - number) // HEIGHT:>4} %" if number % 5 == 0 else ""
        yield f"{label:>6} |{''.join(row_cells)}"
    yield f"{'':>6} +{'-' * width}"
    named = "   ".join(f"{mark} {policy}" for mark, policy in zip(MARKS, ratios, strict=False))
    yield f"{'':>8}cached share of all prompt tokens so far:  {named}"
