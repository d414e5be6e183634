"""The activity of all gateways: totals and the last minute, of all requests, of tenants and of workers.

Each gateway reports its own Overview; the sums add up. A median of all gateways is estimated as the mean of their
medians, weighted by the requests of the last minute.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from heapq import nlargest
from typing import Any

import msgspec

from gateway.queueing.shared.gateway_reports import GatewayReports
from gateway.queueing.shared.keys import QueueKeys
from gateway.telemetry.overview import Activity, Overview, RequestTotals
from radix_cache.redis.scripts import ScriptCaller

TENANTS_MAX = 200
"""Tenants that a report has, those with the most requests in the last minute."""

WORKERS_MAX = 2000
SUBJECT = "activity"
MEDIANS = ("ttft_ms_p50", "ttft_error_p50")


class ActivityReport(msgspec.Struct, kw_only=True):
    """What one or more gateways have done; each activity as Activity.shown returns it."""

    gateways: list[str]
    all: dict[str, Any]
    tenants: dict[str, dict[str, Any]]
    workers: dict[str, dict[str, Any]]


class ActivityReporter:
    """Reports the activity of all gateways. `heard`: see TurnReader."""

    def __init__(
        self,
        overview: Overview,
        name: str,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        gateways: Callable[[], int],
    ) -> None:
        """`name`: of this gateway in reports; `gateway`: its name in the queue; `gateways`: how many are alive."""
        self._overview = overview
        self._name = name
        self._reports = GatewayReports(
            scripts, keys, gateway, subject=SUBJECT, own=self._encoded, gateways=gateways
        )
        self.heard = self._reports.heard
        self.close = self._reports.close

    async def report(self) -> ActivityReport:
        """Return the report of all gateways, without those that do not answer in time."""
        reports = [self._own()]
        for text in await self._reports.gather():
            with suppress(msgspec.DecodeError):  # A gateway of another version reports in another form.
                reports.append(msgspec.json.decode(text, type=ActivityReport))
        return merged(reports)

    def _encoded(self, question: str) -> bytes:
        return msgspec.json.encode(self._own())

    def _own(self) -> ActivityReport:
        overview = self._overview
        tenants = {name: overview.shown(activity) for name, activity in overview.tenants.items()}
        return ActivityReport(
            gateways=[self._name],
            all=overview.shown(overview.all),
            tenants=_busiest(tenants, TENANTS_MAX),
            workers=_busiest(
                {name: overview.shown(activity) for name, activity in overview.workers.items()}, WORKERS_MAX
            ),
        )


def merged(reports: Iterable[ActivityReport]) -> ActivityReport:
    """Return one report of several."""
    every = list(reports)

    def named(of: Callable[[ActivityReport], Mapping[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        names = dict.fromkeys(name for report in every for name in of(report))
        return {name: _sum([of(report)[name] for report in every if name in of(report)]) for name in names}

    return ActivityReport(
        gateways=sorted(name for report in every for name in report.gateways),
        all=_sum([report.all for report in every]),
        tenants=_busiest(named(lambda report: report.tenants), TENANTS_MAX),
        workers=named(lambda report: report.workers),
    )


NO_ACTIVITY = Activity().shown(0)


def _sum(shown: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "total": _totals([each["total"] for each in shown]),
        "minute": _totals([each["minute"] for each in shown]),
        **{name: _mean(shown, name) for name in MEDIANS},
    }


def _totals(shown: list[dict[str, Any]]) -> dict[str, Any]:
    total = RequestTotals()
    for each in shown:
        total.add(RequestTotals(**{name: value for name, value in each.items() if name != "hit_ratio"}))
    return total.shown()


def _mean(shown: list[dict[str, Any]], name: str) -> float | None:
    known = [(each[name], each["minute"]["requests"] + 1) for each in shown if each[name] is not None]
    weight = sum(requests for _, requests in known)
    return sum(value * requests for value, requests in known) / weight if known else None


def _busiest(activities: dict[str, dict[str, Any]], most: int) -> dict[str, dict[str, Any]]:
    """Return the activities with the most requests in the last minute, then since the start."""
    busiest = nlargest(
        most,
        activities.items(),
        key=lambda each: (each[1]["minute"]["requests"], each[1]["total"]["requests"]),
    )
    return dict(busiest)
