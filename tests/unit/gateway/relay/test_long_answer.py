"""Long whole answers: what is read and removed of them, and that other streams go on meanwhile."""

import asyncio
import json
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from gateway.domain.errors import WorkerError
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import Surface
from gateway.relay import long_answer
from gateway.relay.long_answer import LONG_BYTES, LongAnswer
from gateway.relay.relay import relay
from tests.fakes.stub_adapter import StubAnswer
from workers.adapter import WorkerFailed

USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}'
MEGABYTES = 8 * 1024**2
CHOICE = b'{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}'
VALUES = {
    "a text": b'[{"message":{"content":"%b"}}]' % (b"word " * (MEGABYTES // 5)),
    "escapes": b'[{"message":{"content":"%b"}}]' % (b'\\\\ \\" ]} \\n\\u00e9' * (MEGABYTES // 22)),
    "many choices": b"[%b]" % b",".join([CHOICE] * (MEGABYTES // len(CHOICE))),
    "numbers": b"[%b0.5]" % (b"0.5," * (MEGABYTES // 4)),
}


class Client:
    def __init__(self):
        self.memory = MemoryLease(MemoryBudget(2**30))

    async def answer(self, status, kind, body, headers):
        self.body = body


async def relayed(*pieces, content_type="application/json", **options):
    """Return what the client got, the request's account, and the turns that other tasks of the loop had."""
    progress = SimpleNamespace(trace=None, output_sent=lambda: None, tally=None)
    request = SimpleNamespace(stream=False, generates=True, answers=1, surface=Surface.CHAT)
    answer, client, turns = StubAnswer(content_type=content_type, pieces=pieces), Client(), 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    try:
        await relay(answer, client, request, progress, {}, **options)
    finally:
        beside.cancel()
    return client.body, progress, turns


@pytest.mark.parametrize("kind", VALUES)
async def test_other_streams_go_on_while_a_long_answer_is_looked_through(kind):
    body = b'{"id":"a","choices":%b,%b}' % (VALUES[kind], USAGE)
    passed, progress, turns = await relayed(body)
    assert passed == body
    assert progress.usage.completion_tokens == 7
    assert turns >= len(body) // long_answer.SLICE_BYTES


@pytest.mark.parametrize("words", [400, 30_000], ids=["short chunks", "long chunks"])
async def test_other_streams_go_on_while_a_stream_becomes_a_long_answer(words):
    text = 'caf\u00e9 "\n' * words
    chunk = b'{"id":"a","choices":[{"index":0,"delta":{"content":%b}}]}' % json.dumps(text).encode()
    chunks = 2 * LONG_BYTES // len(text)
    end = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],%b}' % USAGE
    frames = b"".join(b"data: %b\n\n" % each for each in (*[chunk] * chunks, end, b"[DONE]"))
    passed, progress, turns = await relayed(frames, content_type="text/event-stream")
    assert json.loads(passed)["choices"][0]["message"]["content"] == text * chunks
    assert progress.usage.completion_tokens == 7
    # Once while the texts are joined, and once while the answer is looked through.
    assert turns >= len(text) * chunks // long_answer.SLICE_BYTES + len(passed) // long_answer.SLICE_BYTES


async def test_a_long_answer_loses_what_the_client_must_not_get_and_nothing_else():
    long = b'"%b"' % (b"x" * LONG_BYTES)
    body = b'{"logprobs":%b,"kv_transfer_params":{"host":"10.0.0.1"},%b,"choices":[%b]}' % (long, USAGE, long)
    passed, progress, _ = await relayed(body, reports_cached_tokens=False)
    assert progress.usage.cached_tokens == 3
    found = json.loads(passed)
    assert found["kv_transfer_params"] is None
    assert "cached_tokens" not in str(found["usage"])
    assert found["choices"] == [found["logprobs"]] == [json.loads(long)]


async def test_the_tokens_of_a_long_answer_without_usage_are_extrapolated():
    text = b"word " * (MEGABYTES // 5)
    _, progress, _ = await relayed(b'{"choices":[{"message":{"content":"%b"}}]}' % text)
    assert progress.usage is None
    assert progress.tally.text_tokens(lambda text: len(text) // 5) == pytest.approx(MEGABYTES // 5, rel=0.01)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[%b]' % (b"1," * LONG_BYTES),
        b'{"choices":"%b' % (b"x" * LONG_BYTES),
        b"[%b1]" % (b"1," * LONG_BYTES),
        b'{"a":1%b}' % (b',"a":1' * LONG_BYTES),
        b'{"a":1%b}' % (b',"a":[%b1]' % (b"1," * 40_000) * 100),
        b"]" * (LONG_BYTES + 1),
        b"1" * (LONG_BYTES + 1),
    ],
    ids=["an open list", "an open text", "a list", "many fields", "many long fields", "closed", "a number"],
)
async def test_a_long_answer_that_is_none_is_refused(body):
    with pytest.raises(WorkerFailed):
        await relayed(body)


async def test_the_outline_is_that_of_the_answer_wherever_slices_end(monkeypatch):
    random = Random(16)

    def value(depth):
        kind = random.randrange(5 if depth else 3)
        if kind == 0:
            return random.choice([None, True, 1, -2.5e7])
        if kind in (1, 2):
            return "".join(random.choices('ab "\\\\[]{},:\n\u00e9\U0001f600', k=random.randrange(30)))
        inner = [value(depth - 1) for _ in range(random.randrange(5))]
        return inner if kind == 3 else {f"{place}{'[' * place}": each for place, each in enumerate(inner)}

    monkeypatch.setattr(long_answer, "KEPT_BYTES_MAX", 20)
    for _ in range(300):
        monkeypatch.setattr(long_answer, "SLICE_BYTES", random.randrange(1, 40))
        fields = {f"field{number}": value(4) for number in range(random.randrange(6))}
        body = json.dumps(fields, ensure_ascii=random.random() < 0.5).encode()
        long = LongAnswer(body)
        outline = await long.outline()
        short = {name: each for name, each in fields.items() if len(json.dumps(each)) < 10}
        assert {name: json.loads(outline)[name] for name in short} == short
        assert all(
            len(raw) < 70 for raw in msgspec.json.decode(outline, type=dict[str, msgspec.Raw]).values()
        )
        assert await long.restore(outline) == body
    with pytest.raises(WorkerError):
        await LongAnswer(b'{"a": [}').outline()
