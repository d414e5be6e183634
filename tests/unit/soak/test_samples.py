"""The verdict over samples of memory: flat, unless it rises after caches are full."""

import random

import pytest

from tests.soak.samples import WARM_REQUESTS, Sample, verdict

MIB = 1024**2


def samples(leak, requests=300_000, base=150 * MIB, count=60):
    """Memory that fills up while it may and then rises, so many bytes a request, with noise."""
    noise = random.Random(7)
    found = []
    for at in range(count + 1):
        done = requests * at // count
        filled = min(1.0, done / WARM_REQUESTS) * 60 * MIB
        memory = int(base + filled + leak * done + noise.uniform(-3, 3) * MIB)
        rest = dict.fromkeys(("descriptors", "tasks", "leases", "nodes", "blocks", "pages"), 0)
        found.append(Sample(requests=done, seconds=float(at), memory={"gateway": memory}, **rest))
    return found


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (-50, True), (100, False), (1000, False)])
def test_memory_is_flat_unless_it_rises_after_caches_are_full(leak, flat):
    assert verdict("gateway", samples(leak)).flat is flat


def test_ten_bytes_a_request_show_in_a_million():
    assert not verdict("gateway", samples(10, requests=1_000_000)).flat


def test_a_verdict_on_a_few_samples_is_refused():
    with pytest.raises(ValueError, match="too few"):
        verdict("gateway", samples(0, count=4))
