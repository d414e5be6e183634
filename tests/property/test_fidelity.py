"""What passes through the gateway is unchanged: every field to the worker, every byte of its answer back."""

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import FORM_SURFACES, GENERATING_SURFACES, Surface
from gateway.relay.relay import relay
from gateway.telemetry.progress import Progress
from gateway.web.openai.body_fields import body_type
from gateway.web.openai.inference_requests import GATEWAY_OWNED, decode_openai_request
from workers.adapter import WorkerAnswer, WorkerCall, WorkerFailed, WorkerTarget
from workers.adapters.openai import OpenAIAdapter
from workers.adapters.sglang import SglangAdapter
from workers.adapters.vllm import VllmAdapter

MEDIA = re.compile("url|uri|path|image|video|audio|file_data|file_id|uuid|content_hash|embeds")
"""In the names of what may be media, which are looked into at any depth (test_media_rules)."""
NO_MEDIA = st.text().filter(lambda name: not MEDIA.search(name))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NO_MEDIA, inner, max_size=3),
    max_leaves=6,
)
READ = {name for surface in Surface for name in body_type(surface).__struct_fields__}
"""Fields of which the gateway knows what they have to be; anything else may be anything."""
NAMES = NO_MEDIA.filter(lambda name: name and name not in READ)
WHAT = {
    Surface.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Surface.COMPLETIONS: {"prompt": "hi"},
    Surface.EMBEDDINGS: {"input": ["hi", "ho"]},
}
PASSED_ON = [
    surface for surface in Surface if surface not in {Surface.MESSAGES, Surface.RESPONSES, *FORM_SURFACES}
]
"""What a worker is asked as it came, in JSON."""

ADAPTERS = [
    kind(WorkerTarget(id="w", url="http://w")) for kind in (OpenAIAdapter, SglangAdapter, VllmAdapter)
]
OWNED_BY_ADAPTERS = {"model", "rid", "request_id", "cache_salt"}


@settings(max_examples=50)
@given(
    surface=st.sampled_from(PASSED_ON),
    more=st.dictionaries(NAMES, VALUES, max_size=5),
    adapter=st.sampled_from(ADAPTERS),
    spaces=st.sampled_from([None, 2]),
)
def test_every_field_that_is_not_the_gateways_reaches_the_worker_as_it_was(surface, more, adapter, spaces):
    sent = {"model": "m", **WHAT.get(surface, {}), **more}
    request = decode_openai_request(surface, json.dumps(sent, indent=spaces).encode())
    call = WorkerCall(id="r", path="p", fields=request.fields, model="m", stream=False, cache_salt="s")
    got = json.loads(msgspec.json.encode(adapter.body(call)))
    expected = {name: value for name, value in sent.items() if name not in GATEWAY_OWNED | OWNED_BY_ADAPTERS}
    assert {name: value for name, value in got.items() if name not in OWNED_BY_ADAPTERS} == expected


class Answer(WorkerAnswer):
    """A worker's answer."""

    def __init__(self, body, content_type):
        self.status, self.content_type, self.body = 200, content_type, body

    async def chunks(self):
        yield self.body[:5]
        yield self.body[5:]


class Client:
    """An exchange that keeps what it was told."""

    def __init__(self):
        self.memory = MemoryLease(MemoryBudget(2**20))

    async def answer(self, status, content_type, body, headers):
        self.got = status, content_type, body


async def passed(surface, body, content_type="application/json"):
    client = Client()
    request = decode_openai_request(surface, json.dumps({"model": "m", **WHAT.get(surface, {})}).encode())
    progress = Progress("r", surface.value, lambda: 0.0, lambda: 0.0)
    await relay(Answer(body, content_type), client, request, progress, {})
    return client.got, progress


@given(
    surface=st.sampled_from(PASSED_ON),
    answer=st.dictionaries(st.text(), VALUES),
    spaces=st.sampled_from([None, 2]),
)
async def test_every_byte_of_an_answer_comes_back(surface, answer, spaces):
    body = json.dumps(answer, indent=spaces).encode()
    assert (await passed(surface, body))[0] == (200, "application/json", body)


@given(sound=st.binary(min_size=1))
async def test_what_is_no_json_keeps_its_type_and_its_bytes_where_no_tokens_are_generated(sound):
    assert (await passed(Surface.SPEECH, sound, "audio/mpeg"))[0] == (200, "audio/mpeg", sound)


async def test_a_generated_answer_that_is_no_json_is_the_workers_failure():
    for surface in GENERATING_SURFACES:
        with pytest.raises(WorkerFailed):
            await passed(surface, b"<html>", "text/html")


async def test_an_answer_that_is_nested_without_end_is_the_workers_failure():
    for surface in GENERATING_SURFACES:
        with pytest.raises(WorkerFailed):
            await passed(surface, b'{"choices":' + b"[" * 100_000, "application/json")


async def test_usage_of_embeddings_is_read_where_it_stands():
    body = json.dumps({"data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}).encode()
    _, progress = await passed(Surface.EMBEDDINGS, body)
    assert progress.usage.prompt_tokens == 7
    assert progress.output_tokens_used() == 0
