"""The gRPC server of the endpoint picker: Envoy's ExternalProcessor, and gRPC's health checks."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.endpoint_picker.picker import EndpointPicker
from gateway.process.drain_state import DrainState
from gateway.settings.listeners import EndpointPickerSettings, ListenerTlsSettings

PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"
LIVENESS = "liveness"
SERVICES = frozenset({"", "readiness", PROCESSOR})
"""Names that health checks may use besides LIVENESS."""

MESSAGE_BYTES_MAX = 4 * 1024**2
"""Longest message from Envoy: a part of a body, as long as the buffer of its connection."""


class GrpcConnection:
    """The messages of one request over gRPC: a EnvoyConnection."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.read: Callable[[], Coroutine[Any, Any, object]] = context.read

    async def write(self, message: messages.ProcessingResponse) -> None:
        """Send a message. Raises ConnectionResetError where Envoy has closed the stream."""
        try:
            await self._context.write(message)
        except grpc.aio.BaseError as err:
            raise ConnectionResetError("the proxy has closed the stream") from err


class PickerListener:
    """The listener of the endpoint picker. Raises OSError for an address that it cannot listen on."""

    def __init__(
        self,
        settings: EndpointPickerSettings,
        picker: EndpointPicker,
        drain_state: DrainState,
        *,
        shared_port: bool,
    ) -> None:
        """`shared_port`: whether other processes listen on the same port."""
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", int(shared_port)),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            )
        )
        self._picker = picker
        self._drain_state = drain_state
        self._server.add_generic_rpc_handlers((self._processor(), self._health()))
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(settings.tls))
        except RuntimeError as err:
            raise OSError(f"cannot listen on {address}") from err
        self.url = f"{'grpcs' if settings.tls is not None else 'grpc'}://{host}:{port}"
        """The address that it listens on."""

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and let the running ones end within so many seconds."""
        await self._server.stop(seconds)

    async def close(self) -> None:
        """Stop at once."""
        await self._server.stop(None)

    def _processor(self) -> Any:
        async def process(_: object, context: Any) -> None:
            with suppress(ConnectionResetError, grpc.aio.BaseError):  # Envoy has closed the stream.
                await self._picker.process(GrpcConnection(context))

        handler = grpc.stream_stream_rpc_method_handler(
            process,
            request_deserializer=messages.ProcessingRequest.FromString,
            response_serializer=messages.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(PROCESSOR, {"Process": handler})

    def _health(self) -> Any:
        async def check(request: messages.HealthCheckRequest, context: Any) -> messages.HealthCheckResponse:
            status = messages.HealthCheckResponse
            if request.service == LIVENESS:
                return status(status=status.SERVING)
            if request.service not in SERVICES:
                await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return status(status=status.SERVING if self._drain_state.ready else status.NOT_SERVING)

        handler = grpc.unary_unary_rpc_method_handler(
            check,
            request_deserializer=messages.HealthCheckRequest.FromString,
            response_serializer=messages.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(HEALTH, {"Check": handler})


def _credentials(tls: ListenerTlsSettings) -> Any:
    """Return credentials that read the certificate again for each new connection."""

    def configuration() -> Any:
        pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
        authorities = Path(tls.client_ca).read_bytes() if tls.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def renewed() -> Any:
        try:
            return configuration()
        except OSError:
            return None  # The files are being replaced: the old pair stays in force.

    return grpc.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=tls.client_ca is not None
    )
