"""The adapter of a provider: what leaves, and what its answers call the model, wherever its chunks are cut."""

import json
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from workers.adapter import FailureKind, WorkerAnswer, WorkerCall, WorkerFailed
from workers.adapters.provider import FRAME_BYTES_MAX, ProviderAdapter

TRICK = '"model": "their/m" {"model":"their/m"}\n\n'


class Answer(WorkerAnswer):
    def __init__(self, chunks, status=200, content_type="application/json"):
        self.pieces, self.status, self.content_type = chunks, status, content_type

    async def chunks(self):
        for piece in self.pieces:
            yield piece


class Inner:
    """Remembers the call."""

    request_fields: ClassVar = {}

    def __init__(self, answer):
        self.answer = answer
        self.call = None

    @asynccontextmanager
    async def stream(self, call):
        self.call = call
        yield self.answer


def called(**more):
    return WorkerCall(
        id="ours", path="v1/chat/completions", model="m", stream=False, **{"fields": {}, **more}
    )


async def answered(*chunks, call=None, **more):
    inner = Inner(Answer(chunks, **more))
    async with ProviderAdapter(inner, {"m": "their/m"}).stream(call or called()) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


def frames(model, end):
    said = [{"id": "x", "model": model, "choices": [{"delta": {"content": TRICK}}]}, {"choices": []}]
    return b"".join(b"data: " + msgspec.json.encode(one) + end for one in said) + b"data: [DONE]" + end


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["lf", "crlf"])
async def test_frames_name_our_model_wherever_they_are_cut(end):
    theirs, ours = frames("their/m", end), frames("m", end)
    for at in range(len(theirs)):
        assert await answered(theirs[:at], theirs[at:], content_type="text/event-stream") == ours


async def test_a_whole_answer_names_our_model_and_not_the_provider():
    body = {"id": "x", "provider": "somebody", "model": "their/m-2026", "choices": [{"text": TRICK}]}
    text = json.dumps(body).encode()
    found = json.loads(await answered(text[:9], text[9:]))
    assert found == {"id": "x", "model": "m", "choices": [{"text": TRICK}]}


async def test_what_is_no_json_and_frames_without_end_pass_as_they_are():
    assert await answered(b'"model" [') == b'"model" ['
    long = b'data: {"model": "' + b"x" * FRAME_BYTES_MAX
    assert await answered(long, b'"}\n\n', content_type="text/event-stream") == long + b'"}\n\n'


async def test_a_refusal_names_our_model_and_an_unknown_one_is_no_refusal_of_the_client():
    assert await answered(b'{"error": "their/m: no"}', status=400) == b'{"error": "m: no"}'
    with pytest.raises(WorkerFailed) as raised:
        await answered(b"{}", status=404)
    assert raised.value.failure is FailureKind.REFUSED


async def test_a_call_of_a_provider_names_neither_the_client_nor_the_gateway():
    inner = Inner(Answer([b"{}"]))
    fields = {"user": b'"jane"', "metadata": b"{}", "store": b"true", "seed": b"1"}
    call = called(
        fields={name: msgspec.Raw(text) for name, text in fields.items()},
        cache_salt="salt",
        traceparent="00-1-2-01",
        priority=1,
        rank=2,
    )
    async with ProviderAdapter(inner, {}).stream(call):
        pass
    sent = inner.call
    assert (sent.model, dict(sent.fields)) == ("m", {"seed": msgspec.Raw(b"1")})
    assert (sent.cache_salt, sent.traceparent, sent.priority, sent.rank, sent.prompt_ids) == (
        "",
        None,
        None,
        None,
        None,
    )
    assert "ours" not in sent.id


@pytest.mark.parametrize("limited", [True, False], ids=["429", "hung up"])
async def test_a_provider_that_answers_429_is_up_all_the_same(limited):
    class Probed:
        request_fields: ClassVar = {}

        async def probe(self):
            raise WorkerFailed("no", rate_limited=limited)

    adapter = ProviderAdapter(Probed(), {})
    if limited:
        assert (await adapter.probe()).models == ()
    else:
        with pytest.raises(WorkerFailed):
            await adapter.probe()
