"""The metrics page: written in slices, so that other requests go on."""

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from gateway.telemetry.exposition import expose_in_slices
from gateway.telemetry.metric_families import StateCollector
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.request_families import request_families
from radix_cache import loop_yield
from tests.fakes.running_account import answered


def registered(registry):
    metrics = RequestMetrics(tenant_histograms=True)
    registry.register(StateCollector(request_families(metrics, tenant_histograms=True)))
    return metrics


@pytest.mark.parametrize("accepts", ["text/plain", "application/openmetrics-text;version=1.0.0"])
async def test_the_event_loop_goes_on_between_the_slices_of_a_scrape(clock, accepts, monkeypatch):
    # The time of one turn is over at once, however fast the machine is.
    monkeypatch.setattr(loop_yield, "WORK_SECONDS_MAX", 0.0)
    disable_created_metrics()
    registry, yielder = CollectorRegistry(), 0
    metrics, record = registered(registry), answered(clock).record()
    for number in range(300):
        metrics.observe(msgspec.structs.replace(record, tenant=f"tenant-{number}"))

    async def others():
        nonlocal yielder
        while True:
            yielder += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    await asyncio.sleep(0)
    encode, _ = choose_encoder(accepts)
    slices = [text async for text in expose_in_slices(registry, encode)]
    text = b"".join(slices)
    waiting.cancel()
    assert text == encode(registry)
    assert text.count(b"\n") > 15_000
    assert yielder >= len(slices) > 10
    assert max(map(len, slices)) < 100_000
