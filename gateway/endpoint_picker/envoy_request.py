"""One HTTP request that Envoy carries: the messages that Envoy and the gateway exchange about it.

    Envoy                                      gateway
      request_headers, request_body ... ------>  the pipeline: key, quota, turn, worker
      <------ the endpoint, the worker's request headers and body          or an immediate response
      ---- the request ----> worker
      <--- its answer ------
      response_headers, response_body ... ---->  the pipeline: the answer is read, filtered, translated
      <------ the client's response headers and body                       or an immediate response

Bodies are sent in mode FULL_DUPLEX_STREAMED: what comes back from the gateway takes the place of what was sent to
it, piece by piece and in any number of pieces. The end of the stream is the end of the request; an early end means
that the client has left.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Protocol

from google.protobuf.struct_pb2 import Struct
from multidict import CIMultiDict

from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.endpoint_picker.buffered_body import BufferedBody
from workers.adapters.connection import ConnectionBroken

PIECE_BYTES_MAX = 60_000
"""Some proxies refuse messages with more than 64 KiB of a body."""

ENDPOINT = "x-gateway-destination-endpoint"
"""The header, and the key of the dynamic metadata, that names the worker's address."""
ENDPOINT_NAMESPACE = "envoy.lb"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"


class EnvoyConnection(Protocol):
    """The messages of one request, as gRPC delivers them."""

    async def read(self) -> object:
        """Return the next message; grpc.aio.EOF after the last one."""
        ...

    def write(self, message: messages.ProcessingResponse) -> Awaitable[None]:
        """Send a message, once Envoy has room for it."""
        ...


