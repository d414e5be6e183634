"""A proxy that follows a script: it asks an endpoint picker over gRPC as Envoy does, one message at a time."""

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from gateway.endpoint_picker import ext_proc_pb2 as messages

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHECK = "/grpc.health.v1.Health/Check"
END = grpc.aio.EOF


class ScriptedEnvoy:
    """A gRPC client of one endpoint picker: `async with ScriptedEnvoy(url) as envoy`."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(url.rpartition("//")[2])

    async def __aenter__(self) -> "ScriptedEnvoy":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def stream(self) -> Any:
        """Begin a stream: one HTTP request."""
        call = self._channel.stream_stream(
            PROCESS,
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )
        return call()

    async def health(self, service: str) -> int:
        """Return the serving status of a service. Raises grpc.aio.AioRpcError for an unknown one."""
        check = self._channel.unary_unary(
            CHECK,
            request_serializer=messages.HealthCheckRequest.SerializeToString,
            response_deserializer=messages.HealthCheckResponse.FromString,
        )
        answer: messages.HealthCheckResponse = await check(messages.HealthCheckRequest(service=service))
        return int(answer.status)


def request_headers(
    headers: dict[str, str], *, end: bool = False, subset: Iterable[str] | None = None
) -> messages.ProcessingRequest:
    """Return the first message of a request."""
    asked = messages.ProcessingRequest(
        request_headers=messages.HttpHeaders(headers=_map(headers), end_of_stream=end)
    )
    if subset is not None:
        hint = asked.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": list(subset)})
    return asked


def request_body(body: bytes, *, end: bool = True) -> messages.ProcessingRequest:
    """Return a piece of a request's body."""
    return messages.ProcessingRequest(request_body=messages.HttpBody(body=body, end_of_stream=end))


def request_trailers() -> messages.ProcessingRequest:
    """Return the trailers of a request."""
    return messages.ProcessingRequest(request_trailers=messages.HttpTrailers())


def response_headers(headers: dict[str, str], *, end: bool = False) -> messages.ProcessingRequest:
    """Return the head of a worker's answer."""
    return messages.ProcessingRequest(
        response_headers=messages.HttpHeaders(headers=_map(headers), end_of_stream=end)
    )


def response_body(body: bytes, *, end: bool = True) -> messages.ProcessingRequest:
    """Return a piece of a worker's answer."""
    return messages.ProcessingRequest(response_body=messages.HttpBody(body=body, end_of_stream=end))


def response_trailers() -> messages.ProcessingRequest:
    """Return the trailers of a worker's answer."""
    return messages.ProcessingRequest(response_trailers=messages.HttpTrailers())


def headers_of(mutation: messages.HeaderMutation) -> dict[str, str]:
    """Return the headers that a change sets."""
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def _map(headers: dict[str, str]) -> messages.HeaderMap:
    return messages.HeaderMap(
        headers=[messages.HeaderValue(key=name, raw_value=value.encode()) for name, value in headers.items()]
    )
