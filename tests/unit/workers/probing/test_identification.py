"""The identification of an engine by its answers."""

import pytest
from aiohttp import web

from radix_cache.match import WorkerId
from workers.adapter import WorkerFailed, WorkerTarget
from workers.probing.identification import ask_kind, find_engine

VLLM_METRICS = (
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True"} 1.0\n'
    'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
)


def listed(owner, name="m"):
    entry = {"id": name, "object": "model", "owned_by": owner, "max_model_len": 4096}
    return {"object": "list", "data": [entry]}


VLLM = {
    "v1/models": listed("vllm"),
    "health": "",
    "version": {"version": "0.32.0"},
    "metrics": VLLM_METRICS,
}
SGLANG = {
    "v1/models": listed("sglang"),
    "ready": "",
    "server_info": {"version": "0.5.23", "page_size": 48, "max_total_num_tokens": 9600},
    "v1/loads": {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]},
}


class Engine:
    """Answers GETs from a table of texts and JSON, and /tokenize where the bodies have one of the given fields."""

    def __init__(self, gets, tokenizes=(), key=None):
        self.gets, self.tokenizes, self.key = gets, tokenizes, key

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/tokenize", self._tokenize)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.target = WorkerTarget(id=WorkerId("w"), url=url, api_key=self.key)
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _get(self, request):
        answer = self.gets.get(request.match_info["path"])
        if answer is None:
            return web.Response(status=404)
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

    async def _tokenize(self, request):
        body = await request.json()
        if not body.keys() & set(self.tokenizes):
            return web.Response(status=400 if self.tokenizes else 404)
        return web.json_response({"tokens": [1, 2], "count": 2})


@pytest.mark.parametrize(
    ("gets", "kind"),
    [
        (VLLM, "vllm"),
        (SGLANG, "sglang"),
        ({"v1/models": listed("radixgate"), "server_info": {"instance_id": "x"}}, "embedded"),
        ({"v1/models": listed("radixgate")}, "openai"),
        ({"v1/models": listed(None)}, "openai"),
        ({"v1/models": listed(["of", "many"])}, "openai"),
    ],
)
async def test_the_kind_is_read_from_the_answers(gets, kind):
    async with Engine(gets) as engine:
        assert await ask_kind(engine.target) == kind


async def test_everything_that_a_vllm_reports_is_found():
    async with Engine(VLLM, tokenizes=("prompt", "messages")) as engine:
        found = await find_engine(engine.target)
    assert (found.kind, found.version, found.page_size, found.block_size) == ("vllm", "0.32.0", 16, 64)
    assert found.report.models == ("m",)
    assert found.report.context_lengths == {"m": 4096}
    assert found.report.kv_tokens_max == 16_000
    assert found.report.load is not None
    assert (found.tokenizes, found.has_chat_template) == (True, True)


async def test_blocks_are_as_large_as_pages_that_do_not_fit_the_default():
    async with Engine(SGLANG) as engine:
        found = await find_engine(engine.target)
    assert (found.kind, found.version, found.page_size, found.block_size) == ("sglang", "0.5.23", 48, 48)
    assert found.tokenizes is False


async def test_a_model_without_a_chat_template_is_told_from_one_with_it():
    async with Engine(VLLM, tokenizes=("prompt",)) as engine:
        found = await find_engine(engine.target)
    assert (found.tokenizes, found.has_chat_template) == (True, False)


async def test_a_server_of_another_kind_is_not_found():
    async with Engine({"": "a web page"}) as engine:
        with pytest.raises(WorkerFailed, match="status 404 from /v1/models"):
            await find_engine(engine.target)
