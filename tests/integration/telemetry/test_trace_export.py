"""Traces as a collector gets them: a small OTLP receiver, fed by a gateway that serves a request."""

import asyncio
import gzip

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.batches.test_batches import create, line, show
from tests.integration.files.test_files_api import with_database

PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
PROMPT = "a very private question"


class Collector:
    """Keeps the spans it is sent, and the bytes they came in."""

    def __init__(self):
        self.spans, self.raw = [], b""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _take(self, http):
        body = await http.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response()


async def exported(gateway, collector, **headers):
    """One streamed request; its spans, by name, as they arrive when the gateway has stopped."""
    settings = {"telemetry.otlp_endpoint": collector.url, "telemetry.sample_ratio": "1.0"}
    async with ScriptedWorker() as worker:
        async with gateway(worker, **settings) as running:
            async with running.http.post(
                running.url + "/v1/chat/completions",
                json={"model": "m", "stream": True, "messages": [{"role": "user", "content": PROMPT}]},
                headers={**running.headers(), **headers},
            ) as response:
                await response.read()
            # Closing a gateway flushes its spans, in a thread of the exporter; the collector must answer meanwhile.
            closing = asyncio.get_running_loop().run_in_executor(
                None, running.here.gateway.services.tracing.close
            )
            await asyncio.wait_for(closing, 60)
        key = running.keys["acme"].text
    return {span.name: span for span in collector.spans}, worker.seen[0].headers, key


async def test_a_request_is_one_trace_from_the_caller_to_the_worker(gateway):
    async with Collector() as collector:
        spans, to_worker, _ = await exported(
            gateway, collector, traceparent=PARENT, tracestate="vendor=opaque"
        )
    steps = {"authenticate", "receive", "tokenise", "reserve", "route", "first_byte", "relay"}
    assert {"chat m", "worker"} <= set(spans) <= {"chat m", "worker"} | steps
    assert {span.trace_id.hex() for span in spans.values()} == {"1" * 32}
    assert spans["chat m"].parent_span_id.hex() == "2" * 16
    assert spans["worker"].parent_span_id == spans["chat m"].span_id
    assert to_worker["traceparent"] == f"00-{'1' * 32}-{spans['worker'].span_id.hex()}-01"
    assert to_worker["tracestate"] == "vendor=opaque"
    assert {span.trace_state for span in spans.values()} == {"vendor=opaque"}
    attributes = {a.key: a.value for a in spans["chat m"].attributes}
    assert attributes["gen_ai.request.model"].string_value == "m"
    assert attributes["gen_ai.usage.output_tokens"].int_value == 4
    assert attributes["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "length"
    assert attributes["http.route"].string_value == "/v1/chat/completions"
    assert attributes["radixgate.tenant"].string_value == "acme"
    attempt = {a.key: a.value for a in spans["worker"].attributes}
    assert attempt["server.address"].string_value == "127.0.0.1"
    assert attempt["server.port"].int_value > 0


async def test_a_trace_holds_neither_prompts_nor_keys(gateway):
    async with Collector() as collector:
        _, _, key = await exported(gateway, collector)
    assert collector.raw
    assert PROMPT.encode() not in collector.raw
    assert key.encode() not in collector.raw


async def test_a_collector_that_is_away_harms_no_request(gateway):
    settings = {"telemetry.otlp_endpoint": "http://127.0.0.1:9", "telemetry.sample_ratio": "1.0"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        async with running.chat() as response:
            assert response.status == 200
        assert running.idle


async def test_the_rows_of_a_batch_link_to_the_span_of_the_batch(gateway):
    async with Collector() as collector, ScriptedWorker() as worker:
        settings = {"telemetry.otlp_endpoint": collector.url, "telemetry.sample_ratio": "1.0"}
        async with gateway(worker, **settings, **with_database()) as running:
            batch = await create(running, line("a"), line("b"))
            while (await show(running, batch))["status"] != "completed":
                await asyncio.sleep(0.02)
            # The span follows the status, and the spans of the rows go before it.
            while not (of_batches := [span for span in collector.spans if span.name == "batch"]):
                await asyncio.sleep(0.02)
    (of_batch,) = of_batches
    rows = [span for span in collector.spans if span.name == "chat m"]
    assert len(rows) == 2
    for row in rows:
        (link,) = row.links
        assert (link.trace_id, link.span_id) == (of_batch.trace_id, of_batch.span_id)
    attributes = {a.key: a.value for a in of_batch.attributes}
    assert attributes["radixgate.batch.id"].string_value == batch["id"]
    assert attributes["radixgate.batch.rows"].int_value == 2
