"""The metrics page: written in slices, so that other requests go on."""

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.telemetry.exposition import expose_in_slices
from gateway.telemetry.gauge_collector import StateCollector
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.request_families import request_families
from gateway.telemetry.request_record import Progress
from radix_cache import loop_yield
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def registered(registry):
    metrics = RequestMetrics(tenant_histograms=True)
    registry.register(StateCollector(request_families(metrics, tenant_histograms=True)))
    return metrics


def progress(clock, **state):
    made = Progress("req-1", "chat/completions", clock, lambda: 1_700_000_000.0)
    made.tenant, made.key_id, made.model, made.stream = "acme", "k1", "m", True
    for name, value in state.items():
        setattr(made, name, value)
    return made


def sent(made, reason, predicted_tokens):
    made.assign_worker(
        "w0", by_shadow=False, reason=reason, predicted_tokens=predicted_tokens, predicted_ttft_seconds=0.3
    )
    made.mark_dispatched()


def answered(clock):
    """A stream: 0.5 s to its first token, 1.0 s in all, 6 tokens, 40 of 64 prompt tokens cached."""
    made = progress(clock, prompt_tokens=60)
    made.mark("authenticate")
    clock.advance(0.1)
    made.mark("route")
    sent(made, "48 of 60 tokens held", 48)
    clock.advance(0.4)
    made.mark("first_byte")
    made.answered = True
    made.output_sent(1)
    clock.advance(0.5)
    made.output_sent(5)
    made.mark("relay")
    made.usage = TokenUsage(
        prompt_tokens=64, completion_tokens=6, prompt_tokens_details=PromptDetails(cached_tokens=40)
    )
    return made


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
