"""Generated traces: deterministic, chained, and of the kind they are named for."""

from collections import Counter

import pytest

from policies.simulation.trace import ideal_hit_ratio
from policies.simulation.workloads import (
    PROMPT_TOKENS_MAX,
    WORKLOADS,
    WorkloadParameters,
    blocks_of,
    generated,
)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_workload_is_the_same_for_the_same_seed_and_in_order(kind):
    load = WorkloadParameters(requests=150, seed=3)
    trace = generated(kind, load)
    assert trace == generated(kind, load)
    assert trace != generated(kind, WorkloadParameters(requests=150, seed=4))
    assert len(trace) == 150
    assert [r.at for r in trace] == sorted(r.at for r in trace)
    for request in trace:
        assert len(request.blocks) == -(-request.prompt_tokens // 512)
        assert request.prompt_tokens <= 2 * PROMPT_TOKENS_MAX
        assert request.output_tokens >= 1


def test_prompts_have_in_common_what_their_first_segments_have():
    one = blocks_of([("system", 1000), ("question", 700)])
    two = blocks_of([("system", 1000), ("other", 700)])
    assert (len(one), len(two)) == (4, 4)
    assert one[0] == two[0]
    assert not set(one[1:]) & set(two[1:])
    longer = blocks_of([("system", 1000), ("question", 700), ("answer", 900)])
    assert longer[:3] == one[:3]
    assert longer[3] != one[3]


def test_conversations_and_agents_can_be_reused_more_than_retrieved_documents():
    ideal = {
        kind: ideal_hit_ratio(generated(kind, WorkloadParameters(requests=600)))
        for kind in ("chat", "agents", "rag")
    }
    assert ideal["agents"] > ideal["chat"] > ideal["rag"] > 0


@pytest.mark.parametrize(("skew", "low", "high"), [(0.0, 0.02, 0.08), (1.2, 0.2, 0.45)])
def test_the_first_tenant_has_the_share_that_the_skew_gives_it(skew, low, high):
    trace = generated("prompts", WorkloadParameters(requests=2000, tenants=32, skew=skew))
    counts = Counter(request.tenant for request in trace)
    assert low < counts["tenant-000"] / 2000 < high
