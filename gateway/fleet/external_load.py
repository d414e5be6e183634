"""The load of an engine that no gateway sent: the least that it lately had beyond the gateways' own requests.

readings             3  4 | 2  2  5 | 4 ...   a reading may fall between a request's end at engine and gateway
least of each window   3  |    2    |  4
external load             2         2         the lesser of the last two windows
"""

from dataclasses import dataclass

from workers.load_reports.engine_loads import NO_LOAD, EngineLoad


@dataclass(slots=True)
class ExternalLoad:
    """A running estimate of the load that reached an engine without any gateway."""

    load: EngineLoad = NO_LOAD
    """The current estimate."""
    _before: EngineLoad = NO_LOAD
    _now: EngineLoad = NO_LOAD
    _since: float | None = None

    def update(self, beyond: EngineLoad, now: float, window_seconds: float) -> None:
        """Add one reading of the load beyond the gateways' own; with a window of 0 each reading is a window."""
        if self._since is None or now - self._since >= window_seconds:
            self._before, self._now, self._since = self._now, beyond, now
        else:
            self._now = self._now.minimum(beyond)
        self.load = self._now.minimum(self._before)
