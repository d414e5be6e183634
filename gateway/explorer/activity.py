"""The activity of all gateways, in total and in the last minute: of all requests, of tenants and of workers.

Each gateway reports its own Overview, and totals are added. The median over all gateways is estimated as the mean
of their medians, weighted by the requests of the last minute.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from typing import Any

import msgspec

from gateway.queueing.shared.gateway_reports import GatewayReports
from gateway.queueing.shared.keys import QueueKeys
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.telemetry.overview import Activity, Overview, RequestTotals
from radix_cache.redis.scripts import ScriptCaller

TENANTS_MAX = 200
"""Number of tenants in a report: those with the most requests in the last minute."""

WORKERS_MAX = 2000
SUBJECT = "activity"
MEDIANS = ("ttft_ms_p50", "ttft_error_p50")


class ActivityQuestion(msgspec.Struct, kw_only=True):
    """What an activity report should contain. `workers`: None for all."""

    workers: Sequence[str] | None = None
    tenants: int = TENANTS_MAX


class ShadowReport(msgspec.Struct, kw_only=True):
    """How the choices of the shadow policy compare with those of the policy in force.

    Both policies ranked `compared` requests, and chose different workers for `differed` of them. Where the shadow
    policy's choice was worse, its predicted TTFT is longer by `regret_seconds` in sum; where it was better, shorter
    by `gain_seconds`.
    """

    compared: int = 0
    differed: int = 0
    regret_seconds: float = 0.0
    gain_seconds: float = 0.0
    failures: int = 0


class ActivityReport(msgspec.Struct, kw_only=True):
    """The activity of one or more gateways, each part as Activity.shown returns it.

    `by_shadow`: requests for which the shadow policy chose the worker.
    """

    gateways: list[str]
    all: dict[str, Any]
    tenants: dict[str, dict[str, Any]]
    workers: dict[str, dict[str, Any]]
    by_shadow: dict[str, Any] | None = None
    shadow: ShadowReport | None = None


class ActivityReporter:
    """Reports the activity of all gateways. `handlers`: see TurnReader."""

    def __init__(
        self,
        overview: Overview,
        name: str,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        gateways: Callable[[], int],
        shadow: Callable[[], ShadowPolicy | None],
    ) -> None:
        """Create the reporter.

        Args:
            overview: Counts the requests of this gateway.
            name: The name of this gateway in reports.
            scripts: Calls Redis.
            keys: Names of Redis keys.
            gateway: The name of this gateway in the queue.
            gateways: Returns how many gateways are alive.
            shadow: Returns the shadow policy, if there is one.
        """
        self._overview = overview
        self._name = name
        self._shadow = shadow
        self._reports = GatewayReports(
            scripts, keys, gateway, subject=SUBJECT, own=self._encoded, gateways=gateways
        )
        self.handlers = self._reports.handlers
        self.close = self._reports.close

    async def report(
        self, workers: Sequence[str] | None = None, tenants: int = TENANTS_MAX
    ) -> ActivityReport:
        """Return the report of all gateways, without those that do not answer in time.

        Args:
            workers: The workers in the report; None for all.
            tenants: Largest number of tenants in it.
        """
        question = ActivityQuestion(workers=workers, tenants=tenants)
        reports = [self._own(question)]
        for text in await self._reports.gather(msgspec.json.encode(question).decode()):
            with suppress(msgspec.DecodeError):  # A gateway of another version reports in another form.
                reports.append(msgspec.json.decode(text, type=ActivityReport))
        return merged(reports, tenants)

    def _encoded(self, question: str) -> bytes:
        asked = ActivityQuestion()
        with suppress(msgspec.DecodeError):  # A gateway of another version requests everything.
            asked = msgspec.json.decode(question, type=ActivityQuestion)
        return msgspec.json.encode(self._own(asked))

    def _own(self, question: ActivityQuestion) -> ActivityReport:
        overview, shadow = self._overview, self._shadow()
        workers: Mapping[str, Activity] = overview.workers
        if question.workers is not None:
            workers = {name: workers[name] for name in question.workers if name in workers}
        return ActivityReport(
            gateways=[self._name],
            all=overview.shown(overview.all),
            tenants=overview.busiest(overview.tenants, question.tenants),
            workers=overview.busiest(workers, WORKERS_MAX),
            by_shadow=overview.shown(overview.by_shadow),
            shadow=_shadow_report(shadow) if shadow is not None else None,
        )


def merged(reports: Iterable[ActivityReport], tenants: int = TENANTS_MAX) -> ActivityReport:
    """Combine several reports into one."""
    every = list(reports)

    def named(of: Callable[[ActivityReport], Mapping[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        by_name: dict[str, list[dict[str, Any]]] = {}
        for report in every:
            for name, shown in of(report).items():
                by_name.setdefault(name, []).append(shown)
        return {name: _sum(shown) for name, shown in by_name.items()}

    return ActivityReport(
        gateways=sorted(name for report in every for name in report.gateways),
        all=_sum([report.all for report in every]),
        tenants=_busiest(named(lambda report: report.tenants), tenants),
        workers=named(lambda report: report.workers),
        by_shadow=_sum([report.by_shadow for report in every if report.by_shadow is not None]),
        shadow=_shadows([report.shadow for report in every if report.shadow is not None]),
    )


NO_ACTIVITY = Activity().shown(0)


def _shadow_report(shadow: ShadowPolicy) -> ShadowReport:
    return ShadowReport(
        compared=shadow.compared,
        differed=shadow.differed,
        regret_seconds=shadow.regret_seconds,
        gain_seconds=shadow.gain_seconds,
        failures=shadow.failures,
    )


def _shadows(reports: Sequence[ShadowReport]) -> ShadowReport | None:
    if not reports:
        return None
    return ShadowReport(
        compared=sum(report.compared for report in reports),
        differed=sum(report.differed for report in reports),
        regret_seconds=sum(report.regret_seconds for report in reports),
        gain_seconds=sum(report.gain_seconds for report in reports),
        failures=sum(report.failures for report in reports),
    )


def _sum(shown: list[dict[str, Any]]) -> dict[str, Any]:
    if len(shown) == 1:
        return shown[0]
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
