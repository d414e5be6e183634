"""Prompts to tokens: the worker's own ids, whatever was remembered of earlier prompts."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from gateway.dispatch import prompts
from gateway.dispatch.prompts import TextEncoder, TokenizerEncoder
from gateway.errors import BadRequest
from gateway.request import Surface
from gateway.web.openai import decode
from workers.engine import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint.build(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1)


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def encoder(checkpoint, executor):
    return TokenizerEncoder.from_directory(checkpoint, executor, key=1)


@pytest.fixture(scope="module")
def reference(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


def chat(messages, **more):
    return decode(Surface.CHAT, json.dumps({"model": "m", "messages": messages, **more}).encode())


def complete(prompt):
    return decode(Surface.COMPLETIONS, json.dumps({"model": "m", "prompt": prompt}).encode())


def tokens(encoder, request):
    return [list(prompt.tokens) for prompt in asyncio.run(encoder.encode(request))]


def said(*texts):
    roles = ["system", "user", "assistant"]
    return [{"role": roles[at % 3], "content": text} for at, text in enumerate(texts)]


def expected(reference, messages):
    return reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize(
    "texts", [("hi",), ("",), ("a", "b", "c", "d"), ("Ω 漢字\n\n", "<|im_end|> inside"), ("x " * 5000,)]
)
def test_chat_prompts_are_the_tokens_of_transformers(encoder, reference, texts):
    messages = said(*texts)
    assert tokens(encoder, chat(messages)) == [expected(reference, messages)]


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_remembered_pieces_change_nothing(encoder, reference, texts):
    messages = said(*texts)
    assert tokens(encoder, chat(messages)) == [expected(reference, messages)]


def test_a_conversation_encodes_only_what_is_new(encoder, monkeypatch):
    encoded = []
    batch = TokenizerEncoder._batch

    async def counted(self, texts, *, special):
        encoded.extend(texts)
        return await batch(self, texts, special=special)

    monkeypatch.setattr(TokenizerEncoder, "_batch", counted)
    history = said("be brief", "one", "two", "three")
    tokens(encoder, chat(history))
    encoded.clear()
    tokens(encoder, chat([*history, {"role": "user", "content": "something new"}]))
    assert encoded == ["user\nsomething new"]
    encoded.clear()
    tokens(encoder, chat(history))
    assert encoded == []


def test_what_is_remembered_is_bounded_and_is_no_text(encoder, monkeypatch):
    monkeypatch.setattr(prompts, "PIECE_MEMORY_BYTES_MAX", 5000)
    for number in range(200):
        tokens(encoder, chat(said(f"a secret question number {number}")))
    assert encoder._pieces_bytes <= 5000
    assert len(encoder._pieces) < 30
    assert not any(b"secret" in key for key in encoder._pieces)


def test_completions_are_the_text_with_special_tokens_or_the_ids_as_given(encoder, reference):
    assert tokens(encoder, complete("hello world")) == [reference("hello world").input_ids]
    assert tokens(encoder, complete(["a", "b"])) == [reference("a").input_ids, reference("b").input_ids]
    assert tokens(encoder, complete([5, 6, 7])) == [[5, 6, 7]]


def test_a_tokenizer_that_would_encode_pieces_differently_is_not_cut(executor, reference, checkpoint):
    """One that puts a blank before every text: a piece by itself would get one too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.Prepend("_")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant word is it"], trainer)
    encoder = TokenizerEncoder(
        tokenizer, TokenizerEncoder.from_directory(checkpoint, executor, 1)._template, executor, 1
    )
    request = chat(said("a", "b"))
    text = reference.apply_chat_template(said("a", "b"), add_generation_prompt=True, tokenize=False)
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens(encoder, request) == [whole]


def test_a_message_that_the_template_refuses_is_the_clients_mistake(encoder):
    with pytest.raises(BadRequest) as refusal:
        tokens(encoder, chat([{"role": "user", "content": 5}]))
    assert refusal.value.param == "messages"


async def test_a_long_prompt_does_not_hold_up_the_loop(encoder):
    longest, last = 0.0, time.perf_counter()

    async def tick():
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    longest = 0.0
    started = time.perf_counter()
    await encoder.encode(complete("many words in a row " * 20_000))
    took = time.perf_counter() - started
    ticking.cancel()
    assert longest < took / 2


def blocks(encoder, request, size=64):
    text = asyncio.run(encoder.encode(request))[0].text
    return [text[at : at + size] for at in range(0, len(text) - size + 1, size)]


def test_without_a_tokenizer_longer_conversations_begin_with_shorter_ones():
    short = blocks(TextEncoder(), chat(said("be brief " * 20, "one " * 20)))
    longer = blocks(TextEncoder(), chat(said("be brief " * 20, "one " * 20, "two " * 20)))
    assert longer[: len(short) - 1] == short[:-1]


def test_without_a_tokenizer_spelling_of_json_does_not_matter_but_tools_do():
    plain = blocks(TextEncoder(), chat(said("x" * 100)))
    spaced = decode(
        Surface.CHAT, b'{ "model": "m", "messages": [ {"content": "%s", "role": "system"} ] }' % (b"x" * 100)
    )
    assert blocks(TextEncoder(), spaced) == plain
    assert blocks(TextEncoder(), chat(said("x" * 100), tools=[{"type": "function"}])) != plain


def test_without_a_tokenizer_four_bytes_are_a_token():
    prompt = asyncio.run(TextEncoder().encode(complete("12345")))[0]
    assert len(prompt) == 2
    assert len(asyncio.run(TextEncoder().encode(complete([1, 2, 3])))[0]) == 3


def test_a_broken_tokenizer_file_is_said_so(tmp_path, executor):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be read"):
        TokenizerEncoder.from_directory(tmp_path, executor, 1)
