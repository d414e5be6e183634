"""`radixgate doctor` as a process: on a real embedded worker, and on engines with recorded answers."""

import asyncio
import re

import pytest
from aiohttp import web

from tests.stage.command_line import run_command


async def doctor(*arguments, stdin=""):
    """Exit code, output, errors."""
    return await asyncio.to_thread(run_command, "doctor", *arguments, stdin=stdin)


def table(output):
    """Each feature's state."""
    names = "cached-token report|prefix caching|page size 16-64|KV events|loads|priority scheduling|metrics"
    return dict(re.findall(rf"^({names}) +(yes|no|unknown) ", output, re.M))


class Engine:
    """Answers GETs from a table (text, JSON, or a status), and completions from a list of usages or replies."""

    def __init__(self, gets, completions, key=None):
        self.gets = gets
        self.completions = list(completions)
        self.key = key
        self.seen = []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _get(self, request):
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer = self.gets.get(request.match_info["path"], 404)
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

    async def _complete(self, request):
        body = await request.json()
        self.seen.append(body)
        answer = self.completions.pop(0)
        if "priority" in body and isinstance(answer, str):
            return web.json_response({"object": "error", "message": answer, "code": 400}, status=400)
        if isinstance(answer, int):
            return web.Response(status=answer)
        choice = {"index": 0, "text": " a", "finish_reason": "length", "logprobs": None}
        return web.json_response(
            {"id": "x", "object": "text_completion", "choices": [choice], "usage": answer}
        )


def usage(cached):
    details = {"cached_tokens": cached} if cached is not None else None
    return {
        "prompt_tokens": 200,
        "completion_tokens": 1,
        "total_tokens": 201,
        "prompt_tokens_details": details,
    }


def models(owner):
    return {
        "object": "list",
        "data": [{"id": "tiny", "object": "model", "owned_by": owner, "max_model_len": 2048}],
    }


SGLANG_INFO = {
    "model_path": "/models/tiny",
    "served_model_name": "tiny",
    "page_size": 16,
    "dp_size": 1,
    "enable_cache_report": True,
    "enable_metrics": True,
    "enable_priority_scheduling": True,
    "disable_radix_cache": False,
    "kv_events_config": '{"publisher":"zmq"}',
    "max_total_num_tokens": 1024,
    "max_running_requests": 16,
    "version": "0.5.23",
    "kv_events": {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "",
        "block_size": 16,
        "dp_size": 1,
        "replay_endpoint_port_base": 6557,
    },
}
RANK = {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "max_total_num_tokens": 1024}
SGLANG = {
    "v1/models": models("sglang"),
    "server_info": SGLANG_INFO,
    "v1/loads": {"timestamp": "2026-11-20T00:00:00", "version": "0.5.23", "loads": [RANK]},
    "metrics": "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 0.0\n",
}


async def test_an_sglang_with_everything_is_fit():
    async with Engine(SGLANG, [usage(0), usage(192)]) as engine:
        code, output, errors = await doctor(engine.url)
    assert (code, errors) == (0, "")
    assert set(table(output).values()) == {"yes"}
    assert len(table(output)) == 7
    assert "engine      SGLang, version 0.5.23" in output
    assert "page size   16 tokens" in output
    assert "KV capacity 1024 tokens" in output
    assert re.search(r"^cached-token report +yes +a completion reported 192 cached tokens", output, re.M)
    assert re.search(r"^KV events +yes +zmq, port 5557, replay ", output, re.M)
    assert re.search(r"^loads +yes +2 running, 1 waiting, 1 rank ", output, re.M)
    assert "Nothing is missing." in output
    assert engine.seen[0]["max_tokens"] == 1
    assert "priority" not in engine.seen[0]


async def test_an_sglang_that_publishes_its_load_is_seen_to_do_so():
    info = {**SGLANG_INFO, "kv_events": {**SGLANG_INFO["kv_events"], "load_endpoint_port_base": 5559}}
    async with Engine({**SGLANG, "server_info": info}, [usage(0), usage(192)]) as engine:
        _, output, _ = await doctor(engine.url)
    assert re.search(r"^loads +yes +2 running, 1 waiting, 1 rank, published on port 5559 ", output, re.M)


