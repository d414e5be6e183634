"""Whole answers that the gateway puts together from streams of workers."""

import asyncio
from math import isclose

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CHAT = {"messages": [{"role": "user", "content": "Tell me of trees."}], "max_tokens": 12, "temperature": 0}
TEXT = {"prompt": "Tell me", "max_tokens": 12, "temperature": 0}
ASKED = [
    ("chat/completions", CHAT),
    ("chat/completions", {**CHAT, "n": 3, "temperature": 1.0, "seed": 7}),
    ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    ("chat/completions", {**CHAT, "stop": ["e"]}),
    ("chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    ("chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
    ("completions", TEXT),
    ("completions", {**TEXT, "prompt": ["one", "two"], "n": 2, "logprobs": 2, "temperature": 1.0, "seed": 3}),
]


def said(answer):
    """Less what differs between any two answers."""
    answer = {name: value for name, value in answer.items() if name not in ("id", "created")}
    answer["usage"].pop("prompt_tokens_details", None)
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or ():
            call["id"] = "call"
    return answer


def same(one, other):
    """With numbers as close as two batches of other sizes compute them."""
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-3, abs_tol=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(("path", "asked"), ASKED, ids=[f"{path}-{'-'.join(asked)}" for path, asked in ASKED])
async def test_a_stream_of_the_embedded_engine_has_the_content_of_its_whole_answer(
    gateway, embedded, model_settings, path, asked
):
    worker, body = embedded[0], {"model": "tiny", **asked}
    async with gateway(worker, kind="embedded", **model_settings) as running:
        async with running.http.post(f"{worker.url}/v1/{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            at_once = await answer.json()
        url = f"{running.url}/v1/{path}"
        async with running.http.post(url, json=body, headers=running.headers()) as answer:
            assert answer.status == 200, await answer.text()
            put_together = await answer.json()
    assert same(said(put_together), said(at_once)), (put_together, at_once)


async def test_a_workers_first_answer_is_passed_as_it_came_and_after_a_restart_again(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(more={"service_tier": None})
        answers = []
        for instance in ("first", "first", "second", "second"):
            worker.instance = instance
            await running.until(
                lambda now=instance: running.here.gateway.fleet["w0"].report.instance_id == now
            )
            async with running.chat() as answer:
                answers.append(await answer.json())
    assert [bool(seen.body.get("stream")) for seen in worker.seen] == [False, True, False, True]
    assert [answer["service_tier"] for answer in answers] == [None] * 4
    assert [answer["choices"] for answer in answers] == [answers[0]["choices"]] * 4


async def test_the_first_token_of_a_whole_answer_makes_room_for_the_next(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"queueing.release_window_tokens": 100}) as running,
    ):
        running.knows_shapes()
        worker.then(gap=3600.0)
        first = asyncio.ensure_future(running.chat("x" * 300).__aenter__())
        await running.until(lambda: worker.seen and worker.seen[0].frames)
        second = asyncio.ensure_future(running.chat("y" * 300).__aenter__())
        await running.until(lambda: len(worker.seen) == 2)
        for task in (first, second):
            task.cancel()
        await asyncio.wait([first, second])
        await running.until(lambda: running.idle)
    assert all(seen.body["stream"] is True for seen in worker.seen)


@pytest.mark.parametrize(
    ("kind", "settings", "more"),
    [
        ("openai", {}, {}),
        ("sglang", {"queueing.whole_from_streams": "false"}, {}),
        ("sglang", {}, {"best_of": 2}),
    ],
    ids=["a kind that may leave things out", "switched off", "a field that streams do not answer"],
)
async def test_where_a_stream_has_fewer_fields_none_is_requested(gateway, kind, settings, more):
    async with ScriptedWorker() as worker, gateway(worker, kind=kind, **settings) as running:
        running.knows_shapes()
        async with running.chat(**more) as answer:
            assert (answer.status, len((await answer.json())["choices"])) == (200, 1)
    assert not worker.seen[0].body.get("stream")


async def test_an_answer_that_breaks_off_is_had_from_another_worker_while_its_client_has_nothing(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other) as running:
        running.knows_shapes()
        # Slowly, so that what the other one does can be said meanwhile.
        for worker in (one, other):
            worker.then(break_after=2, gap=0.1)
        task = asyncio.ensure_future(running.chat(max_tokens=8).__aenter__())
        await running.until(lambda: one.seen or other.seen)
        for worker in (one, other):
            if not worker.seen:
                worker.then(break_after=None)
        answer = await task
        assert (answer.status, (await answer.json())["choices"][0]["message"]["content"]) == (
            200,
            "w0 w1 w2 w3 ",
        )
        await running.until(lambda: running.idle)
    assert sorted(seen.ended for worker in (one, other) for seen in worker.seen) == ["broken", "finished"]


@pytest.mark.parametrize(
    "last", [b"data: [DONE]\n\n", b"data: [DONE]"], ids=["a blank line", "no blank line"]
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_stream_that_ends_without_a_finish_reason_is_an_answer(gateway, path, last):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        running.knows_shapes()
        worker.then(finish_reason=None, last_frame=last)
        body = {"model": "m", **(CHAT if path.startswith("chat") else TEXT)}
        url = f"{running.url}/v1/{path}"
        async with running.http.post(url, json=body, headers=running.headers()) as answer:
            assert answer.status == 200, await answer.text()
            choice = (await answer.json())["choices"][0]
    assert worker.seen[0].body["stream"] is True
    assert (choice["finish_reason"], choice.get("text") or choice["message"]["content"]) == (
        None,
        "w0 w1 w2 w3 ",
    )


@pytest.mark.parametrize(("reason", "status"), [(None, 502), ("stop", 200)])
async def test_a_stream_without_its_last_frame_is_complete_only_if_its_choices_have_ended(
    gateway, reason, status
):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        running.knows_shapes()
        worker.then(finish_reason=reason, last_frame=b"")
        async with running.chat() as answer:
            assert answer.status == status, await answer.text()
