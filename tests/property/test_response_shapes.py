"""Whole answers that are put together have the shape of the worker's own, and nothing of other answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import Surface
from gateway.fleet.response_shape import NAMES_MAX, ResponseShapes
from gateway.relay.relay import relay
from gateway.relay.stream_aggregator import StreamAggregator
from gateway.telemetry.progress import Progress
from gateway.web.openai.inference_requests import decode_openai_request
from workers.adapter import WorkerAnswer

BLANK = st.sampled_from([None, []])
BLANKS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3).map("x_{}".format), BLANK, max_size=4)


@st.composite
def shaped(draw):
    """Makes whole answers of one shape, and the chunks of each: blanks are not in them."""
    blanks = {level: draw(BLANKS) for level in ("top", "choice", "message", "usage", "details")}
    turned = draw(st.randoms(use_true_random=False))

    def mixed(said, level):
        names = sorted({**said, **blanks[level]})
        turned.seed(level)
        turned.shuffle(names)
        both = {**blanks[level], **said}
        return {name: both[name] for name in names}

    def made(words, choices):
        details = {"cached_tokens": len(words)}
        usage = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
        head = {"id": "-".join(words), "object": "chat.completion"}
        texts = [
            mixed(
                {
                    "index": index,
                    "message": mixed({"role": "assistant", "content": "".join(words)}, "message"),
                    "finish_reason": "stop",
                },
                "choice",
            )
            for index in range(choices)
        ]
        full = mixed({**usage, "prompt_tokens_details": mixed(details, "details")}, "usage")
        whole = mixed({**head, "choices": texts, "usage": full}, "top")
        deltas = [
            {"index": index, "delta": delta}
            for index in range(choices)
            for delta in [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        ]
        ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in range(choices)]
        chunks = [{**head, "choices": [one]} for one in [*deltas, *ends]]
        return whole, [
            *chunks,
            {**head, "choices": [], "usage": {**usage, "prompt_tokens_details": details}},
        ]

    return made


WORDS = st.lists(st.text("abc ", min_size=1, max_size=3), min_size=1, max_size=3)


@given(made=shaped(), first=WORDS, second=WORDS, choices=st.integers(1, 3))
def test_the_second_answer_put_together_is_byte_for_byte_the_workers_own(made, first, second, choices):
    shapes = ResponseShapes()
    shapes.learn(Surface.CHAT, json.dumps(made(first, 1)[0]).encode())
    whole, chunks = made(second, choices)
    aggregator = StreamAggregator(Surface.CHAT, shapes.of(Surface.CHAT))
    for chunk in chunks:
        aggregator.add(json.dumps(chunk).encode())
    assert aggregator.body(done=True) == json.dumps(whole, separators=(",", ":")).encode()


def put_together(shapes):
    aggregator = StreamAggregator(Surface.CHAT, shapes.of(Surface.CHAT))
    aggregator.add(
        json.dumps({"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {}}]}).encode()
    )
    return aggregator.body(done=True)


def test_what_one_tenants_answer_names_does_not_come_back_in_anothers():
    secret = {"secret": None}
    choice = {
        "index": 0,
        "message": {"content": "secret", "audio": secret, "tool_calls": [secret], "x": secret},
        "logprobs": {"top_logprobs": [secret], **secret},
        "x": [secret],
    }
    said = {"id": "secret", "metadata": secret, "choices": [choice], "usage": {"x_details": secret}}
    shapes = ResponseShapes()
    shapes.learn(Surface.CHAT, json.dumps(said).encode())
    assert b"secret" not in put_together(shapes)


def test_a_shape_is_bounded():
    shapes = ResponseShapes()
    body = {f"n{at}": None for at in range(10_000)} | {"choices": [{"index": 0}], "n" * 10_000: None}
    shapes.learn(Surface.CHAT, json.dumps({"choices": [{"index": 0}], **body}).encode())
    assert len(json.loads(put_together(shapes)).keys() - {"object"}) == NAMES_MAX


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": 7}', b"\xff", b"[" * 9000]
)
def test_what_is_no_whole_answer_teaches_nothing(body):
    shapes = ResponseShapes()
    shapes.learn(Surface.CHAT, body)
    assert shapes.of(Surface.CHAT) is None


def test_a_shape_is_of_one_api_and_is_forgotten_with_its_worker():
    shapes = ResponseShapes()
    shapes.learn(Surface.CHAT, b'{"choices": [{"message": {}}]}')
    assert shapes.of(Surface.COMPLETIONS) is None
    shapes.forget()
    assert shapes.of(Surface.CHAT) is None


class Answer(WorkerAnswer):
    status = 200

    def __init__(self, content_type, body):
        self.content_type, self.body = content_type, body

    async def chunks(self):
        yield self.body


class Client:
    def __init__(self):
        self.memory = MemoryLease(MemoryBudget(2**20))

    async def answer(self, status, content_type, body, headers):
        self.got = body


async def test_the_first_answer_passes_as_it_came_and_the_next_has_its_shape():
    shapes, client = ResponseShapes(), Client()
    request = decode_openai_request(
        Surface.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    )
    whole = b'{ "new": null, "choices": [{"message": {"content": "a", "refusal": null, "audio": null}}]}'
    chunk = (
        b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    for kind, body in (("application/json", whole), ("text/event-stream", chunk)):
        progress = Progress("r", "chat", lambda: 0.0, lambda: 0.0)
        await relay(Answer(kind, body), client, request, progress, {}, response_shapes=shapes)
        if kind == "application/json":
            assert client.got == whole
    assert client.got == (
        b'{"new":null,"choices":[{"message":{"content":"b","refusal":null,"audio":null,"role":"assistant"},'
        b'"index":0,"finish_reason":"stop"}],"object":"chat.completion"}'
    )


@pytest.mark.parametrize("of_chunk", [{}, {"system_fingerprint": None}, {"system_fingerprint": "vllm-1"}])
def test_an_answer_put_together_has_the_engines_fingerprint(of_chunk):
    whole = {
        "id": "a",
        "system_fingerprint": "vllm-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}],
    }
    shapes = ResponseShapes()
    shapes.learn(Surface.CHAT, json.dumps(whole).encode())
    aggregator = StreamAggregator(Surface.CHAT, shapes.of(Surface.CHAT))
    choice = {"index": 0, "delta": {"content": "y"}, "finish_reason": "stop"}
    aggregator.add(json.dumps({"id": "b", **of_chunk, "choices": [choice]}).encode())
    assert json.loads(aggregator.body(done=True))["system_fingerprint"] == "vllm-1"
