"""Puts the admin API into an application: every operation behind the gate, every failure a problem."""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aiohttp import web

from gateway.adminapi import keys, openapi, operators, queues, reports, resources, route_explanation, workers
from gateway.adminapi.authorization import Authorization
from gateway.adminapi.operation import OperationResponse, OperationRequest, Operation
from gateway.adminapi.problems import Problem, no_database
from gateway.adminapi.route_explanation import Decode
from gateway.database import schema
from gateway.database.audit_log import AuditLog
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.tenant_store import TenantStore
from gateway.database.usage_query import UsageReader
from gateway.discovery.discovery import Discovery
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.pipeline import Services
from gateway.queueing.queue_report import AllQueues
from gateway.tenants.key_life import KeyLife, KeyProblem
from gateway.tenants.operator_life import OperatorLife
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminApiServices:
    """What the API is about. `changed`: called after a change, so that this gateway looks at once.

    `upgrades`: of tables of an older version. `decode`: of requests that are explained. `plans_of_file`:
    names of the settings file's plans.
    """

    store: TenantStore
    audit: AuditLog
    usage: UsageReader
    pepper: bytes
    upgrades: bool
    version: str
    changed: Callable[[], None]
    services: Services
    discovery: Discovery
    registry: WorkerRegistry
    decode: Decode
    queues: AllQueues
    plans_of_file: Callable[[], Collection[str]]


def mount(app: web.Application, records: AdminApiServices, gate: Authorization) -> None:
    """Adds everything below /admin/v1, behind the gate."""
    every = all_operations(records)
    served = openapi.document(every, records.version)

    async def describe(call: OperationRequest) -> OperationResponse:
        return OperationResponse(value=served)

    description = Operation(
        method="GET",
        path="/openapi.json",
        role="viewer",
        does="This document.",
        handle=describe,
        gives=dict,
    )
    for operation in (*every, description):
        answering = _answering(operation, records, gate)
        app.router.add_route(operation.method, openapi.BASE + operation.path, answering)


def all_operations(records: AdminApiServices) -> list[Operation]:
    return [
        *resources.operations(records.plans_of_file),
        *keys.operations(),
        *reports.operations(records.usage, records.audit),
        *operators.operations(OperatorLife(records.store, records.pepper)),
        *workers.operations(records.services.reservations.fleet, records.discovery, records.registry),
        *route_explanation.operations(records.services, records.decode),
        *queues.operations(records.queues),
    ]


def _answering(
    operation: Operation, records: AdminApiServices, gate: Authorization
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(http: web.Request) -> web.Response:
        try:
            asker = await gate.admit(http, operation.role)
            await schema.ready(records.store.database, upgrades=records.upgrades)
            store = records.store.acting(asker.name)
            call = OperationRequest(http=http, asker=asker, store=store, life=KeyLife(store, records.pepper))
            answer = await operation.handle(call)
        except Problem as problem:
            return problem.response(http.path)
        except KeyProblem as err:
            return Problem(409, f"{str(err)[:1].upper()}{str(err)[1:]}.").response(http.path)
        except DatabaseConflict as err:
            log.warning("the admin API: %s", err)
            return Problem(409, "It refers to what is not there, or is there already.").response(http.path)
        except (DatabaseDown, TimeoutError) as err:
            return no_database(err).response(http.path)
        except RedisDown as err:
            log.warning("the admin API: Redis: %s", err)
            return Problem(503, "Redis cannot be asked.", {"retry-after": "1"}).response(http.path)
        if operation.method != "GET":
            records.changed()
        return answer.response()

    return handle
