"""Prompt encoders: the worker's own token ids, with and without remembered prompts."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from gateway.domain.errors import BadRequest, PromptTooLong, TenantQueueFull
from gateway.domain.request import Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.tokenization import encoder_threads
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.min_token_count import token_bytes_max
from gateway.tokenization.text_encoder import TextEncoder
from gateway.tokenization.tokenizer_encoder import TokenizerEncoder
from gateway.web.openai.inference_requests import decode_openai_request
from radix_cache.namespace import Namespace, hasher_for
from tests.fakes.loop_gate import LoopGate
from workers.chat_template import ChatTemplate
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
    return TokenizerEncoder.from_directory(
        checkpoint, EncoderThreads(executor), key=1, memory_bytes_max=2**20
    )


@pytest.fixture(scope="module")
def reference(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


def tenant(name="acme", group=None):
    return Tenant(id=name, organisation=name, key_id="k", plan=Plan(), group=group or f"tenant:{name}")


ACME = tenant()


def chat(messages, **more):
    return decode_openai_request(
        Surface.CHAT, json.dumps({"model": "m", "messages": messages, **more}).encode()
    )


def complete(prompt):
    return decode_openai_request(Surface.COMPLETIONS, json.dumps({"model": "m", "prompt": prompt}).encode())


def tokens(encoder, request, of=ACME, length_max=None):
    return [list(prompt.tokens) for prompt in asyncio.run(encoder.encode(request, of, length_max))]


def said(*texts):
    roles = ["system", "user", "assistant"]
    return [{"role": roles[at % 3], "content": text} for at, text in enumerate(texts)]


def expected(reference, messages, **more):
    return reference.apply_chat_template(
        messages, **{"add_generation_prompt": True, "return_dict": False, **more}
    )


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


@pytest.fixture
def encoded(monkeypatch):
    """The pieces that were encoded."""
    found = []
    batch = TokenizerEncoder._encode_batch

    async def counted(self, texts, tenant, bound, *, special):
        found.extend(texts)
        return await batch(self, texts, tenant, bound, special=special)

    monkeypatch.setattr(TokenizerEncoder, "_encode_batch", counted)
    return found


def test_a_conversation_encodes_only_what_is_new(encoder, encoded):
    history = said("be brief", "one", "two", "three")
    tokens(encoder, chat(history))
    encoded.clear()
    tokens(encoder, chat([*history, {"role": "user", "content": "something new"}]))
    assert encoded == ["user\nsomething new"]
    encoded.clear()
    tokens(encoder, chat(history))
    assert encoded == []


def test_a_piece_that_one_group_has_sent_is_new_to_every_other(encoder, encoded):
    """Else the time that encoding takes would tell a tenant what another has sent."""
    secret = said("a secret of acme")
    friends = tenant("a", "group:friends"), tenant("b", "group:friends")
    first = tokens(encoder, chat(secret))
    for asks, anew in (
        (ACME, False),
        (tenant("globex"), True),
        (friends[0], True),
        (friends[1], False),
    ):
        encoded.clear()
        assert tokens(encoder, chat(secret), asks) == first
        assert bool(encoded) is anew


def test_what_is_remembered_is_bounded_and_is_no_text(checkpoint, executor):
    encoder = TokenizerEncoder.from_directory(checkpoint, EncoderThreads(executor), 1, memory_bytes_max=5000)
    for number in range(200):
        tokens(encoder, chat(said(f"a secret question number {number}")))
    assert encoder._pieces.bytes <= 5000
    assert len(encoder._pieces.entries) < 30
    assert not any(b"secret" in key for key in encoder._pieces.entries)


def test_completions_are_the_text_with_special_tokens_or_the_ids_as_given(encoder, reference):
    assert tokens(encoder, complete("hello world")) == [reference("hello world").input_ids]
    assert tokens(encoder, complete(["a", "b"])) == [reference("a").input_ids, reference("b").input_ids]
    assert tokens(encoder, complete([5, 6, 7])) == [[5, 6, 7]]


TEMPLATE = """{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if documents %}{{ documents | tojson }}{% endif -%}
{%- if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif -%}
{%- if reasoning_effort is defined %}[effort {{ reasoning_effort }}]{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def talkative(encoder, reference, monkeypatch):
    """An encoder, and its reference, of which the template reads everything."""
    encoder._template = ChatTemplate({"default": TEMPLATE}, {})
    monkeypatch.setattr(reference, "chat_template", TEMPLATE)
    return encoder


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"tools": TOOLS}, {"tools": TOOLS}),
        ({"tools": []}, {}),
        ({"tools": None}, {}),
        ({"tools": TOOLS, "tool_choice": "auto"}, {"tools": TOOLS}),
        ({"documents": [{"text": "d"}]}, {"documents": [{"text": "d"}]}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"continue_final_message": False}, {}),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"chat_template_kwargs": {}}, {}),
        ({"chat_template_kwargs": None}, {}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            {"reasoning_effort": "high"},
        ),
    ],
)
def test_what_a_template_reads_is_in_the_tokens(talkative, reference, fields, variables):
    messages = said("be brief", "one", "two")
    plain = tokens(talkative, chat(messages))
    assert tokens(talkative, chat(messages, **fields)) == [expected(reference, messages, **variables)]
    assert tokens(talkative, chat(messages)) == plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"tools":{}', "tools"),
        (b'"tools":[1e999]', "tools"),
        (b'"documents":"d"', "documents"),
        (b'"reasoning_effort":5', "reasoning_effort"),
        (b'"chat_template_kwargs":[]', "chat_template_kwargs"),
        (b'"chat_template_kwargs":"x"', "chat_template_kwargs"),
        (b'"chat_template_kwargs":{"a":1e999}', "chat_template_kwargs"),
        (b'"chat_template_kwargs":{"tools":5}', "chat_template_kwargs"),
        (b'"continue_final_message":true', "continue_final_message"),
    ],
)
def test_a_field_for_the_template_that_makes_no_sense_is_named(talkative, fields, param):
    body = b'{"model":"m","messages":[{"role":"user","content":""}],' + fields + b"}"
    with pytest.raises(BadRequest) as refusal:
        tokens(talkative, decode_openai_request(Surface.CHAT, body))
    assert refusal.value.param == param


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
        tokenizer,
        TokenizerEncoder.from_directory(checkpoint, EncoderThreads(executor), 1, 2**20)._template,
        EncoderThreads(executor),
        1,
        2**20,
    )
    request = chat(said("a", "b"))
    text = reference.apply_chat_template(said("a", "b"), add_generation_prompt=True, tokenize=False)
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens(encoder, request) == [whole]


