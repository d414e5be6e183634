"""A row of a batch as the pipeline sees it: nobody waits at a socket, and its tenant has been let in before."""

from collections.abc import Mapping

from gateway.domain.errors import BadRequest, GatewayError, WorkerError
from gateway.domain.request import InferenceRequest, Surface, QueueHeaders
from gateway.domain.tenant import Tenant
from gateway.web.dialect import Dialect
from policies.service_class import BATCH


class RowExchange:
    """See Exchange. Afterwards there is a `body` with its `status`, or an `error`."""

    traceparent = None
    api_key = None
    idempotency_key = None
    address = None
    started = False
    queue_headers = QueueHeaders(service_class=BATCH.name)

    def __init__(self, request_id: str, dialect: Dialect, body: bytes, caller: tuple[str, str]) -> None:
        self.id = request_id
        self.caller = caller
        self.status = 0
        self.body = b""
        self.error: GatewayError | None = None
        self._dialect = dialect
        self._request = body

    @property
    def surface(self) -> Surface:
        return self._dialect.surface

    @property
    def said(self) -> bytes:
        """The answer, or the error in the API's own shape."""
        return self.body if self.error is None else self._dialect.error_body(self.error)

    async def request(self, tenant: Tenant) -> InferenceRequest:
        request = await self._dialect.decode_request(self._request, tenant)
        if request.stream:
            raise BadRequest("A request of a batch cannot be streamed.", param="stream")
        return request

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        self._dialect.set_prompt_tokens(prompt_tokens, output_tokens_max)

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Nobody has asked for a stream."""
        raise WorkerError

    async def comment(self) -> None:
        raise WorkerError

    async def write(self, data: bytes) -> None:
        raise WorkerError

    async def end(self) -> None:
        raise WorkerError

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        if content_type != "application/json":
            raise WorkerError
        self.status, self.body = status, await self._dialect.answer_body(body)

    async def fail(self, error: GatewayError) -> None:
        self.error = error
