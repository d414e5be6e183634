"""What vLLM says of its KV cache, and how often it is asked."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from workers.adapter import WorkerFailed, WorkerTarget
from workers.adapters.vllm import VllmAdapter, kv_tokens_in_metrics, ranks_in_metrics

METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="100",sliding_window="None"} 1.0
"""


class Vllm:
    def __init__(self):
        self.healthy, self.metrics, self.asked = True, METRICS, 0
        self.app = web.Application()
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/metrics", self._metrics)
        self.app.router.add_get("/v1/models", _models)
        self.app.router.add_get("/is_sleeping", self._is_sleeping)
        for path in ("/sleep", "/wake_up"):
            self.app.router.add_post(path, self._told)
        self.sleeping, self.asked_for_sleep, self.told = False, 0, []

    async def _health(self, request):
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request):
        self.asked += 1
        return web.Response(text=self.metrics) if self.metrics else web.Response(status=404)

    async def _is_sleeping(self, request):
        self.asked_for_sleep += 1
        if self.sleeping is None:
            return web.Response(status=404)
        return web.json_response({"is_sleeping": self.sleeping})

    async def _told(self, request):
        self.told.append(request.path_qs)
        self.sleeping = request.path == "/sleep"
        return web.Response()


async def _models(request):
    return web.json_response({"data": [{"id": "m"}]})


@pytest.fixture
async def vllm():
    engine = Vllm()
    async with TestServer(engine.app) as server:
        engine.adapter = VllmAdapter(WorkerTarget(id="w", url=str(server.make_url("")).rstrip("/")))
        yield engine
        engine.adapter.close()


async def test_the_size_of_the_cache_is_read_from_the_metrics_once(vllm):
    assert (await vllm.adapter.probe()).kv_tokens_max == 1600
    assert (await vllm.adapter.probe()).kv_tokens_max == 1600
    assert vllm.asked == 1


async def test_after_a_failure_the_size_is_requested_again(vllm):
    await vllm.adapter.probe()
    vllm.healthy = False
    with pytest.raises(WorkerFailed):
        await vllm.adapter.probe()
    vllm.healthy, vllm.metrics = True, METRICS.replace('"100"', '"200"')
    assert (await vllm.adapter.probe()).kv_tokens_max == 3200


async def test_a_server_without_metrics_serves_all_the_same(vllm):
    vllm.metrics = None
    report = await vllm.adapter.probe()
    assert (report.models, report.kv_tokens_max) == (("m",), None)


def test_caches_of_several_engines_add_up():
    second = METRICS.replace('engine="0"', 'engine="1"').replace('"100"', '"50"')
    assert kv_tokens_in_metrics((METRICS + second).encode()) == 2400


@pytest.mark.parametrize("text", ["", "vllm:cache_config_info{} 1.0", METRICS.replace('"100"', '"None"')])
def test_a_cache_of_no_reported_size_is_unknown(text):
    assert kv_tokens_in_metrics(text.encode()) is None


@pytest.mark.parametrize(("engines", "ranks"), [("", 1), ("0", 1), ("01", 2), ("1", 1), ("23", 1)])
def test_ranks_are_the_engines_of_a_server_that_has_them_all(engines, ranks):
    metrics = "".join(METRICS.replace('engine="0"', f'engine="{engine}"') for engine in engines)
    assert ranks_in_metrics(metrics.encode()) == ranks


async def test_a_server_with_several_engines_reports_them(vllm):
    vllm.metrics = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    assert (await vllm.adapter.probe()).ranks == 2


async def test_a_server_that_was_put_to_sleep_reports_it(vllm):
    assert not (await vllm.adapter.probe()).asleep
    await vllm.adapter.sleep()
    assert (await vllm.adapter.probe()).asleep
    await vllm.adapter.wake()
    assert not (await vllm.adapter.probe()).asleep
    assert vllm.told == ["/sleep?level=1", "/wake_up"]


async def test_a_server_without_sleep_gets_one_request_until_it_restarts(vllm):
    vllm.sleeping = None
    for _ in range(3):
        assert not (await vllm.adapter.probe()).asleep
    assert vllm.asked_for_sleep == 1
    vllm.healthy = False
    with pytest.raises(WorkerFailed):
        await vllm.adapter.probe()
    vllm.healthy, vllm.sleeping = True, True
    assert (await vllm.adapter.probe()).asleep
