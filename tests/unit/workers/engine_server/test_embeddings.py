"""Embeddings of the embedded worker: what they are, how they are written, and what is refused."""

import base64
import struct
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.engine.model.decoder import Decoder

PATH = "/v1/embeddings"
TEXTS = ["Hello, what is a gateway?", "A gateway is a door.", "x"]


def length(vector: list[float]) -> float:
    return sum(part * part for part in vector) ** 0.5


async def vectors(client: Any, given: Any, **more: Any) -> list[Any]:
    status, body = await client.post(PATH, {"model": "tiny", "input": given, **more})
    assert status == 200, body
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    return [entry["embedding"] for entry in body["data"]]


@pytest.mark.parametrize("chunk", [4, 512])
async def test_a_vector_is_the_last_hidden_state_of_the_last_token(
    serving: Any, model: Any, chunk: int
) -> None:
    tokenizer, oracle = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    async with serving(chunk_tokens=chunk) as client:
        found = await vectors(client, TEXTS)
        # It has left nothing behind that a generation would stumble over.
        await client.until_idle()
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            states = oracle.model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        wanted = torch.nn.functional.normalize(states[0, -1].float(), dim=0)
        assert torch.allclose(torch.tensor(vector), wanted, atol=1e-4)
        assert length(vector) == pytest.approx(1.0, abs=1e-5)


async def test_texts_token_ids_and_base64_have_the_same_embedding(client: Any, model: Any) -> None:
    ids = [AutoTokenizer.from_pretrained(model)(text)["input_ids"] for text in TEXTS]
    plain = await vectors(client, TEXTS)
    assert await vectors(client, ids) == plain
    assert await vectors(client, ids[0]) == plain[:1]
    assert await vectors(client, TEXTS[0], encoding_format="float") == plain[:1]
    (encoded,) = await vectors(client, TEXTS[0], encoding_format="base64")
    unpacked = struct.unpack(f"<{len(plain[0])}f", base64.b64decode(encoded))
    assert list(unpacked) == pytest.approx(plain[0], abs=1e-7)


async def test_usage_counts_the_tokens_of_all_texts(client: Any, model: Any) -> None:
    tokens = sum(len(AutoTokenizer.from_pretrained(model)(text)["input_ids"]) for text in TEXTS)
    _, body = await client.post(PATH, {"input": TEXTS})
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (body["object"], body["model"]) == ("list", "tiny")


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"input": "x", "dimensions": 8}, "dimensions", "unsupported_parameter"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "invalid_request"),
        ({"input": ""}, "input", "invalid_request"),
        ({"input": []}, "input", "invalid_request"),
        ({"input": ["x", [1]]}, "input", "invalid_request"),
        ({"input": [[]]}, "input", "invalid_request"),
        ({"input": [512]}, "input", "invalid_request"),
        ({"input": [1] * 9000}, "input", "context_length_exceeded"),
        ({}, "input", "invalid_request"),
    ],
    ids=["dimensions", "encoding", "empty", "none", "mixed", "no tokens", "no token", "too long", "missing"],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    client: Any, more: Any, param: str, code: str
) -> None:
    status, body = await client.post(PATH, more)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, param, code)


async def test_another_model_is_not_there(client: Any) -> None:
    status, body = await client.post(PATH, {"input": "x", "model": "other"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_a_failed_computation_is_a_503_for_its_request_alone(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: object) -> None:
        raise MemoryError("secret detail")

    with monkeypatch.context() as broken:
        broken.setattr(Decoder, "forward", forward)
        status, body = await client.post(PATH, {"input": "x"})
    assert (status, body["error"]["code"]) == (503, "step_failed")
    assert "secret" not in body["error"]["message"]
    assert len(await vectors(client, TEXTS)) == len(TEXTS)