def test_a_message_that_the_template_refuses_is_the_clients_mistake(encoder):
    with pytest.raises(BadRequest) as refusal:
        tokens(encoder, chat([{"role": "user", "content": 5}]))
    assert refusal.value.param == "messages"


async def test_a_long_prompt_does_not_hold_up_the_loop(encoder, monkeypatch):
    gate, run = LoopGate(), encoder._threads.run
    monkeypatch.setattr(
        encoder._threads,
        "run",
        lambda tenant, characters, work: run(tenant, characters, lambda: (gate(), work())[1]),
    )
    long = complete("many words in a row " * 20_000)
    await asyncio.gather(encoder.encode(long, ACME, None), gate.open())


def blocks(encoder, request, size=64):
    text = asyncio.run(encoder.encode(request, ACME, None))[0].text
    return [text[at : at + size] for at in range(0, len(text) - size + 1, size)]


def test_without_a_tokenizer_longer_conversations_begin_with_shorter_ones():
    short = blocks(TextEncoder(), chat(said("be brief " * 20, "one " * 20)))
    longer = blocks(TextEncoder(), chat(said("be brief " * 20, "one " * 20, "two " * 20)))
    assert longer[: len(short) - 1] == short[:-1]


def test_without_a_tokenizer_spelling_of_json_does_not_matter_but_tools_do():
    plain = blocks(TextEncoder(), chat(said("x" * 100)))
    spaced = decode_openai_request(
        Surface.CHAT, b'{ "model": "m", "messages": [ {"content": "%s", "role": "system"} ] }' % (b"x" * 100)
    )
    assert blocks(TextEncoder(), spaced) == plain
    assert blocks(TextEncoder(), chat(said("x" * 100), tools=[{"type": "function"}])) != plain


def hashes(request):
    namespace = Namespace(model="m", block_size=16, group="g")
    (prompt,) = asyncio.run(TextEncoder().encode(request, ACME, None))
    return list(prompt.hashes(hasher_for(namespace, b"secret")))


