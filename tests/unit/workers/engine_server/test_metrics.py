"""What Prometheus reads of a worker: names and labels as vLLM 0.32 and SGLang 0.5.23 write them."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.workers.engine_server.conftest import Client, PauseAfter, Serve

TEXT = "/v1/completions"

VLLM = {
    "gauge": {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"},
    "counter": {
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "prompt_tokens_cached",
        "generation_tokens",
        "request_success",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
    },
    "histogram": {
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_num_preemptions",
        "iteration_tokens_total",
    },
}
SGLANG = {
    "gauge": {
        "num_running_reqs",
        "num_queue_reqs",
        "gen_throughput",
        "cache_hit_rate",
        "token_usage",
        "num_used_tokens",
        "kv_used_tokens",
        "kv_evictable_tokens",
        "kv_available_tokens",
        "max_total_num_tokens",
        "page_size",
        "num_pages",
        "context_len",
        "spec_accept_length",
        "spec_accept_rate",
    },
    "counter": {
        "num_retracted_requests",
        "realtime_tokens",
        "prompt_tokens",
        "generation_tokens",
        "num_requests",
        "cached_tokens",
        "num_aborted_requests",
        "spec_verify_calls",
    },
    "histogram": {
        "queue_time_seconds",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
    },
}


@pytest.fixture
async def page(client: Client) -> dict[str, float]:
    """Every sample after two equal prompts, one of them streamed; by name and labels."""
    body = {"prompt": [9] * 40, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    assert (await client.post(TEXT, body))[0] == 200
    await client.stream(TEXT, body)
    return await samples(client)


async def samples(client: Client) -> dict[str, float]:
    async with client.session.get(client.url + "/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        text = await response.text()
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(("prefix", "families"), [("vllm:", VLLM), ("sglang:", SGLANG)])
async def test_all_families_have_the_names_and_kinds_of_the_engine_in_dashboards(
    client: Client, prefix: str, families: dict[str, set[str]]
) -> None:
    await client.post(TEXT, {"prompt": [9] * 4, "max_tokens": 1})
    async with client.session.get(client.url + "/metrics") as response:
        found = {
            (family.type, family.name) for family in text_string_to_metric_families(await response.text())
        }
    wanted = {(kind, prefix + name) for kind, names in families.items() for name in names}
    assert wanted - found == set()


async def test_labels_are_those_of_the_engine_in_dashboards(page: dict[str, float]) -> None:
    model = "('model_name', 'tiny')"
    assert page[f"vllm:kv_cache_usage_perc[('engine', '0'), {model}]"] == 0
    assert page[f"vllm:request_success_total[('engine', '0'), ('finished_reason', 'length'), {model}]"] == 2
    unified = "('engine_type', 'unified')"
    for streaming in ("true", "false"):
        labels = f"[{unified}, ('is_streaming', '{streaming}'), {model}]"
        assert page[f"sglang:time_to_first_token_seconds_count{labels}"] == 1
        assert page[f"sglang:prompt_tokens_total{labels}"] == 40
    ranks = f"[{unified}, {model}, ('moe_ep_rank', '0'), ('pp_rank', '0'), ('tp_rank', '0')]"
    assert page[f"sglang:num_running_reqs{ranks}"] == 0


async def test_the_numbers_are_those_of_the_requests(page: dict[str, float]) -> None:
    def vllm(name: str) -> float:
        return page[f"vllm:{name}[('engine', '0'), ('model_name', 'tiny')]"]

    assert vllm("prompt_tokens_total") == vllm("prefix_cache_queries_total") == 80
    assert vllm("prefix_cache_hits_total") == 32
    assert vllm("generation_tokens_total") == 6
    assert vllm("time_to_first_token_seconds_count") == 2
    assert vllm("inter_token_latency_seconds_count") == 4
    assert vllm("time_to_first_token_seconds_sum") > 0
    assert vllm("e2e_request_latency_seconds_sum") >= vllm("time_to_first_token_seconds_sum")
    own = "[('model_name', 'tiny')]"
    # 40 + 2, and behind 32 cached ones 8 + 2.
    assert page[f"radixgate_engine_computed_tokens_total{own}"] == 52
    assert page["radixgate_engine_wasted_tokens_total[('model_name', 'tiny'), ('reason', 'padding')]"] == 0


async def test_compiling_a_grammar_is_counted_with_its_seconds_and_a_known_one_is_not(client: Client) -> None:
    own = "[('model_name', 'tiny')]"
    counted = []
    for _ in range(2):
        body = {"prompt": [9] * 4, "max_tokens": 4, "regex": "(a|b)+"}
        assert (await client.post(TEXT, body))[0] == 200
        found = await samples(client)
        names = ("grammars_compiled_total", "grammar_compile_seconds_total")
        counted.append([found[f"radixgate_engine_{name}{own}"] for name in names])
    assert counted[0] == counted[1]
    assert counted[0][0] == 1
    assert counted[0][1] > 0


async def test_wasted_work_and_goodput_have_counters_for_every_cause(page: dict[str, float]) -> None:
    own = "('model_name', 'tiny')"
    for reason in ("cancelled", "rejected_draft", "recomputed", "padding"):
        assert page[f"radixgate_engine_wasted_tokens_total[{own}, ('reason', '{reason}')]"] == 0
    good = (
        page[f"radixgate_engine_good_requests_total[{own}]"],
        page[f"radixgate_engine_good_tokens_total[{own}]"],
    )
    # How many of the two were in time is the machine's affair; their tokens are 40 + 3 and, behind the hit, 8 + 3.
    assert good in {(0, 0), (1, 43), (1, 11), (2, 54)}


async def test_buckets_grow_and_end_with_the_count(page: dict[str, float]) -> None:
    prefix = "vllm:time_to_first_token_seconds_bucket"
    values = [value for name, value in page.items() if name.startswith(prefix)]
    assert sorted(values) == values
    assert values[-1] == 2


async def test_a_request_that_waited_past_its_deadline_gets_an_error_streamed_or_not(
    serving: Serve,
) -> None:
    async with serving(max_running_requests=1) as client:
        long = {"prompt": [9] * 4, "max_tokens": 4000, "ignore_eos": True}
        running = asyncio.create_task(client.post(TEXT, long))
        await client.until(num_running_reqs=1)
        for stream in (True, False):
            status, body = await client.post(TEXT, {"prompt": "a", "deadline_ms": 30, "stream": stream})
            assert (status, body["error"]["code"]) == (503, "deadline_exceeded")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.until_idle()


async def test_the_better_priority_is_computed_first(serving: Serve, pause_after: PauseAfter) -> None:
    async with serving(max_running_requests=1) as client:
        resume = pause_after(client, 3)
        scheduler = client.worker.engine._engine.scheduler
        computed, commit = dict[int, None](), scheduler.commit

        def note(plan: Any, sampled: Any) -> None:
            computed.update(dict.fromkeys(item.sequence.priority for item in plan.items))
            commit(plan, sampled)

        scheduler.commit = note
        ask = {"prompt": "a", "max_tokens": 9, "ignore_eos": True}
        tasks = [asyncio.create_task(client.post(TEXT, {**ask, "priority": 9}))]
        await client.until(num_running_reqs=1)
        tasks += [asyncio.create_task(client.post(TEXT, {**ask, "priority": rank})) for rank in (2, 0, 1)]
        await client.until(num_waiting_reqs=3)
        resume()
        await asyncio.gather(*tasks)
        assert [*computed] == [9, 0, 1, 2]


@pytest.mark.parametrize(
    ("field", "value"), [("priority", 1001), ("priority", "high"), ("deadline_ms", 0), ("deadline_ms", -5)]
)
async def test_a_place_in_the_queue_that_does_not_exist_is_refused(
    client: Client, field: str, value: object
) -> None:
    status, body = await client.post(TEXT, {"prompt": "a", field: value})
    assert (status, body["error"]["param"]) == (400, field)