async def test_the_report_on_a_default_sglang_names_the_missing_flags():
    info = {
        **SGLANG_INFO,
        "page_size": 1,
        "enable_cache_report": False,
        "enable_priority_scheduling": False,
        "disable_radix_cache": True,
        "kv_events_config": None,
        "kv_events": None,
    }
    gets = {**SGLANG, "server_info": info, "metrics": 404}
    async with Engine(gets, [usage(None), usage(None)]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 1
    states = table(output)
    assert states.pop("loads") == "yes"
    assert set(states.values()) == {"no"}
    assert (
        "Start the engine with these flags added:\n"
        "  --enable-cache-report --page-size 16 --kv-events-config "
        '\'{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}\' '
        "--enable-priority-scheduling --enable-metrics\n"
        "For prefix caching: remove --disable-radix-cache.\n"
        "KV events are then published on all addresses: keep their ports inside your network.\n"
    ) in output
    assert "must be a multiple" not in output


async def test_an_older_sglang_gets_the_call_under_its_older_name():
    gets = {name: answer for name, answer in SGLANG.items() if name != "v1/loads"}
    gets["get_server_info"] = gets.pop("server_info") | {"version": "0.5.17"}
    async with Engine(gets, [usage(None), usage(192)]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 1
    assert "SGLang, version 0.5.17" in output
    assert table(output)["loads"] == "no"
    assert "For loads: use SGLang 0.5.23 or newer." in output


CACHE = (
    'vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
    'gpu_memory_utilization="0.9",num_gpu_blocks="80",num_gpu_blocks_override="80"} 1.0\n'
)
GAUGES = (
    'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0\n'
)
SOURCE = {
    "endpoint": "tcp://127.0.0.1:36377",
    "replay_endpoint": "tcp://127.0.0.1:36378",
    "topic": "kv@127.0.0.1:8000@tiny",
}
VLLM = {
    "v1/models": models("vllm"),
    "version": {"version": "0.32.0"},
    "kv_event_sources": {"0": SOURCE},
    "metrics": CACHE + GAUGES,
}


async def test_a_vllm_reports_cached_tokens_only_when_there_are_any():
    async with Engine(VLLM, [usage(None), usage(192), usage(192)]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 0
    states = table(output)
    assert states.pop("priority scheduling") == "unknown"
    assert set(states.values()) == {"yes"}
    assert "engine      vLLM, version 0.32.0" in output
    assert "page size   32 tokens" in output
    assert "KV capacity 2560 tokens" in output
    assert "tcp://127.0.0.1:36377, replay " in output
    assert "Nothing is known to be missing." in output
    assert "(the engine does not report it):\n  --scheduling-policy priority\n" in output
    assert [body.get("priority") for body in engine.seen] == [None, None, 1]


async def test_the_report_on_a_default_vllm_names_the_missing_flags():
    refusal = "Got priority 1 but Priority scheduling is not enabled."
    gets = {**VLLM, "kv_event_sources": [], "metrics": CACHE.replace('"32"', '"128"') + GAUGES}
    async with Engine(gets, [usage(None), usage(None), refusal]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 1
    states = table(output)
    assert {name for name, state in states.items() if state == "no"} == {
        "cached-token report",
        "page size 16-64",
        "KV events",
        "priority scheduling",
    }
    assert (
        "  --enable-prompt-tokens-details --block-size 32 --kv-events-config "
        '\'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
        '"replay_endpoint":"tcp://*:6557"}\' --scheduling-policy priority\n'
    ) in output


async def test_what_a_vllm_does_not_report_is_unknown():
    """No metrics, no list of sources, an error where a completion should be."""
    gets = {"v1/models": models("vllm"), "version": {"version": "0.11.0"}, "metrics": 500}
    async with Engine(gets, [503, 503]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 0
    assert set(table(output).values()) == {"unknown"}
    assert "page size   unknown" in output
    assert "a completion got status 503" in output
    assert "Nothing is known to be missing." in output
    assert (
        "(the engine does not report it):\n  --enable-prompt-tokens-details --enable-prefix-caching "
        in output
    )


async def test_a_vllm_without_prefix_caching_is_reported_and_its_hit_reports_stay_unknown():
    gets = {**VLLM, "metrics": CACHE.replace('"True"', '"False"') + GAUGES}
    async with Engine(gets, [usage(None), usage(None), usage(None)]) as engine:
        code, output, _ = await doctor(engine.url)
    assert code == 1
    assert table(output)["prefix caching"] == "no"
    assert table(output)["cached-token report"] == "unknown"
    assert "--enable-prefix-caching" in output


async def test_an_unknown_engine_is_unknown_unless_its_kind_is_given():
    gets = {"v1/models": models("somebody")}
    async with Engine(gets, [usage(None)] * 5) as engine:
        code, output, _ = await doctor(engine.url + "/v1/")
        assert code == 0
        assert "engine      unknown, version unknown" in output
        assert set(table(output).values()) == {"unknown"}
        code, output, _ = await doctor(engine.url, "--kind", "vllm")
        assert "engine      vLLM, version unknown" in output
        assert "--scheduling-policy priority" in output


async def test_a_key_is_sent():
    async with Engine(SGLANG, [usage(192), usage(192)], key="s3cret") as engine:
        code, _, errors = await doctor(engine.url)
        assert code == 2
        assert (
            errors
            == f"radixgate: {engine.url} refuses the key (status 401): give the right one with --api-key\n"
        )
        assert (await doctor(engine.url, "--api-key", "s3cret"))[0] == 0
        assert (await doctor(engine.url, "--api-key", "-", stdin="s3cret\n"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing argument 'URL'"),
        (["ftp://10.0.0.1:30000"], "does not begin with http:// or https://"),
        (["127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        (["http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer: Connection refused"),
        (["http://127.0.0.1:99999999"], "http://127.0.0.1:99999999"),
        (["http://127.0.0.1:9", "--kind", "gpt"], "there is no kind 'gpt'; there are "),
        (["http://127.0.0.1:9", "--api-key", "a\nb"], "radixgate: "),
    ],
)
async def test_wrong_use_and_an_address_without_a_server_are_one_line_and_exit_code_two(arguments, expected):
    code, output, errors = await doctor(*arguments)
    assert (code, output) == (2, "")
    assert expected in errors
    assert len(errors.splitlines()) == 1


async def test_a_server_that_is_no_engine_is_reported_as_none():
    async with Engine({"v1/models": "<html>hello</html>"}, []) as engine:
        code, _, errors = await doctor(engine.url)
    assert code == 2
    assert "is not an engine with an OpenAI API" in errors


async def test_a_real_embedded_worker(embedded):
    code, output, errors = await doctor(embedded[0].url)
    assert (code, errors) == (0, "")
    assert table(output) == {
        "cached-token report": "yes",
        "prefix caching": "yes",
        "page size 16-64": "yes",
        "KV events": "yes",
        "loads": "yes",
        "priority scheduling": "yes",
        "metrics": "yes",
    }
    assert "engine      radixgate's embedded engine, version " in output
    assert "models      tiny\n" in output
    assert "page size   16 tokens" in output
    assert "KV capacity 8192 tokens" in output
    assert "Start the engine with these flags" not in output
    assert "models[].block_size must be a multiple of 16." in output