class EnvoyRequest:
    """The exchange of messages with Envoy about one HTTP request.

    `unread_seconds_max`: a client that takes nothing of its answer for so long is treated as gone.
    """

    def __init__(
        self,
        connection: EnvoyConnection,
        first: messages.ProcessingRequest,
        unread_seconds_max: float,
    ) -> None:
        self.request_headers = header_dict(first.request_headers.headers)
        self.request_body = BufferedBody()
        if first.request_headers.end_of_stream:
            self.request_body.put(b"", last=True)
        self.subset = _subset(first.metadata_context)
        """The addresses that the worker must be one of; None where Envoy names none."""
        self.response_headers: asyncio.Future[CIMultiDict[str]] = asyncio.get_running_loop().create_future()
        """The headers of the answer to the picked request; ConnectionBroken where the stream ended before."""
        self.response_body = BufferedBody()
        self._connection = connection
        self._unread_seconds_max = unread_seconds_max
        self._request_trailers = False
        self._response_trailers = False
        self._answer_has_body = False
        self.over = False
        """Whether the gateway sends or has sent the last message."""

    async def receive(self) -> None:
        """Take messages from Envoy until the stream ends, and hand them to their readers."""
        read = self._connection.read
        while isinstance(message := await read(), messages.ProcessingRequest):
            kind = message.WhichOneof("request")
            if kind == "response_body":
                body = message.response_body
                self.response_body.put(body.body, last=body.end_of_stream)
                await self.response_body.wait_for_room()
            elif kind == "request_body":
                body = message.request_body
                self.request_body.put(body.body, last=body.end_of_stream)
                await self.request_body.wait_for_room()
            elif kind == "response_headers":
                self._answer_has_body = not message.response_headers.end_of_stream
                if not self._answer_has_body:
                    self.response_body.put(b"", last=True)
                if not self.response_headers.done():
                    self.response_headers.set_result(header_dict(message.response_headers.headers))
            elif kind == "response_trailers":
                self._response_trailers = True
                self.response_body.put(b"", last=True)
            elif kind == "request_trailers":
                self._request_trailers = True
                self.request_body.put(b"", last=True)

    def fail(self) -> None:
        """End both bodies: no more messages come."""
        error = ConnectionBroken("the stream of the proxy has ended")
        self.request_body.fail(error)
        self.response_body.fail(error)
        if not self.response_headers.done():
            self.response_headers.set_exception(error)
            self.response_headers.exception()  # It may be awaited by no reader.

    # To Envoy

    async def pick(self, endpoint: str, headers: Mapping[str, str], body: Iterable[bytes]) -> None:
        """Send the request on: to this endpoint, with these headers and this body in place of the client's."""
        named = Struct()
        named.update({ENDPOINT_NAMESPACE: {ENDPOINT: endpoint}})
        mutation = _mutation({**headers, ENDPOINT: endpoint}, without=self.request_headers)
        await self._send(
            messages.ProcessingResponse(
                request_headers=messages.HeadersResponse(
                    response=messages.CommonResponse(header_mutation=mutation)
                ),
                dynamic_metadata=named,
            )
        )
        trailers = self._request_trailers
        for piece, last in _pieces(body):
            await self._send(
                messages.ProcessingResponse(request_body=_body_response(piece, last=last and not trailers))
            )
        if trailers:
            await self._send(messages.ProcessingResponse(request_trailers=messages.TrailersResponse()))

    @property
    def streams_answers(self) -> bool:
        """Whether an answer can be sent piece by piece: Envoy then waits for it, in place of a worker's."""
        return (
            self._answer_has_body
            and self.response_headers.done()
            and self.response_headers.exception() is None
        )

    async def begin_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a streamed answer, in place of the worker's."""
        mutation = _mutation({":status": str(status), **headers}, without=self.response_headers.result())
        await self._send(
            messages.ProcessingResponse(
                response_headers=messages.HeadersResponse(
                    response=messages.CommonResponse(header_mutation=mutation)
                )
            )
        )

    async def write_answer(self, data: bytes, *, last: bool = False) -> None:
        """Send more of a streamed answer. Raises ConnectionResetError if the client does not read it."""
        self.over = self.over or last  # Envoy may close the stream before this coroutine continues.
        trailers = last and self._response_trailers
        for piece, ends in _pieces([data]):
            await self._send(
                messages.ProcessingResponse(
                    response_body=_body_response(piece, last=ends and last and not trailers)
                )
            )
        if trailers:
            await self._send(messages.ProcessingResponse(response_trailers=messages.TrailersResponse()))

    async def answer_at_once(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer the client in place of a worker, and end the request."""
        self.over = True
        await self._send(
            messages.ProcessingResponse(
                immediate_response=messages.ImmediateResponse(
                    status=messages.HttpStatus(code=status),
                    headers=_mutation(headers),
                    body=body,
                    details="radixgate",
                )
            )
        )

    async def _send(self, message: messages.ProcessingResponse) -> None:
        try:
            async with asyncio.timeout(self._unread_seconds_max):
                await self._connection.write(message)
        except TimeoutError:
            raise ConnectionResetError("the client does not read its answer") from None


def header_dict(headers: messages.HeaderMap) -> CIMultiDict[str]:
    """Return headers by their names; bytes that are not valid text are surrogates."""
    found = CIMultiDict[str]()
    for header in headers.headers:
        value = header.raw_value.decode("utf-8", "surrogateescape") if header.raw_value else header.value
        found.add(header.key, value)
    return found


def _mutation(headers: Mapping[str, str], without: Iterable[str] = ()) -> messages.HeaderMutation:
    """Return the change that sets these headers, and removes the others of `without`."""
    return messages.HeaderMutation(
        set_headers=[
            messages.HeaderValueOption(
                header=messages.HeaderValue(
                    key=name.lower(), raw_value=value.encode("utf-8", "surrogateescape")
                ),
                append_action=messages.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in headers.items()
        ],
        remove_headers=sorted(
            {name for name in without if not name.startswith(":")} - {name.lower() for name in headers}
        ),
    )


def _body_response(piece: bytes, *, last: bool) -> messages.BodyResponse:
    streamed = messages.StreamedBodyResponse(body=piece, end_of_stream=last)
    return messages.BodyResponse(
        response=messages.CommonResponse(body_mutation=messages.BodyMutation(streamed_response=streamed))
    )


def _pieces(body: Iterable[bytes]) -> Iterable[tuple[bytes, bool]]:
    """Yield pieces of at most PIECE_BYTES_MAX, each with whether it is the last one; at least one."""
    before: bytes | None = None
    for part in body:
        for start in range(0, len(part), PIECE_BYTES_MAX):
            if before is not None:
                yield before, False
            before = bytes(part[start : start + PIECE_BYTES_MAX])
    yield before or b"", True


def _subset(metadata: messages.Metadata) -> frozenset[str] | None:
    """Return the addresses of the endpoint picker protocol's subset; None where the request has none."""
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "list_value":
        return frozenset(each.string_value.strip() for each in value.list_value.values)
    return frozenset(each.strip() for each in value.string_value.split(",") if each.strip())
