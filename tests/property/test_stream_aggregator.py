"""An aggregated stream equals the whole answer of the worker, wherever the stream was cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import RefusedByWorker, StreamInterrupted
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import Surface
from gateway.relay.faithful_streams import has_faithful_stream
from gateway.relay.relay import relay
from gateway.relay.stream_aggregator import StreamAggregator
from gateway.telemetry.progress import Progress
from gateway.web.openai.inference_requests import decode_openai_request
from workers.adapter import StreamBroken, WorkerAnswer, WorkerFailed

HEAD = {"id": "a", "created": 1, "model": "m", "system_fingerprint": None, "x_new": {"of": ["it", 1]}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "x": {"y": 1}}
WORDS = st.lists(st.text(min_size=1, max_size=4), max_size=4)
LOGPROB = st.fixed_dictionaries(
    {
        "token": st.text(max_size=3),
        "logprob": st.floats(-9, 0),
        "bytes": st.none() | st.lists(st.integers(0, 255)),
    }
)
ENDS = st.fixed_dictionaries(
    {"finish_reason": st.sampled_from(["stop", "length", "tool_calls"])},
    optional={
        "stop_reason": st.sampled_from(["END", 7]),
        "matched_stop": st.integers(0, 9),
        "x_end": st.text(),
    },
)


@st.composite
def chat_choices(draw):
    """(the deltas of one choice, what they come to)"""
    message = {"role": "assistant", "content": None, "refusal": None}
    deltas = [{"delta": {"role": "assistant", "content": ""}}]
    for name in draw(
        st.lists(
            st.sampled_from(["reasoning", "reasoning_content", "content", "refusal", "x_said"]), unique=True
        )
    ):
        words = draw(WORDS)
        deltas += [{"delta": {name: word}} for word in words]
        if words:
            message[name] = "".join(words)
    logprobs = draw(st.lists(st.lists(LOGPROB, max_size=2), max_size=3))
    deltas += [{"delta": {}, "logprobs": {"content": part, "refusal": None}} for part in logprobs]
    calls = draw(st.lists(WORDS, max_size=3))
    for index, pieces in enumerate(calls):
        deltas.append(
            {
                "delta": {
                    "tool_calls": [
                        {
                            "index": index,
                            "id": f"c{index}",
                            "type": "function",
                            "function": {"name": "f", "arguments": ""},
                        }
                    ]
                }
            }
        )
        deltas += [
            {"delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}}
            for piece in pieces
        ]
    if calls:
        message["tool_calls"] = [
            {"id": f"c{index}", "type": "function", "function": {"name": "f", "arguments": "".join(pieces)}}
            for index, pieces in enumerate(calls)
        ]
    elif message["content"] is None and "reasoning" not in message:
        message["content"] = ""
    end = draw(ENDS)
    whole = {"message": message, "logprobs": None, **end}
    if logprobs:
        whole["logprobs"] = {"content": [item for part in logprobs for item in part], "refusal": None}
    return [
        {"logprobs": None, "finish_reason": None, **delta} for delta in [*deltas, {"delta": {}, **end}]
    ], whole


@st.composite
def text_choices(draw):
    words, end = draw(WORDS), draw(ENDS)
    tokens = [
        {
            "text": word,
            "logprobs": {"tokens": [word], "token_logprobs": [-0.5], "top_logprobs": [{word: -0.5}]},
        }
        for word in words
    ]
    whole = {"text": "".join(words), "logprobs": None, **end}
    if words:
        whole["logprobs"] = {
            "tokens": words,
            "token_logprobs": [-0.5] * len(words),
            "top_logprobs": [{word: -0.5} for word in words],
        }
    return [
        {"logprobs": None, "finish_reason": None, **chunk} for chunk in [*tokens, {"text": "", **end}]
    ], whole


@st.composite
def answers(draw, choices, kind):
    """(chunks in some order that keeps each choice's, the whole answer)"""
    made = draw(st.lists(choices, min_size=1, max_size=3))
    turns = draw(st.permutations([index for index, (pieces, _) in enumerate(made) for _ in pieces]))
    left = [iter(pieces) for pieces, _ in made]
    usage = draw(st.sampled_from([None, USAGE]))
    chunks = [
        {**HEAD, "object": f"{kind}.chunk", "choices": [{"index": at, **next(left[at])}], "usage": None}
        for at in turns
    ]
    chunks.append({**HEAD, "object": f"{kind}.chunk", "choices": [], "usage": usage})
    choices = [{"index": index, **whole} for index, (_, whole) in enumerate(made)]
    return chunks, {**HEAD, "object": kind, "choices": choices, "usage": usage}


def aggregated(surface, chunks, shape=None):
    aggregator = StreamAggregator(surface, shape)
    for chunk in chunks:
        aggregator.add(json.dumps(chunk).encode())
    return json.loads(aggregator.body(done=False))


@given(answers(chat_choices(), "chat.completion"))
def test_a_chat_has_the_content_of_its_chunks(answer):
    chunks, whole = answer
    assert aggregated(Surface.CHAT, chunks) == whole


@given(answers(text_choices(), "text_completion"))
def test_a_text_has_the_content_of_its_chunks(answer):
    chunks, whole = answer
    chunks = [{**chunk, "object": "text_completion"} for chunk in chunks]
    assert aggregated(Surface.COMPLETIONS, chunks) == whole


class Stream(WorkerAnswer):
    """A worker's answer, cut into pieces; `broken`: it does not come to its end."""

    status, content_type = 200, "text/event-stream"

    def __init__(self, pieces, broken=False):
        self.pieces, self.broken = pieces, broken

    async def chunks(self):
        for piece in self.pieces:
            yield piece
        if self.broken:
            raise StreamBroken("cut")


class Client:
    def __init__(self):
        self.memory = MemoryLease(MemoryBudget(2**20))

    async def answer(self, status, content_type, body, headers):
        self.got = status, content_type, json.loads(body)


async def passed(stream):
    client, progress = Client(), Progress("r", "chat", lambda: 0.0, lambda: 0.0)
    request = decode_openai_request(
        Surface.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    )
    await relay(stream, client, request, progress, {})
    return client, progress


def sse(chunks, end="\n\n", done="[DONE]"):
    frames = [f"data: {json.dumps(chunk)}{end}" for chunk in chunks]
    return "".join([": hello" + end, *frames, f"data: {done}{end}" if done else ""]).encode()


@given(
    answer=answers(chat_choices(), "chat.completion"),
    size=st.integers(1, 50),
    end=st.sampled_from(["\n\n", "\r\n\r\n"]),
)
async def test_a_client_that_does_not_stream_gets_the_whole_answer_wherever_the_stream_was_cut(
    answer, size, end
):
    chunks, whole = answer
    data = sse(chunks, end)
    client, progress = await passed(Stream([data[at : at + size] for at in range(0, len(data), size)]))
    assert client.got == (200, "application/json", whole)
    assert (progress.usage is None) == (whole["usage"] is None)


CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(Stream([sse([CHUNK])], broken=True), id="cut"),
        pytest.param(Stream([sse([CHUNK], done="")]), id="without an end"),
        pytest.param(Stream([sse([CHUNK, {"error": {"message": "no", "code": 500}}])]), id="failed"),
        pytest.param(Stream([sse([])]), id="empty"),
        pytest.param(Stream([b"data: nonsense\n\n"]), id="no JSON"),
        pytest.param(Stream([sse([{"choices": [7]}])]), id="no choice"),
    ],
)
async def test_what_does_not_come_to_its_end_may_be_tried_elsewhere(stream):
    with pytest.raises(WorkerFailed):
        await passed(stream)


