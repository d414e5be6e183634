"""Sets up the application for tenants, and the stores behind it, from a gateway's parts."""

from contextlib import AsyncExitStack

from aiohttp import web

from gateway.app import Gateway
from gateway.batches.batch_claimer import BatchClaimer
from gateway.batches.claimer_setup import row_bytes_max
from gateway.web.cell_relay import CellRelay
from gateway.web.client_address import address_finder
from gateway.web.middleware.cors import CrossOriginPolicy
from gateway.web.stored.background_responses import BackgroundResponses
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.tenant_app import tenant_app


def open_background_responses(gateway: Gateway, stack: AsyncExitStack) -> BackgroundResponses | None:
    """Return what makes responses in the background; None without a database."""
    records = gateway.records
    if records.responses is None or records.background is None:
        return None
    background_responses = BackgroundResponses(records.responses, records.background)
    stack.push_async_callback(background_responses.close)
    return background_responses


def object_stores(
    gateway: Gateway, batch_claimer: BatchClaimer | None, background_responses: BackgroundResponses | None
) -> ObjectStores:
    """Return the stores of the objects that clients create, with their bounds."""
    settings, records = gateway.settings, gateway.records
    return ObjectStores(
        responses=records.responses,
        conversations=records.conversations,
        background_responses=background_responses,
        tenant_files=records.tenant_files,
        batches=records.batches,
        unfinished_max=settings.batches.tenant_unfinished_max,
        rows_max=settings.batches.rows_max,
        row_bytes_max=row_bytes_max(settings),
        wake=batch_claimer.wake if batch_claimer is not None else lambda: None,
    )


def tenant_app_of(gateway: Gateway, stores: ObjectStores, cells: CellRelay | None) -> web.Application:
    """Return the application for tenants, with the bounds of the settings."""
    listen, requests = gateway.settings.listen, gateway.settings.requests
    directory = gateway.services.authentication.directory
    cors = CrossOriginPolicy(listen.origins, lambda: directory.requires_keys) if listen.origins else None
    return tenant_app(
        gateway.services,
        gateway.drain_state,
        memory=gateway.memory,
        body_bytes_max=requests.body_bytes_max,
        body_seconds_max=requests.body_seconds_max,
        drain_seconds=gateway.settings.drain.seconds,
        # A unix socket is out of a browser's reach, and its clients name hosts as they like.
        local_names_only=lambda: listen.unix_socket is None and not directory.requires_keys,
        cors=cors,
        access_log=gateway.access_log,
        find_address=address_finder(listen.trusted_proxies),
        cells=cells,
        explorer=gateway.explorer,
        stores=stores,
    )
