"""Tokens by the engine's `/tokenize`: its questions, its memory, and the fallback."""

import asyncio
import json
from array import array

import pytest

from gateway.domain.request import Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.tokenization import worker_tokens as module
from gateway.tokenization.worker_tokens import AGAIN_SECONDS, WorkerEncoder
from gateway.web.openai.inference_requests import decode_openai_request
from tests.fakes.clock import FakeClock
from workers.adapter import WorkerFailed

pytestmark = pytest.mark.any_loop

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


class Engine:
    """Says what it is told to say; an exception is raised."""

    def __init__(self):
        self.says = array("I", [1, 2, 3])
        self.asked = []

    async def __call__(self, model, fields):
        self.asked.append((model, {name: json.loads(bytes(raw)) for name, raw in fields.items()}))
        if isinstance(self.says, Exception):
            raise self.says
        if self.says == "silence":
            await asyncio.Event().wait()
        return self.says


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def encoder(engine, clock):
    return WorkerEncoder("m", engine, key=1, memory_bytes_max=10_000, clock=clock)


def tenant(name="acme"):
    return Tenant(id=name, organisation=name, key_id="k", plan=Plan(), group=f"tenant:{name}")


def chat(text="hi", **more):
    body = {"model": "alias", "messages": [{"role": "user", "content": text}], **more}
    return decode_openai_request(Surface.CHAT, json.dumps(body).encode())


def complete(prompt, **more):
    return decode_openai_request(
        Surface.COMPLETIONS, json.dumps({"model": "alias", "prompt": prompt, **more}).encode()
    )


async def encoded(encoder, request, of="acme"):
    (prompt,) = await encoder.encode(request, tenant(of), None)
    return prompt


async def test_a_chat_is_tokenised_with_all_that_its_template_reads(encoder, engine):
    more = {"tools": [{"type": "function"}], "chat_template_kwargs": {"a": 1}, "temperature": 1}
    prompt = await encoded(encoder, chat(**more))
    assert (list(prompt.tokens), prompt.count_exact) == ([1, 2, 3], True)
    del more["temperature"]
    assert engine.asked == [("m", {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more})]


async def test_a_text_is_tokenised_with_its_special_tokens(encoder, engine):
    assert list((await encoded(encoder, complete("hi"))).tokens) == [1, 2, 3]
    assert engine.asked == [("m", {"model": "m", "prompt": "hi", "add_special_tokens": True})]


async def test_the_same_prompt_is_tokenised_once_for_each_group(encoder, engine):
    for of in ("acme", "acme", "globex", "acme"):
        await encoded(encoder, chat(), of)
    assert len(engine.asked) == 2
    await encoded(encoder, chat("ho"))
    assert len(engine.asked) == 3


async def test_what_was_not_used_for_long_is_forgotten(encoder, engine):
    engine.says = array("I", range(1000))
    for text in ("a", "b", "c", "a"):
        await encoded(encoder, chat(text))
    assert len(engine.asked) == 4


@pytest.mark.parametrize(
    "request_",
    [
        chat(reasoning_effort="low"),
        chat(documents=[]),
        chat(tool_choice="none"),
        chat([{"type": "text", "text": "see"}, IMAGE]),
        complete(["a", "b"]),
        chat("x" * 2_100_000),
        complete("x" * 2_100_000),
        decode_openai_request(Surface.EMBEDDINGS, b'{"model": "m", "input": "hi"}'),
    ],
    ids=[
        "a field of templates",
        "documents",
        "a choice of tools",
        "media",
        "two prompts",
        "too long",
        "a text that is too long",
        "no prompt",
    ],
)
async def test_a_prompt_that_the_engine_cannot_tokenise_is_text(encoder, engine, request_):
    prompts = await encoder.encode(request_, tenant(), None)
    assert all(prompt.tokens is None and not prompt.count_exact for prompt in prompts)
    assert engine.asked == []


async def test_tokens_stay_what_they_are(encoder, engine):
    prompt = await encoded(encoder, complete([7, 8]))
    assert (list(prompt.tokens), prompt.count_exact, engine.asked) == ([7, 8], True, [])


async def test_a_refusal_makes_it_text_and_the_next_prompt_is_sent(encoder, engine):
    engine.says = None
    assert (await encoded(encoder, chat())).tokens is None
    engine.says = array("I", [4])
    assert list((await encoded(encoder, chat("ho"))).tokens) == [4]


async def test_an_engine_that_does_not_answer_is_left_alone_for_a_while(encoder, engine, clock):
    engine.says = WorkerFailed("no")
    for _ in range(3):
        assert (await encoded(encoder, chat())).tokens is None
    assert len(engine.asked) == 1
    clock.advance(AGAIN_SECONDS)
    engine.says = array("I", [4])
    assert list((await encoded(encoder, chat())).tokens) == [4]


async def test_an_outage_is_logged_once_and_again_after_it_was_over(encoder, engine, clock, caplog):
    for says in (WorkerFailed("no"), WorkerFailed("no"), array("I", [4]), WorkerFailed("no")):
        engine.says = says
        await encoded(encoder, chat(str(clock.now)))
        clock.advance(AGAIN_SECONDS)
    assert [record.levelname for record in caplog.records].count("WARNING") == 2


async def test_an_engine_that_is_silent_costs_a_bounded_time(encoder, engine, monkeypatch):
    monkeypatch.setattr(module, "CALL_SECONDS_MAX", 0.01)
    engine.says = "silence"
    assert (await encoded(encoder, chat())).tokens is None


async def test_two_prompts_never_share_a_hash_whether_they_are_text_or_tokens(encoder, engine):
    engine.says = None
    texts = [(await encoded(encoder, request)).text for request in (chat("a"), chat("b"), complete("a"))]
    assert len(set(texts)) == 3