async def test_a_whole_answer_that_breaks_off_may_be_had_elsewhere():
    broken = Stream([b'{"choices": ['], broken=True)
    broken.content_type = "application/json"
    with pytest.raises(WorkerFailed):
        await passed(broken)


async def test_a_refusal_that_comes_as_a_stream_is_a_refusal():
    error = {"message": "too long for http://10.0.0.1:3000", "code": 400, "type": "BadRequestError"}
    with pytest.raises(RefusedByWorker) as raised:
        await passed(Stream([sse([{"error": error}])]))
    assert (raised.value.status, raised.value.message) == (400, "too long for ...")


@pytest.mark.parametrize(("name", "content"), [("reasoning", None), ("reasoning_content", "")])
def test_an_answer_that_is_nothing_but_thought_has_no_content_at_vllm_and_an_empty_one_at_sglang(
    name, content
):
    deltas = [{"role": "assistant", "content": ""}, {name: "h"}, {name: "m"}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    (choice,) = aggregated(Surface.CHAT, [*chunks, END])["choices"]
    assert (choice["message"][name], choice["message"]["content"]) == ("hm", content)


def test_what_is_nested_without_end_is_no_answer():
    deep = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(StreamInterrupted):
        aggregated(Surface.CHAT, [{"choices": [{"index": 0, "delta": deep}]}])


@pytest.mark.parametrize(
    ("more", "faithful"),
    [
        ({}, True),
        ({"n": 2, "logprobs": True, "tools": [], "seed": 1}, True),
        ({"tools": None, "tool_choice": "none"}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
        ({"functions": [{"name": "f"}]}, False),
        ({"best_of": 2}, False),
        ({"echo": True}, False),
        ({"return_hidden_states": True}, False),
        ({"anything_else": 1}, False),
    ],
    ids=str,
)
def test_only_a_request_with_all_of_its_answer_in_a_stream_is_sent_as_one(more, faithful):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    assert has_faithful_stream(decode_openai_request(Surface.CHAT, json.dumps(body).encode())) is faithful
