"""RowExchange: presents a row of a batch to the pipeline as an exchange without a client, in the class `batch`."""

from collections.abc import Mapping

from gateway.domain.errors import BadRequest, GatewayError, WorkerError
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import InferenceRequest, QueueHeaders, Surface
from gateway.domain.tenant import Tenant
from gateway.web.bodies.body_decoding import decode_in_thread_if_long
from gateway.web.bodies.body_limits import check_values
from gateway.web.dialect import Dialect
from policies.service_class import BATCH


class RowExchange:
    """An Exchange for one row of a batch; afterwards it has a `body` with its `status`, or an `error`."""

    traceparent = None
    tracestate = None
    api_key = None
    idempotency_key = None
    address = None
    carrier = None
    started = False
    moved = False
    writes_at_once = False
    queue_headers = QueueHeaders(service_class=BATCH.name)

    def __init__(
        self,
        request_id: str,
        dialect: Dialect,
        body: bytes,
        caller: tuple[str, str],
        memory: MemoryBudget,
        batch: str,
    ) -> None:
        self.id = request_id
        self.caller = caller
        self.batch = batch
        self.status = 0
        self.body = b""
        self.error: GatewayError | None = None
        self._dialect = dialect
        self._request = body
        self.memory = MemoryLease(memory)

    @property
    def surface(self) -> Surface:
        """The API that the row calls."""
        return self._dialect.surface

    @property
    def response_body(self) -> bytes:
        """The answer, or the error in the API's own format."""
        return self.body if self.error is None else self._dialect.error_body(self.error)

    async def move_to_cell(self, cell: str, tenant: Tenant) -> bool:
        """Return False: a row is served by the gateway that has claimed its batch."""
        return False

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Return the decoded request of the row.

        Raises BadRequest, also for a request that wants a stream, and Overloaded.
        """
        self.memory.resize(await decode_in_thread_if_long(self._request, check_values))
        request = await self._dialect.decode_request(self._request, tenant)
        if request.stream:
            raise BadRequest("A request of a batch cannot be streamed.", param="stream")
        return request

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Pass the number of prompt tokens on to the dialect."""
        self._dialect.set_prompt_tokens(prompt_tokens, output_tokens_max)

    def prepare_stream(self, headers: Mapping[str, str]) -> None:
        """Do nothing: a row is never streamed."""

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Raise WorkerError: a row is never streamed."""
        raise WorkerError

    async def comment(self) -> None:
        """Raise WorkerError: a row is never streamed."""
        raise WorkerError

    async def write(self, data: bytes) -> None:
        """Raise WorkerError: a row is never streamed."""
        raise WorkerError

    def write_at_once(self, data: bytes) -> None:
        """Raise WorkerError: a row is never streamed."""
        raise WorkerError

    async def end(self, last: bytes = b"") -> None:
        """Raise WorkerError: a row is never streamed."""
        raise WorkerError

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Keep the answer. Raises WorkerError if it is not JSON."""
        if content_type != "application/json":
            raise WorkerError
        self.status, self.body = status, await self._dialect.answer_body(body)

    async def fail(self, error: GatewayError) -> None:
        """Keep the error."""
        self.error = error
