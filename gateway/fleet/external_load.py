"""What an engine has beyond what gateways sent it: the least of what it lately had.

readings        3  4 | 2  2  5 | 4 ...      one alone may have come between a request's end here and there
least of each     3  |    2    |  4
foreign              2         2            the lesser of the last two stretches of time
"""

from dataclasses import dataclass

from workers.load_reports.engine_loads import NO_LOAD, EngineLoad


@dataclass(slots=True)
class Foreign:
    """`load`: what is held for foreign."""

    load: EngineLoad = NO_LOAD
    _before: EngineLoad = NO_LOAD
    _now: EngineLoad = NO_LOAD
    _since: float | None = None

    def told(self, beyond: EngineLoad, now: float, stretch_seconds: float) -> None:
        """A reading; with no stretch each is one of its own."""
        if self._since is None or now - self._since >= stretch_seconds:
            self._before, self._now, self._since = self._now, beyond, now
        else:
            self._now = self._now.least(beyond)
        self.load = self._now.least(self._before)
