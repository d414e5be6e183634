"""Structured output: answers keep to their grammar, and compilation is bounded."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.engine.engine import Engine
from workers.engine.errors import QueueFull, RequestRefused
from workers.engine.grammar import compiler as compiler_module
from workers.engine.grammar.compiler import GrammarCompiler, GrammarsUnavailable
from workers.engine.grammar.grammar import GRAMMAR_CHARS_MAX, Grammar, GrammarKind
from workers.engine.grammar.matcher import Matcher, mask_words, masks_along
from workers.engine.grammar.queue import CompileQueue
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.tokenization.tokenizer import Tokenizer

EOS = frozenset({0, 2})
VOCAB = 520

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["calm", "tired", None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "maxItems": 2},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "mood", "tags", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 5},
                "at": {"type": "string", "format": "date"},
            },
            "required": ["city", "at"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "integer", "minimum": -5, "maximum": 1000},
    {"enum": ["", "ä🦊", 'quo"te', 3.5, {"a": [1]}]},
]


def schema(value: Any) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(value))


def regex(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=text)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer(checkpoint("llama-gqa"))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(tokenizer.to_json, VOCAB, EOS)
    yield made
    made.close()


def allowed(mask: torch.Tensor) -> set[int]:
    bits = (mask[:, None] >> torch.arange(32)) & 1
    return set(bits.flatten().nonzero().flatten().tolist())


def asked(engine: Engine, grammar: Grammar, name: str = "a", **params: Any) -> Request:
    return Request(
        id=name,
        prompt=[5, 6, 7, 8],
        params=SamplingParams(**{"max_tokens": 400, **params}),
        matcher=engine.grammars.compile(grammar),
    )


# Answers


@pytest.mark.parametrize("value", SCHEMAS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_an_answer_that_stopped_is_valid_json_of_its_schema(
    load: Callable[..., Engine], finish: Callable[..., Any], value: Any, temperature: float
) -> None:
    engine = load()
    requests = [
        asked(engine, schema(value), str(seed), seed=seed, temperature=temperature)
        for seed in range(1 if temperature == 0 else 8)
    ]
    answers = finish(engine, requests)
    engine.grammars.close()
    assert temperature == 0 or any(answer.finish == "stop" for answer in answers.values())
    for answer in answers.values():
        if answer.finish == "stop":
            jsonschema.validate(json.loads(answer.text), value)
        else:
            assert answer.finish == "length"


def test_an_answer_that_was_cut_by_length_has_that_reason_and_is_a_beginning(
    load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    engine = load()
    whole = finish(engine, [asked(engine, schema(PERSON), temperature=9.0, seed=3)])["a"]
    short = finish(engine, [asked(engine, schema(PERSON), temperature=9.0, seed=3, max_tokens=7)])["a"]
    engine.grammars.close()
    assert (short.finish, len(short.tokens)) == ("length", 7)
    assert whole.tokens[:7] == short.tokens


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_complete_grammar_ends_the_answer_without_an_end_token(
    load: Callable[..., Engine], finish: Callable[..., Any], ignore_eos: bool
) -> None:
    engine = load()
    answer = finish(engine, [asked(engine, regex("yes|no"), ignore_eos=ignore_eos, min_tokens=300)])["a"]
    engine.grammars.close()
    assert (answer.finish, answer.text in ("yes", "no")) == ("stop", True)


def test_grammars_in_a_batch_are_kept_apart_and_do_not_touch_the_others(
    load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    engine = load(running_max=6)
    free = [
        Request(
            id=f"free{n}", prompt=[9, n, 4], params=SamplingParams(max_tokens=12, seed=n, temperature=2.0)
        )
        for n in range(3)
    ]
    alone = {request.id: finish(engine, [request])[request.id].tokens for request in free}
    digits, letters = regex("[0-9]{5}"), regex("[a-z]{5}")
    mixed = finish(
        engine,
        [
            free[0],
            asked(engine, digits, "digits", temperature=8.0),
            free[1],
            asked(engine, letters, "letters", temperature=8.0),
            free[2],
        ],
    )
    engine.grammars.close()
    assert re.fullmatch("[0-9]{5}", mixed["digits"].text)
    assert re.fullmatch("[a-z]{5}", mixed["letters"].text)
    assert alone == {request.id: mixed[request.id].tokens for request in free}


def test_a_preempted_answer_goes_on_in_its_grammar(
    load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    settings = {"temperature": 30.0, "max_tokens": 60}
    roomy, tight = load(), load(kv_tokens=96, block_size=4)
    answers = []
    for engine in (roomy, tight):
        requests = [asked(engine, schema(PERSON), str(seed), seed=seed, **settings) for seed in range(6)]
        answers.append({name: answer.text for name, answer in finish(engine, requests).items()})
        engine.grammars.close()
    assert answers[0] == answers[1]


def test_a_grammar_that_fails_in_the_middle_aborts_its_answer_alone(
    load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    class Failing:
        vocab_size, done = 512, False
        left = 3

        def mask(self, row: torch.Tensor) -> None:
            row.fill_(-1 if self.left else 0)

        def advance(self, tokens: tuple[int, ...]) -> int:
            if not self.left:
                return 0
            self.left -= 1
            return 1

        def rollback(self, count: int) -> None:
            self.left += count

    engine = load()
    failing = Request(
        id="a", prompt=[5], params=SamplingParams(max_tokens=9, ignore_eos=True), matcher=Failing()
    )
    other = Request(id="b", prompt=[5], params=SamplingParams(max_tokens=9, ignore_eos=True))
    answers = finish(engine, [failing, other])
    assert (answers["a"].finish, len(answers["a"].tokens)) == ("abort", 3)
    assert (answers["b"].finish, len(answers["b"].tokens)) == ("length", 9)


# The matcher


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_walk_forth_and_back_ends_where_a_straight_one_does(data: st.DataObject, compiler: Any) -> None:
    grammar = schema(data.draw(st.sampled_from(SCHEMAS)))
    walked, path = compiler.compile(grammar), []
    mask = torch.zeros(mask_words(VOCAB), dtype=torch.int32)
    for _ in range(data.draw(st.integers(1, 12))):
        walked.mask(mask)
        possible = sorted(allowed(mask))
        ahead = data.draw(st.lists(st.sampled_from(possible), max_size=2)) if possible else []
        taken = walked.advance(ahead)
        keep = data.draw(st.integers(0, taken))
        walked.rollback(taken - keep)
        path += ahead[:keep]
    straight = compiler.compile(grammar)
    assert straight.advance(path) == len(path)
    other = torch.zeros_like(mask)
    walked.mask(mask)
    straight.mask(other)
    assert torch.equal(mask, other)
    assert walked.done == straight.done


def test_a_mask_stands_before_each_draft_and_behind_the_last(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    a, b, c = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abc")
    matcher = compiler.compile(regex("abc?"))
    masks, valid = masks_along(matcher, [a, b, c])
    assert valid == 3
    first, second, third, fourth = map(allowed, masks)
    assert (a in first, b in first) == (True, False)
    assert b in second
    assert {c, *EOS} == third
    assert fourth <= EOS
    # Nothing has happened.
    assert torch.equal(masks_along(matcher)[0][0], masks[0])


def test_what_follows_a_draft_that_is_ruled_out_repeats_the_mask_that_rules_it_out(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    a, b, c = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abc")
    masks, valid = masks_along(compiler.compile(regex("abc")), [a, c, b])
    assert valid == 1
    assert torch.equal(masks[1], masks[2])
    assert torch.equal(masks[1], masks[3])
    assert c not in allowed(masks[1])


def test_an_end_may_come_only_where_the_grammar_may_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile(regex("[0-9]+;"))
    assert not EOS & allowed(masks_along(matcher)[0][0])
    matcher.advance(tokenizer.encode("7", add_special_tokens=False))
    assert not EOS & allowed(masks_along(matcher)[0][0])
    assert (matcher.advance([2]), matcher.done) == (0, False)
    matcher.advance(tokenizer.encode(";", add_special_tokens=False))
    assert matcher.done


def test_no_token_behind_the_vocabulary_is_ever_allowed(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(regex("(.|\n)*"))
    assert max(allowed(masks_along(matcher)[0][0])) < 512


# Compiling


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (schema({"type": "nothing"}), "nothing"),
        (schema({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, text="{"), ""),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"items":' * 5000 + "{}" + "}" * 5000), ""),
        (regex("a(?=b)"), "look-ahead"),
        (regex("a{5,2}"), ""),
        (regex("(" * 60_000), ""),
        (regex("\ud800"), ""),
        (regex("[^\\x00-\\U0010ffff]"), ""),
        (schema({"$ref": "#"}), "no text matches it"),
        (Grammar(kind=GrammarKind.GRAMMAR, text="root ::= root"), "no text matches it"),
        (Grammar(kind=GrammarKind.GRAMMAR, text='start: "a" missing'), "missing"),
        (Grammar(kind=GrammarKind.GRAMMAR, text="root ::= ((("), ""),
        (regex("a" * (GRAMMAR_CHARS_MAX + 1)), "characters"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)
def test_a_bad_grammar_is_refused_with_the_reason(
    compiler: GrammarCompiler, grammar: Grammar, told: str
) -> None:
    for _ in range(2):
        with pytest.raises(RequestRefused) as refused:
            compiler.compile(grammar)
        assert told in str(refused.value)
        assert refused.value.code == "invalid_grammar"


@pytest.mark.parametrize("text", ['start: "a" B\nB: /[0-9]/', 'root ::= "a" digit\ndigit ::= [0-9]'])
def test_grammars_are_read_in_both_notations(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    matcher = compiler.compile(Grammar(kind=GrammarKind.GRAMMAR, text=text))
    assert matcher.advance(tokenizer.encode("a", add_special_tokens=False)) == 1
    assert allowed(masks_along(matcher)[0][0]) == {
        tokenizer.encode(digit, add_special_tokens=False)[0] for digit in "0123456789"
    }


ENDLESS = schema({"allOf": [{"type": "string", "pattern": f"^.*{n}.*$"} for n in range(200)]})
"""Six kilobytes that llguidance was still reading after ten minutes."""


def _compiled_at_last(compiler: GrammarCompiler) -> Matcher:
    """Compile a small grammar; on a busy machine the new process alone may take longer than the compiler allows."""
    for length in range(1, 20):
        with suppress(RequestRefused):
            return compiler.compile(regex("a" * length))
    return compiler.compile(regex("b"))


def test_a_grammar_that_takes_for_ever_is_given_up_and_the_next_one_is_compiled(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_json, VOCAB, EOS, seconds_max=1.0)
    try:
        with pytest.raises(RequestRefused, match="longer than 1 seconds"):
            compiler.compile(ENDLESS)
        assert _compiled_at_last(compiler).done is False
        # It is remembered, so it costs no second second.
        with pytest.raises(RequestRefused, match="longer than 1 seconds"):
            compiler.cached(ENDLESS)
    finally:
        compiler.close()


def test_closing_ends_a_compilation_that_is_running(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_json, VOCAB, EOS, seconds_max=60.0)
    refused: list[RequestRefused] = []

    def compile_it() -> None:
        try:
            compiler.compile(ENDLESS)
        except RequestRefused as err:
            refused.append(err)

    thread = threading.Thread(target=compile_it)
    thread.start()
    while compiler._check_process._process is None:
        pass
    compiler.close()
    thread.join(20)
    assert not thread.is_alive()
    assert len(refused) == 1


def test_a_grammar_is_compiled_once_and_the_oldest_one_is_forgotten(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_json, VOCAB, EOS, cached_max=2)
    try:
        for text in ("a", "b", "a", "c", "a"):
            compiler.compile(regex(text))
        assert compiler.compiled == 3
        assert compiler.seconds > 0
        assert compiler.cached(regex("b")) is None
        assert compiler.cached(regex("a")) is not None
    finally:
        compiler.close()


def test_what_is_kept_is_bounded_by_its_text_too(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "CACHED_CHARS_MAX", 100)
    compiler = GrammarCompiler(tokenizer.to_json, VOCAB, EOS)
    try:
        for letter in "abc":
            compiler.compile(regex(letter * 40))
        assert [compiler.cached(regex(letter * 40)) is not None for letter in "abc"] == [False, True, True]
        # One that is too large for all of the cache is used, and not kept.
        assert compiler.compile(regex("d" * 101)).done is False
        assert compiler.cached(regex("d" * 101)) is None
    finally:
        compiler.close()


def test_a_tokenizer_that_the_library_cannot_read_refuses_grammars() -> None:
    compiler = GrammarCompiler(lambda: "{}", VOCAB, EOS)
    try:
        with pytest.raises(RequestRefused, match="tokenizer"):
            compiler.compile(regex("a"))
    finally:
        compiler.close()


def test_answers_to_one_grammar_stand_at_places_of_their_own(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    first, second = compiler.compile(regex("abc")), compiler.compile(regex("abc"))
    first.advance(tokenizer.encode("a", add_special_tokens=False))
    assert not torch.equal(masks_along(first)[0], masks_along(second)[0])


def test_without_the_library_a_grammar_is_refused_and_nothing_else(
    load: Callable[..., Engine], finish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module.guidance, "is_installed", lambda: False)
    engine = load()
    with pytest.raises(GrammarsUnavailable) as refused:
        engine.grammars.compile(regex("a"))
    assert refused.value.code == "unsupported_parameter"
    answer = finish(engine, [Request(id="a", prompt=[5], params=SamplingParams(max_tokens=2))])["a"]
    assert answer.tokens


async def test_only_so_many_grammars_wait(tokenizer: Tokenizer) -> None:
    queue = CompileQueue(GrammarCompiler(tokenizer.to_json, VOCAB, EOS, seconds_max=60.0), waiting_max=1)
    endless = asyncio.ensure_future(queue.matcher(ENDLESS))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await queue.matcher(regex("b"))
    queue.close()
    with pytest.raises((RequestRefused, asyncio.CancelledError)):
        await endless


@pytest.mark.parametrize(
    ("pattern", "text", "allowed"),
    [
        (r"^\d$", "7", True),
        (r"^\d$", "٣", False),
        (r"^[\d.]{1,3}$", "1.5", True),
        (r"^[\d.]{1,3}$", "1٣", False),
        (r"^\w$", "a", True),
        (r"^\w$", "é", False),
        (r"^[^\d]$", "٣", True),
        (r"^[x\D]$", "٣", True),
        (r"^[x\D]$", "7", False),
    ],
)
def test_digits_and_words_are_those_of_ascii_in_schemas_and_regular_expressions(
    tokenizer: Tokenizer, compiler: GrammarCompiler, pattern: str, text: str, allowed: bool
) -> None:
    of_schema = compiler.compile(schema({"type": "string", "pattern": pattern}))
    of_regex = compiler.compile(regex(pattern.removeprefix("^").removesuffix("$")))
    for matcher, written in ((of_schema, f'"{text}"'), (of_regex, text)):
        tokens = tokenizer.encode(written, add_special_tokens=False)
        assert (matcher.advance(tokens) == len(tokens)) == allowed


def test_dates_have_the_digits_of_ascii(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(schema({"type": "string", "format": "date"}))
    tokens = tokenizer.encode('"٢٠٢٤-٠١-٠١"', add_special_tokens=False)
    assert matcher.advance(tokens) < len(tokens)
