"""The pipeline of a request: every ending settles its quota and writes one record."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway import pipeline
from gateway.domain.errors import GatewayError
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import QueueHeaders, Surface
from gateway.telemetry.request_record import CLIENT_CLOSED, OK
from tests.fakes.dispatch_stage import DispatchStage, prompt_of, until_idle
from tests.fakes.stub_adapter import StubAnswer, streamed
from workers.adapter import FailureKind, StreamBroken, WorkerFailed

ENDINGS = {
    "stream": (streamed, OK),
    "refusal": (lambda: StubAnswer(status=400, pieces=(b"{}",)), "refused_by_worker"),
    "no worker answers": (lambda: WorkerFailed("gone"), "worker_error"),
    "busy": (lambda: WorkerFailed("full", failure=FailureKind.BUSY), "overloaded"),
    "silent": (lambda: WorkerFailed("silent", timed_out=True), "worker_timeout"),
    "breaks off": (lambda: streamed(b"data: {}\n\n", error=StreamBroken("cut")), "stream_interrupted"),
    "a defect": (lambda: RuntimeError("a defect"), "internal_error"),
    "client leaves": (lambda: asyncio.get_running_loop().create_future(), CLIENT_CLOSED),
}


class StubExchange:
    """A client that reads everything."""

    id, surface, traceparent, caller, batch = "r", Surface.CHAT, None, None, ""
    moved = writes_at_once = False
    queue_headers = QueueHeaders()

    def __init__(self):
        self.failures = []
        self.memory = MemoryLease(MemoryBudget(1000))
        self.memory.reserve(100)

    def set_prompt_tokens(self, prompt_tokens, output_tokens_max):
        pass

    def prepare_stream(self, headers):
        pass

    async def begin(self, status, content_type, headers):
        pass

    async def write(self, data):
        pass

    async def end(self, last=b""):
        pass

    async def answer(self, status, content_type, body, headers):
        pass

    async def fail(self, error):
        assert isinstance(error, GatewayError)
        self.failures.append(error.code)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_every_ending_settles_the_quota_and_writes_one_record(ending, monkeypatch):
    outcome, code = ENDINGS[ending]
    stage = DispatchStage("a")
    stage.adapters["a"].next(outcome())
    record, exchange = await serve_until_idle(stage, monkeypatch)
    assert stage.reserved() == {}
    assert exchange.memory.bytes_held == 0
    assert record.code == code
    assert exchange.failures == ([] if code in (OK, CLIENT_CLOSED) else [code])


@pytest.mark.parametrize("sent", [(), (b"data: {",)], ids=["nothing", "half a frame"])
@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_breaks_off_before_the_client_has_any_of_it_comes_from_another_worker(
    status, sent, monkeypatch
):
    stage = DispatchStage("a", "b")
    stage.adapters["a"].next(
        StubAnswer(status=status, content_type="text/event-stream", pieces=sent, error=StreamBroken("cut"))
    )
    stage.adapters["b"].next(streamed())
    record, exchange = await serve_until_idle(stage, monkeypatch)
    assert (record.code, record.worker, record.attempts) == (OK, "b", 2)
    assert exchange.failures == []


async def serve_until_idle(stage, monkeypatch):
    """Serve a request, whose client leaves once nothing goes on; return its record and its exchange."""
    records, exchange = [], StubExchange()
    ctx = stage.context(id="r")

    async def blocks(ctx):
        return prompt_of()

    async def authenticated(exchange, services, progress):
        return ctx.tenant

    async def request_read(exchange, tenant, services, progress):
        progress.stream = True
        return ctx

    monkeypatch.setattr(pipeline, "authenticate", authenticated)
    monkeypatch.setattr(pipeline, "read_request", request_read)
    services = SimpleNamespace(
        dispatch=stage,
        prompt_hasher=SimpleNamespace(blocks=blocks),
        tracing=SimpleNamespace(start_trace=lambda traceparent, tracestate, batch: None),
        model_selection=SimpleNamespace(fallbacks=lambda ctx: ()),
        observers=(records.append,),
        cells=None,
        clock=stage.clock,
        wall=stage.clock,
    )
    task = asyncio.ensure_future(pipeline.serve(exchange, services))
    await until_idle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (record,) = records
    return record, exchange
