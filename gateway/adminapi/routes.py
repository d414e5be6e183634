"""The routes of the admin API: every operation needs authorization, every failure is answered as a problem."""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aiohttp import web

from gateway.adminapi import (
    index_view,
    keys,
    openapi,
    operators,
    policy_comparison,
    queues,
    reports,
    requests,
    resources,
    route_explanation,
    settings_view,
    workers,
)
from gateway.adminapi.authorization import Authorization
from gateway.adminapi.operation import Operation, OperationRequest, OperationResponse
from gateway.adminapi.problems import Problem, database_problem
from gateway.adminapi.route_explanation import Decode
from gateway.database import schema
from gateway.database.audit_log import AuditLog
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.tenant_store import TenantStore
from gateway.database.usage_query import UsageReader
from gateway.discovery.discovery import Discovery
from gateway.discovery.worker_registry import WorkerRegistry
from gateway.dispatch.queue_reporter import QueueReporter
from gateway.explorer.activity import ActivityReporter
from gateway.explorer.request_explorer import RequestExplorer
from gateway.pipeline import Services
from gateway.process.settings_in_force import SettingsInForce
from gateway.tenants.key_lifecycle import KeyLifecycle, KeyProblem
from gateway.tenants.operator_lifecycle import OperatorLifecycle
from radix_cache.redis.call import RedisDown
from radix_cache.shared.replica import TreeReplica

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminApiServices:
    """The parts of a gateway that the operations of the admin API use."""

    store: TenantStore
    audit: AuditLog
    usage: UsageReader
    pepper: bytes
    """The secret of the keys' hashes."""
    upgrades: bool
    """Whether tables of an older version are upgraded."""
    version: str
    changed: Callable[[], None]
    """Called after a change, so that this gateway reads the changed tables at once."""
    gateway_services: Services
    discovery: Discovery
    registry: WorkerRegistry
    decode: Decode
    """Decodes a request that is to be explained."""
    queues: QueueReporter
    replica: TreeReplica
    """This gateway's copy of the prefix index."""
    explorer: RequestExplorer | None
    """None where finished requests are not kept."""
    activity: ActivityReporter
    in_force: SettingsInForce
    file_plans: Callable[[], Collection[str]]
    """Names of the settings file's plans."""
    file_tenants: Callable[[], Collection[str]]
    """Identities of the settings file's tenants."""


def add_routes(app: web.Application, services: AdminApiServices, authorization: Authorization) -> None:
    """Add every operation below /admin/v1 to an application, and the OpenAPI document of all of them."""
    operations = all_operations(services)
    document = openapi.admin_api_document(operations, services.version)

    async def describe(request: OperationRequest) -> OperationResponse:
        return OperationResponse(value=document)

    description = Operation(
        method="GET",
        path="/openapi.json",
        role="viewer",
        summary="Show this OpenAPI document.",
        handle=describe,
        response_type=dict,
    )
    for operation in (*operations, description):
        handler = _handler(operation, services, authorization)
        app.router.add_route(operation.method, openapi.BASE + operation.path, handler)


def all_operations(services: AdminApiServices) -> list[Operation]:
    """Return every operation of the admin API."""
    return [
        *resources.operations(services.file_plans),
        *keys.operations(services.file_tenants),
        *reports.operations(
            services.usage,
            services.audit,
            services.gateway_services.catalogue,
            services.gateway_services.authentication.directory,
            services.gateway_services.dispatch.reservations.leases,
        ),
        *operators.operations(OperatorLifecycle(services.store, services.pepper)),
        *workers.operations(services.gateway_services.dispatch.fleet, services.discovery, services.registry),
        *route_explanation.operations(services.gateway_services, services.decode),
        *queues.operations(services.queues),
        *index_view.operations(services.replica),
        *policy_comparison.operations(services.activity, services.in_force),
        *settings_view.operations(services.in_force),
        *(requests.operations(services.explorer) if services.explorer is not None else ()),
    ]


def _handler(
    operation: Operation, services: AdminApiServices, authorization: Authorization
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(http: web.Request) -> web.Response:
        try:
            principal = await authorization.authorize(http, operation.role)
            await schema.ensure_current(services.store.database, upgrades=services.upgrades)
            store = services.store.acting(principal.name)
            request = OperationRequest(
                http=http,
                principal=principal,
                store=store,
                key_lifecycle=KeyLifecycle(store, services.pepper),
            )
            answer = await operation.handle(request)
        except Problem as problem:
            return problem.response(http.path)
        except KeyProblem as err:
            return Problem(409, f"{str(err)[:1].upper()}{str(err)[1:]}.").response(http.path)
        except DatabaseConflict as err:
            log.warning("the admin API: the database refuses a change: %s", err)
            return Problem(409, "The object refers to one that does not exist, or exists already.").response(
                http.path
            )
        except (DatabaseDown, TimeoutError) as err:
            return database_problem(err).response(http.path)
        except RedisDown as err:
            log.warning("the admin API: Redis does not answer: %s", err)
            return Problem(503, "Redis does not answer.", {"retry-after": "1"}).response(http.path)
        if operation.method != "GET":
            services.changed()
        return answer.response()

    return handle
