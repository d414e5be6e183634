"""A gateway that serves, as the value that its start returns and its drain takes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.app import Gateway
from gateway.batches.batch_claimer import BatchClaimer
from gateway.runtime.certificates import ServerTls
from gateway.runtime.listener_runner import ListenerRunner
from gateway.web.stored.background_responses import BackgroundResponses

if TYPE_CHECKING:
    from gateway.endpoint_picker.listener import PickerListener


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingGateway:
    """A gateway with open listeners, and the parts that have to be drained when it stops."""

    gateway: Gateway
    tenant_url: str  # of the listener for tenants, or `unix:PATH`
    admin_url: str  # of the listener for operators, or `unix:PATH`
    runner: ListenerRunner  # of the listener for tenants
    certificates: tuple[ServerTls, ...] = ()  # of both listeners
    batch_claimer: BatchClaimer | None  # None without a database
    background_responses: BackgroundResponses | None  # None without a database
    endpoint_picker: "PickerListener | None" = None  # None without a listener for Envoy
