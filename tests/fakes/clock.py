"""A clock whose time passes only when a test advances it."""


class FakeClock:
    """A clock in seconds that stands still until it is advanced."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        self.now += seconds
