"""The metrics page of a serving gateway: what autoscalers and Prometheus need of it."""

import gzip
import json

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.scripted_worker import ScriptedWorker


async def page(running, **headers):
    """Return the series of the metrics page, as name and labels to value."""
    async with running.http.get(running.admin + "/metrics", headers=headers) as response:
        assert response.status == 200
        text = await response.text()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_gauges_of_queues_are_zero_before_the_first_request(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        series = await page(running)
        for service_class in ("voice", "code", "chat", "batch"):
            assert series["radixgate_waiting_requests", ("class", service_class), ("model", "m")] == 0
        assert series["radixgate_waiting_tokens", ("queue", "m")] == 0
        assert series["radixgate_queue_evenness", ("queue", "m")] == 1


async def test_the_page_names_the_version_and_describes_the_process(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        series = await page(running)
        (build,) = [labels for labels in series if labels[0] == "radixgate_build_info"]
        assert ("version", running.here.gateway.version) in build
        assert series["process_resident_memory_bytes",] > 0
        assert series["process_start_time_seconds",] > 0
        assert ("process_cpu_seconds_total",) in series


async def test_the_page_is_compressed_for_clients_that_accept_it(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            async with http.get(running.admin + "/metrics", headers={"Accept-Encoding": "gzip"}) as response:
                assert response.headers["content-encoding"] == "gzip"
                body = await response.read()
            async with http.get(
                running.admin + "/metrics", headers={"Accept-Encoding": "identity"}
            ) as response:
                assert "content-encoding" not in response.headers
                plain = await response.read()
        assert b"radixgate_redis_up 1.0" in gzip.decompress(body)
        assert len(body) < len(plain) / 3


async def test_the_settings_bound_and_drop_series_of_tenants(gateway):
    async with ScriptedWorker() as worker:
        settings = {"telemetry.metrics.pairs_max": "1"}
        async with gateway(worker, **settings) as running:
            for tenant in ("acme", "globex"):
                async with running.chat(tenant=tenant) as response:
                    assert response.status == 200
            series = await page(running)
            requests = {
                dict(labels[1:])["tenant"] for labels in series if labels[0] == "radixgate_requests_total"
            }
            assert requests == {"acme", "*"}
            assert not any(
                labels[0].endswith("_bucket") and "tenant" in dict(labels[1:]) for labels in series
            )
        settings = {
            "telemetry.metrics.dropped_labels": json.dumps(["tenant", "class"]),
            "telemetry.metrics.tenant_histograms": "true",
        }
        async with gateway(worker, **settings) as running:
            for tenant in ("acme", "globex"):
                async with running.chat(tenant=tenant) as response:
                    assert response.status == 200
            series = await page(running)
            assert series["radixgate_requests_total", ("code", "ok"), ("model", "m")] == 2
            assert series["radixgate_request_duration_seconds_count", ("model", "m")] == 2


async def test_the_genai_metrics_of_opentelemetry_stand_beside_ours_if_the_settings_enable_them(gateway):
    async with ScriptedWorker() as worker:
        async with gateway(worker, **{"telemetry.metrics.gen_ai": "true"}) as running:
            async with running.chat(stream=True) as response:
                await response.read()
            series = await page(running)
            labels = (
                ("gen_ai_operation_name", "chat"),
                ("gen_ai_provider_name", "radixgate"),
                ("gen_ai_request_model", "m"),
            )
            for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
                assert series[f"gen_ai_server_{name}_seconds_count", *labels] == 1
            assert series["gen_ai_client_token_usage_sum", *labels, ("gen_ai_token_type", "output")] == 4
        async with gateway(worker) as running:
            assert not any(name.startswith("gen_ai") for name, *_ in await page(running))
