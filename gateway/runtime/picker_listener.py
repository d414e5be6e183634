"""Opens the listener for an Envoy that requests the worker of each request; gRPC is imported only then."""

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.app import Gateway
from gateway.runtime.listen_error import ListenAddressUnavailable
from gateway.settings.types import SettingsProblem

if TYPE_CHECKING:
    from gateway.endpoint_picker.listener import PickerListener

log = logging.getLogger(__name__)


async def open_picker(
    gateway: Gateway, stack: AsyncExitStack, *, shared_port: bool
) -> "PickerListener | None":
    """Listen for Envoy; return None where the settings have no such listener.

    Raises SettingsProblem without the extra `ext-proc`, ListenAddressUnavailable.
    """
    settings = gateway.settings.listen.endpoint_picker
    if settings is None:
        return None
    try:
        from gateway.endpoint_picker.listener import PickerListener
        from gateway.endpoint_picker.picker import EndpointPicker, PickerServices
    except ImportError as err:
        raise SettingsProblem("$.listen.endpoint_picker: install radixgate[ext-proc] to serve Envoy") from err
    requests = gateway.settings.requests
    picker = EndpointPicker(
        PickerServices(
            services=gateway.services,
            drain_state=gateway.drain_state,
            memory=gateway.memory,
            access_log=gateway.access_log,
            responses=gateway.records.responses,
            trusted=gateway.settings.listen.trusted_proxies,
            body_bytes_max=requests.body_bytes_max,
            body_seconds_max=requests.body_seconds_max,
        )
    )
    try:
        server = PickerListener(settings, picker, gateway.drain_state, shared_port=shared_port)
    except OSError as err:
        raise ListenAddressUnavailable(str(err)) from err
    stack.push_async_callback(server.close)
    await server.start()
    log.info("serving Envoy as its endpoint picker at %s", server.url)
    return server
