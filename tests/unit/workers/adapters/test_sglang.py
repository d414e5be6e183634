"""SGLang of several versions, as a probe meets them."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from workers.adapter import WorkerCall, WorkerFailed, WorkerTarget
from workers.adapters.sglang import EmbeddedAdapter, SglangAdapter

INFO = {"max_total_num_tokens": 1000, "dp_size": 2}
LOADS = {"loads": [{"num_running_reqs": 3, "num_used_tokens": 70}]}


def says(told, status=200):
    async def handle(request):
        return web.json_response(told, status=status)

    return handle


async def report_of(**paths):
    """`loads` is /v1/loads."""
    app = web.Application()
    app.router.add_get("/v1/models", says({"data": [{"id": "m"}]}))
    for name, handle in paths.items():
        app.router.add_get("/v1/loads" if name == "loads" else f"/{name}", handle)
    async with TestServer(app) as server:
        adapter = SglangAdapter(WorkerTarget(id="w", url=str(server.make_url("")).rstrip("/")))
        try:
            return await adapter.probe()
        finally:
            adapter.close()


async def probed(**paths):
    """What it tells of itself."""
    report = await report_of(**paths)
    return report.models, report.kv_tokens_max, report.ranks, report.load and report.load.streams


async def test_a_new_one_reports_everything():
    new = {"ready": says({}), "server_info": says(INFO), "loads": says(LOADS)}
    assert await probed(**new) == (("m",), 1000, 2, 3)


@pytest.mark.parametrize(
    ("info", "slots"),
    [
        ({}, None),
        ({"max_running_requests": 64}, 64),
        (
            {
                "max_running_requests": None,
                "internal_states": [{"effective_max_running_requests_per_dp": 48}],
            },
            96,
        ),
        ({"max_running_requests": 0}, None),
    ],
    ids=["not told", "as asked for", "as memory allows, of two ranks", "none"],
)
async def test_it_reports_how_many_requests_it_runs_at_a_time(info, slots):
    assert (await report_of(server_info=says(INFO | info))).slots == slots


async def test_an_older_one_reports_under_older_names_and_no_load():
    assert await probed(get_server_info=says(INFO)) == (("m",), 1000, 2, None)


async def test_the_oldest_serves_and_reports_nothing_else():
    assert await probed() == (("m",), None, 1, None)


async def test_one_that_is_not_ready_is_not_there():
    with pytest.raises(WorkerFailed, match="status 503 from /ready"):
        await probed(ready=says({}, 503), server_info=says(INFO))


async def test_one_whose_server_info_fails_is_unreachable():
    with pytest.raises(WorkerFailed, match="status 500 from /server_info"):
        await probed(ready=says({}), server_info=says({}, 500))


PUBLISHER = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 2}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (None, []),
        (PUBLISHER, []),
        (
            {**PUBLISHER, "load_endpoint_port_base": 5559, "load_topic": "load"},
            ["tcp://127.0.0.1:5559", "tcp://127.0.0.1:5560"],
        ),
        # It listens everywhere for the one, also where it has an address for the other.
        (
            {**PUBLISHER, "endpoint_host": "10.0.0.9", "load_endpoint_port_base": 6000, "dp_size": 1},
            ["tcp://127.0.0.1:6000"],
        ),
        ({"endpoint_port_base": None, "load_endpoint_port_base": None}, []),
    ],
    ids=["none", "events-alone", "loads", "events-elsewhere", "null"],
)
async def test_where_it_publishes_its_load_stands_beside_its_events(events, found):
    report = await report_of(ready=says({}), server_info=says({**INFO, "kv_events": events}))
    assert [source.endpoint for source in report.loads] == found


async def test_one_that_claims_very_many_ranks_is_believed_a_thousand():
    events = {"endpoint_port_base": 1000, "load_endpoint_port_base": 9000, "dp_size": 10**8}
    report = await report_of(server_info=says({**INFO, "dp_size": 10**8, "kv_events": events}))
    assert (report.ranks, len(report.events), len(report.loads)) == (1024, 1024, 1024)


LISTED = {"data": [{"id": "m", "max_model_len": 100}, {"id": "sql", "parent": "m"}]}


@pytest.mark.parametrize(
    ("kind", "model", "lora_path"),
    [(SglangAdapter, "sql", "sql"), (SglangAdapter, "m", None), (EmbeddedAdapter, "sql", None)],
)
async def test_a_lora_adapter_is_named_where_the_engine_looks_for_it(kind, model, lora_path):
    app = web.Application()
    app.router.add_get("/v1/models", says(LISTED))
    async with TestServer(app) as server:
        adapter = kind(WorkerTarget(id="w", url=str(server.make_url("")).rstrip("/")))
        report = await adapter.probe()
        adapter.close()
    body = adapter.body(WorkerCall(id="1", path="chat/completions", fields={}, model=model, stream=False))
    assert (body["model"], body.get("lora_path")) == (model, lora_path)
    assert report.parents == {"sql": "m"}
    assert report.context_lengths == {"m": 100, "sql": 100}
