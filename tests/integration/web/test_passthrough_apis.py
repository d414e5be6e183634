"""APIs that generate no tokens: embeddings, reranking, scores, moderation, speech, tokens."""

import base64
import json
import struct

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

USAGE = {"prompt_tokens": 6, "total_tokens": 6}
FLOATS = json.dumps(
    {"object": "list", "data": [{"embedding": [0.10, -2e-3]}], "usage": USAGE}, indent=1
).encode()
PACKED = base64.b64encode(struct.pack("<2f", 0.1, -2e-3)).decode()
ANSWERS = {
    "/v1/embeddings": ("application/json", FLOATS),
    "/v1/rerank": ("application/json", b'{"results": [{"index": 0, "relevance_score": 0.50}]}'),
    "/v1/score": ("application/json", b'{"data": [{"score": 1}]}'),
    "/v1/moderations": ("application/json", b'{"results": []}'),
    "/v1/audio/speech": ("audio/mpeg", b"\x00\xff\x00"),
    "/tokenize": ("application/json", b'{"tokens": [1, 2], "count": 2}'),
    "/detokenize": ("application/json", b'{"prompt": "hi"}'),
}
BODIES = {
    "embeddings": {"input": [[1, 2, 3], [4, 5, 6]], "encoding_format": "base64", "dimensions": 2},
    "rerank": {"query": "which?", "documents": ["a", {"text": "b"}], "top_n": 1},
    "score": {"text_1": "a", "text_2": ["b", "c"]},
    "moderations": {"input": ["a", {"type": "image_url", "image_url": {"url": "data:,"}}]},
    "audio/speech": {"input": "hello", "voice": "alloy"},
    "tokenize": {"prompt": "hi", "add_special_tokens": False},
    "detokenize": {"tokens": [1, 2]},
}


def worker_with_all():
    worker = ScriptedWorker()
    worker.others = dict(ANSWERS)
    return worker


def post(running, path, **more):
    return running.http.post(running.url + path, json={"model": "m", **more}, headers=running.headers())


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_they_reach_the_worker_as_they_came_and_its_answer_comes_back_as_it_was(gateway, prefix):
    async with worker_with_all() as worker, gateway(worker) as running:
        for name, body in BODIES.items():
            async with post(running, f"{prefix}/{name}", **body) as response:
                assert response.status == 200, await response.text()
                expected = ANSWERS.get(f"/v1/{name}") or ANSWERS[f"/{name}"]
                assert (response.content_type, await response.read()) == expected
            asked = worker.seen[-1].body
            assert {name: asked[name] for name in body} == body
            assert not {"encoding_format", "stream", "max_tokens"} & (set(asked) - set(body))
        await running.until(lambda: running.idle)


async def test_coheres_clients_find_reranking(gateway):
    async with worker_with_all() as worker, gateway(worker) as running:
        async with post(running, "/v2/rerank", **BODIES["rerank"]) as response:
            assert (response.content_type, await response.read()) == ANSWERS["/v1/rerank"]
        async with running.http.get(running.url + "/v2/rerank") as response:
            assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_an_embedding_costs_the_tokens_that_the_worker_reports_and_no_output(gateway):
    async with (
        worker_with_all() as worker,
        gateway(worker, limits=[{"total_tokens": 40, "per": "day"}]) as running,
    ):
        left = []
        for _ in range(2):
            async with post(running, "/v1/embeddings", input="a" * 80) as response:
                await response.read()
                left.append(int(response.headers["x-ratelimit-remaining-tokens"]))
            await running.until(lambda: running.idle)
        async with post(running, "/v1/embeddings", input="a" * 400) as response:
            assert response.status == 429
    # 20 estimated and reserved, 6 settled.
    assert (left[0], left[1]) == (20, 14)


async def test_an_embedding_leaves_nothing_in_the_prefix_index(gateway):
    async with worker_with_all() as worker, gateway(worker) as running:
        async with post(running, "/v1/embeddings", input="a prefix of many blocks " * 100) as response:
            assert response.status == 200
        async with running.http.get(running.admin + "/metrics") as response:
            assert "radixgate_index_blocks 0.0" in await response.text()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("embeddings", {}, "input"),
        ("embeddings", {"input": [[1, -2]]}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": {"text": "a"}}, "input"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("rerank", {"documents": ["a"] * 3000}, None),
        ("score", {"items": [[-1]]}, None),
        ("tokenize", {"model": ""}, "model"),
    ],
)
async def test_what_cannot_be_read_is_refused_before_a_worker_gets_a_call(gateway, path, body, param):
    async with worker_with_all() as worker, gateway(worker) as running:
        async with post(running, f"/v1/{path}", **body) as response:
            refusal = (await response.json())["error"]
            assert (response.status, refusal["code"], refusal["param"]) == (400, "invalid_request", param)
        assert not worker.seen


async def test_a_worker_that_has_no_such_address_is_no_failure_of_its_own(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, "/v1/embeddings", input="a") as response:
            body = await response.json()
            assert response.status == 404
            assert set(body["error"]) == {"message", "type", "param", "code"}
        async with running.chat() as response:
            assert response.status == 200
