"""The addresses at which engines publish KV events, as seen from the gateway."""

import msgspec
import pytest
import zmq.asyncio

from workers.adapter import WorkerTarget
from workers.adapters.sglang import SglangAdapter
from workers.adapters.vllm import VllmAdapter
from workers.kv_events.source import EventSource, reachable
from workers.kv_events.subscriber import KvEventSubscriber


def asked(adapter_class, monkeypatch, **answers):
    """An adapter of a worker that gives these answers."""
    adapter = adapter_class(WorkerTarget(id="w", url="http://gpu-7:8000"))

    async def get_json(path, kind):
        return msgspec.convert(answers.get(path.replace("/", "_"), {"data": []}), kind) if kind else None

    monkeypatch.setattr(adapter.http, "get_json", get_json)
    return adapter


async def test_vllm_that_listens_everywhere_is_reached_where_its_http_is(monkeypatch):
    rank = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv", "hwm": 100_000}
    adapter = asked(
        VllmAdapter, monkeypatch, kv_event_sources={"0": rank}, is_sleeping={"is_sleeping": False}
    )
    report = await adapter.probe()
    assert report.events == (EventSource(endpoint="tcp://gpu-7:5557", replay="tcp://gpu-7:5558", topic="kv"),)


async def test_ranks_of_vllm_stand_in_their_order(monkeypatch):
    ranks = {str(rank): {"endpoint": f"tcp://10.0.0.1:{6000 + rank}"} for rank in (10, 2, 0, 11, 1)}
    adapter = asked(VllmAdapter, monkeypatch, kv_event_sources=ranks, is_sleeping={"is_sleeping": False})
    report = await adapter.probe()
    assert [int(source.endpoint[-4:]) - 6000 for source in report.events] == [0, 1, 2, 10, 11]


async def test_sglang_that_listens_everywhere_is_reached_where_its_http_is(monkeypatch):
    told = {"endpoint_host": "*", "endpoint_port_base": 5557, "replay_endpoint_port_base": 5600}
    info = {"kv_events": {**told, "topic": "kv", "block_size": 16, "dp_size": 2}}
    report = await asked(SglangAdapter, monkeypatch, server_info=info).probe()
    assert [(at.endpoint, at.replay, at.page_size) for at in report.events] == [
        ("tcp://gpu-7:5557", "tcp://gpu-7:5600", 16),
        ("tcp://gpu-7:5558", "tcp://gpu-7:5601", 16),
    ]


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:1", "h", "tcp://h:1"),
        ("tcp://0.0.0.0:1", "h", "tcp://h:1"),
        ("tcp://[::]:1", "::1", "tcp://[::1]:1"),
        ("tcp://127.0.0.1:1", "h", "tcp://127.0.0.1:1"),
        ("ipc:///run/kv", "h", "ipc:///run/kv"),
    ],
)
def test_only_what_means_everywhere_is_replaced(endpoint, host, expected):
    assert reachable(endpoint, host) == expected


async def test_an_address_that_is_none_is_an_os_error():
    with pytest.raises(OSError, match="nowhere"):
        async for _ in KvEventSubscriber(
            EventSource(endpoint="tcp://nowhere"), zmq.asyncio.Context.instance()
        ).batches():
            pass
