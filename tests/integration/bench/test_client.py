"""The load client of `radixgate bench` before faulty servers: each error gets a code of its own."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.bench.client import Endpoint, stream_completion
from gateway.bench.replay import BenchTarget, replay
from gateway.bench.trace_prompts import TracePrompts
from gateway.bench.trace_tenants import Caller
from policies.simulation.trial import TraceSource
from policies.simulation.workloads import WorkloadParameters

DONE = b"data: [DONE]\n\n"


def frame(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def said(**delta):
    return frame(choices=[{"index": 0, "delta": delta}])


def counted(**usage):
    return frame(choices=[], usage=usage)


def server(body=b"", *, status=200, content_type="text/event-stream", headers=None, seconds=0.0):
    async def answer(request):
        await asyncio.sleep(seconds)
        return web.Response(status=status, body=body, content_type=content_type, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return TestServer(app)


async def asked(*arguments, **given):
    async with server(*arguments, **given) as at, aiohttp.ClientSession() as http:
        return await stream_completion(http, str(at.make_url("/v1")), "", "all", {})


async def test_the_tokens_of_an_answer_are_those_that_its_server_reports():
    usage = counted(
        prompt_tokens=7, completion_tokens=2, prompt_tokens_details={"cached_tokens": 4}, total_tokens=9
    )
    result = await asked(said(content="a") + said(content="b") + usage + DONE)
    assert (result.error, result.text) == (None, "ab")
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (7, 4, 2)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_a_thought_is_output_whatever_an_engine_calls_it(name):
    result = await asked(said(**{name: "hm"}) + counted(prompt_tokens=1, completion_tokens=1) + DONE)
    assert result.ttft is not None
    assert result.text == "hm"


REFUSED = {
    "code": ({"error": {"message": "no", "type": "of_type", "code": "of_code"}}, "of_code"),
    "number": ({"error": {"message": "no", "type": "of_type", "code": 400}}, "400"),
    "code-null": ({"error": {"message": "no", "type": "of_type", "code": None}}, "of_type"),
    "nothing": ({"error": {"message": "no", "type": None, "code": None}}, "418"),
    "text": ({"error": "no"}, "418"),
    "list": ([], "418"),
}


@pytest.mark.parametrize("given", REFUSED)
async def test_a_refusal_is_named_by_the_most_specific_field_of_its_body(given):
    body, code = REFUSED[given]
    result = await asked(json.dumps(body).encode(), status=418, content_type="application/json")
    assert result.error == code


FRAMES = {
    "code-null": (frame(error={"message": "no", "type": "of_type", "code": None}), "of_type"),
    "text": (frame(error="no"), "stream_error"),
    "nothing": (frame(error={}), "stream_error"),
}


@pytest.mark.parametrize("given", FRAMES)
async def test_an_error_within_a_stream_is_named_too(given):
    body, code = FRAMES[given]
    assert (await asked(said(content="a") + body)).error == code


UNFINISHED = {
    "page": (b"<html>hello</html>", "no_stream"),
    "cut": (said(content="a"), "stream_cut"),
    "uncounted": (said(content="a") + DONE, "no_usage"),
    "usage-null": (
        said(content="a") + counted(prompt_tokens=None, completion_tokens=None) + DONE,
        "no_usage",
    ),
    "usage-list": (said(content="a") + frame(choices=[], usage=[1]) + DONE, "no_usage"),
}


@pytest.mark.parametrize("given", UNFINISHED)
async def test_an_answer_without_a_token_count_has_the_way_it_ended(given):
    body, code = UNFINISHED[given]
    result = await asked(body)
    assert (result.error, result.prompt_tokens, result.output_tokens) == (code, 0, 0)


async def test_details_of_another_shape_are_no_cached_tokens():
    usage = counted(prompt_tokens=1, completion_tokens=1, prompt_tokens_details=[1])
    result = await asked(said(content="a") + usage + DONE)
    assert (result.error, result.cached_tokens) == (None, 0)


async def test_a_redirect_is_not_followed_for_it_would_lose_the_request():
    assert (await asked(status=301, headers={"location": "/elsewhere"})).error == "301"


async def test_an_answer_may_take_as_long_as_the_timeout(monkeypatch):
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    body = said(content="a") + counted(prompt_tokens=1, completion_tokens=1) + DONE
    async with server(body, seconds=0.2) as at:
        target = BenchTarget(
            url=str(at.make_url("")),
            model="m",
            endpoint=Endpoint.CHAT,
            body={},
            seconds_max=60.0,
            in_flight_max=10,
        )
        trace = TraceSource(workload="chat", load=WorkloadParameters(requests=1), speed=1000).trace(0)
        ran = await replay(trace, target, [Caller(name="all")], TracePrompts(), lambda: None)
    assert [result.error for result in ran.results] == [None]
