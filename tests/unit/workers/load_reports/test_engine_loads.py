"""The reported load of engines, and the part of it that no gateway sent."""

import pytest

from gateway.fleet.loads import LoadShare, WorkerLoad
from workers.load_reports.engine_loads import (
    NO_LOAD,
    EngineLoad,
    SglangRankLoad,
    load_in_vllm_metrics,
    sum_of_ranks,
)

METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 2.5e-1
"""


def test_ranks_are_added_up():
    ranks = [
        SglangRankLoad(
            num_running_reqs=2, num_waiting_reqs=1, num_waiting_uncached_tokens=70, num_used_tokens=300
        ),
        SglangRankLoad(num_running_reqs=1, num_used_tokens=40),
    ]
    assert sum_of_ranks(ranks) == EngineLoad(streams=4, tokens_queued=70, kv_tokens=340)


def test_vllm_reports_its_load_in_its_metrics():
    assert load_in_vllm_metrics(METRICS, 1000) == EngineLoad(streams=9, kv_tokens=375)


@pytest.mark.parametrize(
    "metrics", [b"", b"python_info 1.0\n", b"vllm:num_requests_running x\n"], ids=["none", "other", "broken"]
)
def test_metrics_without_gauges_give_no_load(metrics):
    assert load_in_vllm_metrics(metrics, 1000) is None


def test_what_no_gateway_has_sent_is_foreign_once_two_reports_have_it():
    load = WorkerLoad()
    LoadShare(load, uncached_tokens=100, kv_tokens=150)
    load.update_from_probe(EngineLoad(streams=5, tokens_queued=400, kv_tokens=1150))
    assert load.external == NO_LOAD
    load.update_from_probe(EngineLoad(streams=3, tokens_queued=50, kv_tokens=650))
    assert load.external == EngineLoad(streams=2, tokens_queued=0, kv_tokens=500)
    load.update_from_probe(EngineLoad(streams=1, tokens_queued=50, kv_tokens=150))
    assert load.external == NO_LOAD


def test_an_engine_without_reports_has_no_external_load():
    load = WorkerLoad()
    for told in (EngineLoad(streams=5), EngineLoad(streams=5), None):
        load.update_from_probe(told)
    assert load.external == NO_LOAD
