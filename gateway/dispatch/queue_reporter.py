"""Reports the waiting rooms of all gateways: each sends its queue_report, and these are merged into one.

The work done adds up, and shares and evenness are those of all gateways together.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.queue_report import (
    WAITING_MAX,
    ModelQueueReport,
    QueueReport,
    TenantShareReport,
    queue_report,
)
from gateway.queueing.shared.gateway_reports import GatewayReports
from gateway.queueing.shared.keys import QueueKeys
from policies.queueing.fairness_account import jain
from radix_cache.redis.scripts import ScriptCaller

TENANTS_MAX = 1024
"""Tenants of a queue that a report lists at most."""


class QueueReporter:
    """Reports the queues of all gateways. `handlers` get the messages of other gateways (TurnReader)."""

    def __init__(self, dispatch: Dispatch, scripts: ScriptCaller, keys: QueueKeys) -> None:
        self._dispatch = dispatch
        queue = dispatch.queue
        self._reports = GatewayReports(
            scripts,
            keys,
            queue.gateway,
            subject="queues",
            own=lambda _: msgspec.json.encode(queue_report(dispatch)),
            gateways=lambda: queue.gateways,
        )
        self.handlers = self._reports.handlers
        self.close = self._reports.close

    async def report(self) -> QueueReport:
        """Return the report of all gateways, without those that do not answer in time."""
        texts = await self._reports.gather()
        others = []
        for text in texts:
            with suppress(msgspec.DecodeError):  # A gateway of another version reports in another form.
                others.append(msgspec.json.decode(text, type=QueueReport))
        return merge_reports([queue_report(self._dispatch), *others])


def merge_reports(reports: Sequence[QueueReport]) -> QueueReport:
    """Return one report of several; the number of gateways is that of the first."""
    queues = defaultdict[str, list[ModelQueueReport]](list)
    for report in reports:
        for queue in report.queues:
            queues[queue.queue].append(queue)
    return QueueReport(
        shared=reports[0].shared,
        gateways=reports[0].gateways,
        answered=sorted(name for report in reports for name in report.answered),
        preemptions=sum(report.preemptions for report in reports),
        queues=[_together(parts) for _, parts in sorted(queues.items())],
    )


def _together(parts: Sequence[ModelQueueReport]) -> ModelQueueReport:
    requests = sorted((one for part in parts for one in part.requests), key=lambda one: -one.waited_seconds)
    tenants = _received(one for part in parts for one in part.tenants)
    return ModelQueueReport(
        queue=parts[0].queue,
        model=parts[0].model,
        waiting=sum(part.waiting for part in parts),
        waiting_tokens=sum(part.waiting_tokens for part in parts),
        drain_units_per_second=sum(part.drain_units_per_second for part in parts),
        evenness=jain(one.units / one.weight for one in tenants if one.due),
        tenants=tenants,
        requests=requests[:WAITING_MAX],
    )


def _received(parts: Iterable[TenantShareReport]) -> list[TenantShareReport]:
    """Return the shares by tenant, the most work first.

    A tenant that has waited at one gateway is due its share of the work at all gateways.
    """
    units, waiting, weights, owed = Counter[str](), Counter[str](), dict[str, float](), set[str]()
    for part in parts:
        units[part.tenant] += part.units  # type: ignore[assignment]  # a Counter counts anything that adds up
        waiting[part.tenant] += part.waiting
        weights[part.tenant] = part.weight
        if part.due:
            owed.add(part.tenant)
    given, due = sum(units.values()), sum(weights[tenant] for tenant in owed)
    found = [
        TenantShareReport(
            tenant=tenant,
            weight=weight,
            units=units[tenant],
            share=units[tenant] / given if given else 0.0,
            due=weight / due if tenant in owed else 0.0,
            waiting=waiting[tenant],
        )
        for tenant, weight in weights.items()
    ]
    return sorted(found, key=lambda one: (-one.units, one.tenant))[:TENANTS_MAX]
