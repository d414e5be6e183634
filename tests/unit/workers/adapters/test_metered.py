"""Engines with gauges of their requests: their load, their contexts, and how they are told from others."""

import pytest

from tests.unit.workers.probing.test_identification import Engine, listed
from workers.adapter import WorkerFailed
from workers.adapters.registry import BUILT_IN
from workers.load_reports.engine_loads import EngineLoad
from workers.probing.identification import ask_kind, find_engine


def models(owner):
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


TWINS = {
    "llamacpp": {
        "v1/models": models("llamacpp"),
        "health": {"status": "ok"},
        "props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4},
        "metrics": "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n"
        "llamacpp:requests_deferred 1\nllamacpp:prompt_tokens_total 9\n",
    },
    "tgi": {
        "v1/models": models("org/m"),
        "health": "",
        "info": {"model_id": "m", "max_total_tokens": 4096, "max_concurrent_requests": 128, "router": "x"},
        "metrics": "tgi_queue_size 1\ntgi_batch_current_size 2\ntgi_request_count 7\n",
    },
    "trtllm": {
        "v1/models": models("tensorrt_llm"),
        "health": "",
        "metrics": [{"numActiveRequests": 99}],
        "prometheus/metrics": 'trtllm_num_requests_running{model_name="m"} 2.0\n'
        'trtllm_num_requests_waiting{model_name="m"} 1.0\n',
    },
    "lmdeploy": {
        "v1/models": models("lmdeploy"),
        "health": "",
        "metrics": 'lmdeploy:num_requests_running{engine="0",model_name="m"} 1.0\n'
        'lmdeploy:num_requests_running{engine="1",model_name="m"} 1.0\n'
        'lmdeploy:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
        'lmdeploy:num_requests_finished{engine="0",model_name="m"} 50.0\n',
    },
    "ollama": {
        "v1/models": models("library"),
        "api/version": {"version": "0.12.6"},
        "api/ps": {"models": [{"name": "m", "context_length": 4096}, {"name": "n"}]},
    },
}
"""What each engine answers, as its documentation has it."""
METERED = sorted(TWINS.keys() - {"ollama"})


@pytest.mark.parametrize("kind", TWINS)
async def test_an_engine_is_identified_by_its_answers_and_reports_its_load_context_and_slots(kind):
    async with Engine(TWINS[kind]) as engine:
        assert await ask_kind(engine.target) == kind
        found = await find_engine(engine.target)
    assert (found.kind, found.report.models) == (kind, ("m",))
    assert found.report.load == (EngineLoad(streams=3) if kind in METERED else None)
    assert found.report.context_lengths == ({"m": 4096} if kind in ("llamacpp", "tgi", "ollama") else {})
    assert found.report.slots == (4 if kind == "llamacpp" else None)
    assert not found.tokenizes


@pytest.mark.parametrize("kind", TWINS)
async def test_an_engine_without_its_other_paths_is_served_all_the_same(kind):
    needed = {name: answer for name, answer in TWINS[kind].items() if name in ("v1/models", "health")}
    async with Engine(needed) as engine:
        adapter = BUILT_IN[kind](engine.target)
        report = await adapter.probe()
        adapter.close()
    assert (report.models, report.load, report.context_lengths) == (("m",), None, {})


@pytest.mark.parametrize("kind", METERED)
async def test_an_engine_that_is_loading_serves_nothing_yet(kind):
    async with Engine({"v1/models": models("x")}) as engine:
        adapter = BUILT_IN[kind](engine.target)
        with pytest.raises(WorkerFailed):
            await adapter.probe()
        adapter.close()


async def test_a_server_that_names_no_engine_is_only_openai_compatible():
    async with Engine({"v1/models": listed("library"), "info": {"version": "1"}}) as engine:
        assert await ask_kind(engine.target) == "openai"
