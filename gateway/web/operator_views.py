"""The console's views of one gateway and of all gateways together; each works without a database.

What /health/ready answers is decided here too, see `_state`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any

import msgspec

from gateway.adminapi.index_view import IndexShown, index_shown
from gateway.adminapi.policy_comparison import PoliciesCompared, policies_compared
from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import check_names, number
from gateway.adminapi.requests import RequestList, request_list
from gateway.adminapi.settings_view import SettingsShown, settings_shown
from gateway.adminapi.workers import WorkerPage, worker_page
from gateway.app import Gateway
from gateway.dispatch.queue_report import QueueReport
from gateway.explorer.activity import NO_ACTIVITY, TENANTS_MAX, ActivityReport
from gateway.explorer.activity_history import HistoryReport
from gateway.explorer.request_explorer import RequestExplorer
from gateway.fleet.worker import Worker
from workers.worker import Health

ISSUER_STATES = ("none", "known", "away", "not read", "stale")
"""The states from good to bad. `away`: the provider does not answer, but its known keys are used. Later, tokens get
a 503.
"""

WORKERS_MAX = 5000
STATES_FIRST = {Health.DOWN: 0, Health.SUSPECT: 1, Health.DRAINING: 2}


class OperatorViews:
    """The views of a gateway. Every method takes query parameters and raises Problem."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def explorer(self) -> RequestExplorer:
        """The explorer of finished requests. Raises Problem where none are kept."""
        explorer = self._gateway.explorer
        if explorer is None:
            raise Problem(404, "No requests are kept (telemetry.requests.kept_max: 0).")
        return explorer

    async def overview(self, parameters: Mapping[str, str]) -> dict[str, object]:
        """Return totals, queues, workers and the busiest tenants.

        `workers` and `tenants` bound their numbers; workers that need attention, then the busiest, come first.
        """
        check_names(parameters, ("workers", "tenants"))
        gateway = self._gateway
        workers = [*gateway.fleet]
        most = number(parameters, "workers", WORKERS_MAX, WORKERS_MAX)
        if len(workers) > most:
            workers = nsmallest(most, workers, key=_attention)
        tenants = number(parameters, "tenants", TENANTS_MAX, TENANTS_MAX)
        queues, activity = await asyncio.gather(
            gateway.queues.report(), gateway.activity.report([worker.id for worker in workers], tenants)
        )
        return {
            **overview_of(gateway, workers, activity),
            "queue": msgspec.to_builtins(_shortened(queues, most) if "workers" in parameters else queues),
        }

    async def history(self, parameters: Mapping[str, str]) -> HistoryReport:
        """Return the activity of the last hour."""
        check_names(parameters, ())
        return await self._gateway.history.report()

    async def queue(self, parameters: Mapping[str, str]) -> QueueReport:
        """Return the queues of all gateways; `limit` bounds the requests and the tenants of each."""
        check_names(parameters, ("limit",))
        report = await self._gateway.queues.report()
        limit = number(parameters, "limit", 0, 10_000)
        return _shortened(report, limit) if limit else report

    async def policies(self, parameters: Mapping[str, str]) -> PoliciesCompared:
        """Return the comparison of the policies."""
        check_names(parameters, ())
        return policies_compared(await self._gateway.activity.report([], 0), self._gateway.in_force)

    async def requests(self, parameters: Mapping[str, str]) -> RequestList:
        """Return finished requests."""
        return await request_list(self.explorer, parameters)

    async def index(self, parameters: Mapping[str, str]) -> IndexShown:
        """Return the prefix index."""
        return await index_shown(self._gateway.index.index.replica, parameters)

    async def settings(self, parameters: Mapping[str, str]) -> SettingsShown:
        """Return the settings in force."""
        return await settings_shown(self._gateway.in_force, parameters)

    async def workers(self, parameters: Mapping[str, str]) -> WorkerPage:
        """Return the workers."""
        return worker_page(self._gateway.fleet, self._gateway.discovery, parameters)


def readiness(gateway: Gateway) -> dict[str, object]:
    """Return the state of the gateway.

    A gateway is ready while it accepts requests, can check API keys, and has a routable worker whose models are
    known. A gateway without any worker is ready too: an autoscaler may start the first one for its requests.
    """
    return {**_state(gateway), "workers": {worker.id: worker.health.state.value for worker in gateway.fleet}}


def overview_of(gateway: Gateway, workers: Iterable[Worker], activity: ActivityReport) -> dict[str, object]:
    """Return the overview except the queues, with these workers; `activity` is that of all gateways."""
    dispatch = gateway.services.dispatch
    stats = dispatch.index.stats()
    states = Counter(worker.health.state.value for worker in gateway.fleet)
    return {
        "version": gateway.version,
        "policy": dispatch.router.policy_name,
        **_state(gateway),
        "gateways": activity.gateways,
        "all": activity.all,
        "worker_states": {**states},
        "workers": [
            {**_worker(worker), **activity.workers.get(worker.id, NO_ACTIVITY)} for worker in workers
        ],
        "tenants": [{"id": tenant, **shown} for tenant, shown in sorted(activity.tenants.items())],
        "waiting": {model: len(room) for model, room in dispatch.rooms.all().items()},
        "prefixes": {"nodes": stats.nodes, "blocks": stats.blocks, "predictions": stats.predictions},
        "leases": len(dispatch.reservations.leases),
    }


def _state(gateway: Gateway) -> dict[str, Any]:
    fleet = gateway.fleet
    serves = any(worker.health.routable and worker.models_known for worker in fleet)
    without_workers = not fleet.expected and not any(True for _ in fleet)
    directory = gateway.records.directory
    return {
        "ready": gateway.drain_state.ready
        and (serves or without_workers)
        and (directory is None or directory.usable)
        and (gateway.records.objects is None or gateway.records.objects.loaded),
        "draining": not gateway.drain_state.ready,
        "redis": "away" if gateway.quotas.store.away else "shared",
        "database": directory.state if directory is not None else "none",
        "token_issuers": max(
            (issuer.state for issuer in gateway.every_issuer), key=ISSUER_STATES.index, default="none"
        ),
        "tenant_objects": gateway.records.objects.counts() if gateway.records.objects is not None else None,
        "index": "following" if gateway.index.reader.up else "standing still",
        "failing_loops": [name for name, state in gateway.supervisor.loops.items() if state.failing],
    }


def _attention(worker: Worker) -> tuple[int, int]:
    """Return the sort key of a worker on the overview: workers that do not serve come first, then the busiest."""
    return STATES_FIRST.get(worker.health.state, 3), -(worker.load.streams + worker.load.others.streams)


def _shortened(report: QueueReport, most: int) -> QueueReport:
    """Return the report with at most so many tenants and requests of each queue."""
    queues = [
        msgspec.structs.replace(queue, tenants=queue.tenants[:most], requests=queue.requests[:most])
        for queue in report.queues
    ]
    return msgspec.structs.replace(report, queues=queues)


def _worker(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id,
        "kind": worker.kind,
        "health": worker.health.state.value,
        "models": sorted(worker.models),
        "streams": worker.load.streams + worker.load.others.streams,
        "tokens_queued": worker.load.all_tokens_queued,
        "kv_tokens": worker.load.kv_tokens + worker.load.others.kv_tokens,
        "kv_tokens_max": worker.report.kv_tokens_max,
        "prefill_tokens_per_second": 1000 / worker.speed.ms_per_token,
        "failures": worker.failures,
    }
