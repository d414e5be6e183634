"""POST /detokenize, and completions that return nothing but their prompt with log probabilities."""

from typing import Any

import pytest

Client = Any


@pytest.mark.parametrize("prompt", ["The old sailor", ["The old", "A new"]], ids=["one", "two"])
async def test_an_echo_of_no_tokens_is_the_prompt_alone(client: Client, prompt: str | list[str]) -> None:
    asked = {"prompt": prompt, "echo": True, "max_tokens": 0, "n": 2}
    status, answer = await client.post("/v1/completions", asked)
    texts = [text for text in ([prompt] if isinstance(prompt, str) else prompt) for _ in range(2)]
    assert (status, [choice["text"] for choice in answer["choices"]]) == (200, texts)
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    *chunks, last = await client.stream("/v1/completions", asked)
    assert last == "[DONE]"
    said = [""] * len(texts)
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        said[choice["index"]] += choice["text"]
    assert said == texts


@pytest.mark.parametrize("text", ["", "Hi there, Ω", "A long one. " * 2000], ids=["none", "short", "long"])
async def test_the_tokens_of_tokenize_are_those_of_the_text(client: Client, text: str) -> None:
    _, told = await client.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    status, said = await client.post("/detokenize", {"model": "any", "tokens": told["tokens"]})
    assert (status, said) == (200, {"prompt": text, "text": text})


async def test_special_tokens_are_returned_if_they_are_requested(client: Client) -> None:
    _, told = await client.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
    asked = {"tokens": told["tokens"]}
    (_, without), (_, with_) = [
        await client.post("/detokenize", {**asked, "skip_special_tokens": skip}) for skip in (True, False)
    ]
    assert "Hi" in without["prompt"]
    assert len(with_["prompt"]) > len(without["prompt"])


@pytest.mark.parametrize("tokens", [[-1], [512], [10**30], "abc", None])
async def test_tokens_that_do_not_exist_have_no_text(client: Client, tokens: object) -> None:
    status, answer = await client.post("/detokenize", {"tokens": tokens})
    assert (status, answer["error"]["param"]) == (400, "tokens")