LONG = "one and the other " * 30
AS_JSON = json.dumps([{"content": LONG, "role": "system"}], separators=(",", ":"))
DIFFERENT = [
    chat(said(LONG)),
    chat(said(LONG), tools=[{"type": "function"}]),
    chat(said(LONG), documents=[{"type": "function"}]),
    chat(said(LONG), reasoning_effort="low"),
    chat(said(LONG), chat_template_kwargs={"enable_thinking": False}),
    complete(AS_JSON),
    complete(list(memoryview(AS_JSON[: len(AS_JSON) // 4 * 4].encode()).cast("I"))),
]


def test_without_a_tokenizer_prompts_that_differ_have_no_hash_in_common():
    every = [block for request in DIFFERENT for block in hashes(request)]
    assert len(every) > 7 * len(DIFFERENT)
    assert len(set(every)) == len(every)


def test_without_a_tokenizer_four_bytes_are_a_token():
    prompt = asyncio.run(TextEncoder().encode(complete("12345"), ACME, None))[0]
    assert prompt.token_count == 2
    assert asyncio.run(TextEncoder().encode(complete([1, 2, 3]), ACME, None))[0].token_count == 3


def test_a_broken_tokenizer_file_is_reported(tmp_path, executor):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be read"):
        TokenizerEncoder.from_directory(tmp_path, EncoderThreads(executor), 1, 2**20)


def byte_level(*, normalizer=None, pre_tokenizer=None, added=(), vocab=()):
    tokenizer = Tokenizer(
        models.BPE({c: n for n, c in enumerate([*pre_tokenizers.ByteLevel.alphabet(), *vocab])}, [])
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(added))
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "most"),
    [
        (byte_level(), 1),
        (byte_level(vocab=["ĠĠĠĠ"]), 4),
        (byte_level(added=["<|漢|>"]), 7),
        (byte_level(vocab=["ĠĠ"], normalizer=normalizers.NFC()), 8),
        (byte_level(normalizer=normalizers.Lowercase()), None),
        (byte_level(normalizer=normalizers.Replace(" ", "")), None),
        (byte_level(normalizer=normalizers.Replace(Regex(" +"), " ")), None),
        (byte_level(added=[AddedToken("<mask>", lstrip=True)]), None),
        (byte_level(pre_tokenizer=pre_tokenizers.Whitespace()), None),
        (
            byte_level(
                pre_tokenizer=pre_tokenizers.Sequence(
                    [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
                )
            ),
            None,
        ),
        (Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), None),
        (Tokenizer(models.BPE({"a": 0}, [])), None),
        (Tokenizer(models.BPE({f"<0x{b:02X}>": b for b in range(256)}, [], byte_fallback=True)), 6),
    ],
)
def test_how_many_bytes_one_token_can_stand_for(tokenizer, most):
    assert token_bytes_max(tokenizer) == most


@given(text=st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_text_has_fewer_tokens_than_the_bound_by_its_bytes(encoder, text):
    (got,) = tokens(encoder, complete(text.encode("utf-8", "replace").decode()))
    assert len(text.encode("utf-8", "replace")) <= len(got) * encoder._token_bytes_max


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(encoder, encoded):
    fits = "x" * encoder._token_bytes_max * 99
    for request in (complete(fits + "x"), complete(["a", fits + "x"]), chat(said(fits + "x"))):
        with pytest.raises(PromptTooLong, match=r"at least 10[12]"):
            tokens(encoder, request, length_max=100)
    assert encoded == []
    tokens(encoder, complete(fits), length_max=100)
    tokens(encoder, complete(fits + "x" * 1000), length_max=None)


class Hand:
    """Work for a thread that ends when the test says so."""

    def __init__(self):
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.end.wait(60)
        return self


async def begun(hand):
    async with asyncio.timeout(60):
        while not hand.begun.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield EncoderThreads(pool)


async def test_a_tenant_holds_one_thread_and_another_one_finds_the_other_free(threads):
    hands = [Hand() for _ in range(3)]
    big = [asyncio.create_task(threads.run("acme", 100, hand)) for hand in hands]
    await begun(hands[0])
    assert await asyncio.wait_for(threads.run("globex", 100, lambda: "small"), 60) == "small"
    assert not hands[1].begun.is_set()
    for hand in hands:
        await begun(hand)
        hand.end.set()
    assert await asyncio.gather(*big) == hands
    assert threads._waiting == {}


async def test_a_request_that_leaves_while_it_waits_for_a_thread_frees_its_place(threads):
    first, gone, last = Hand(), Hand(), Hand()
    tasks = [asyncio.create_task(threads.run("acme", 100, hand)) for hand in (first, gone, last)]
    await begun(first)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    first.end.set()
    await begun(last)
    last.end.set()
    assert await tasks[2] is last
    assert not gone.begun.is_set()


async def test_a_request_that_leaves_while_its_thread_runs_holds_it_until_it_is_done(threads):
    first, second = Hand(), Hand()
    leaver = asyncio.create_task(threads.run("acme", 100, first))
    await begun(first)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    task = asyncio.create_task(threads.run("acme", 100, second))
    await asyncio.sleep(0.02)
    assert not second.begun.is_set()
    first.end.set()
    await begun(second)
    second.end.set()
    assert await task is second
    assert threads._waiting == {}


async def test_long_prompts_of_one_tenant_that_may_wait_are_bounded(threads, monkeypatch):
    monkeypatch.setattr(encoder_threads, "WAITING_MIN", 2)
    monkeypatch.setattr(encoder_threads, "WAITING_CHARACTERS_MAX", 299)
    hands = [Hand() for _ in range(3)]
    tasks = [asyncio.create_task(threads.run("acme", 100, hand)) for hand in hands]
    await begun(hands[0])
    with pytest.raises(TenantQueueFull):
        await threads.run("acme", 100, Hand())
    for hand in hands:
        hand.end.set()
    await asyncio.gather(*tasks)


async def test_a_stampede_of_one_tenants_long_prompts_is_encoded_whole(encoder):
    prompts = [f"{number} " + "a b c d " * 1000 for number in range(64)]
    found = await asyncio.gather(*(encoder.encode(complete([each]), ACME, None) for each in prompts))
    assert [len(each) for each in found] == [1] * 64


async def test_many_prompts_in_one_request_are_no_work_for_the_loop(encoder, threads):
    encoder._threads = threads
    turns = []
    run = threads.run
    threads.run = lambda of, long, work: (turns.append(of), run(of, long, work))[1]
    got = await encoder.encode(complete([f"prompt {n} " * 100 for n in range(50)]), ACME, None)
    assert len(got) == 50
    assert turns == ["acme"]
