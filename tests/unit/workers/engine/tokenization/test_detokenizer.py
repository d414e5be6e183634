"""Text that grows token by token equals the text of the whole: bytes, characters, stop strings."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from workers.engine.errors import CheckpointInvalid
from workers.engine.tokenization.detokenizer import Detokenizer, StopStringMatcher
from workers.engine.tokenization.token_bytes import TokenBytes, is_byte_level
from workers.engine.tokenization.tokenizer import LONG_TEXT_CHARS, Tokenizer

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer(checkpoint("llama-gqa"))


def told(tokenizer: Tokenizer, tokens: list[int], stops: tuple[str, ...] = ()) -> list[str]:
    """The pieces, token by token, and what comes out at the end."""
    transcript = Detokenizer(tokenizer.token_bytes, stops)
    pieces = []
    for token in tokens:
        pieces.append(transcript.push(token))
        if transcript.stop is not None:
            break
    return [*pieces, transcript.end()]


@QUIET
@given(tokens=st.lists(st.integers(0, 520), max_size=40))
def test_random_tokens_joined_are_the_decoded_whole(tokenizer: Tokenizer, tokens: list[int]) -> None:
    # Single bytes are tokens too, so most of these are no valid UTF-8; and ids above 511 do not exist.
    assert tokenizer.decode(tokens) == "".join(told(tokenizer, tokens))


@QUIET
@given(text=st.text(max_size=60))
def test_any_text_comes_back_and_no_piece_is_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = told(tokenizer, tokens)
    assert tokenizer.decode(tokens) == "".join(pieces)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_four_bytes_comes_out_whole_and_once(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a🦊b", add_special_tokens=False)
    assert len(tokens) == 6
    assert told(tokenizer, tokens) == ["a", "", "", "", "🦊", "b", ""]


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert told(tokenizer, [0, 2, *tokenizer.encode("x", add_special_tokens=False)]) == ["", "", "x", ""]


def test_long_texts_get_the_same_tokens_as_short_ones(tokenizer: Tokenizer) -> None:
    word = "The gateway measures the ocean. "
    text = word * (LONG_TEXT_CHARS // len(word) + 2)
    short = tokenizer.encode(word, add_special_tokens=False)
    assert short * text.count(word) == tokenizer.encode(text, add_special_tokens=False)


@cache
def reference(text: str, stops: tuple[str, ...]) -> str:
    """Character by character: cut at the stop string that completes first, at the longest of several."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@QUIET
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_stop_strings_cut_where_the_whole_text_would_be_cut(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopStringMatcher(stops)
    given_out = ""
    for piece in pieces:
        given_out += matcher.push(piece)
        # Nothing that was given out may turn out to be part of a stop string later.
        assert reference("".join(pieces), stops).startswith(given_out)
    met = matcher.met
    given_out += matcher.end()
    assert reference("".join(pieces), stops) == given_out
    assert any(stop in "".join(pieces) for stop in stops) == matcher.stopped
    # It is told which one: what stands behind the text that was given out.
    assert met is None or (met in stops and "".join(pieces).startswith(given_out + met))


def test_the_longest_stop_strings_that_nearly_appear_hold_back_what_may_be_one_and_no_more() -> None:
    stops = ("a" * 255 + "b", *(f"{first}{'a' * 254}c" for first in "cdefghijklmnopqrstuvwxyz"))
    matcher = StopStringMatcher(stops)
    assert matcher.push("a" * 10_000) == "a" * (10_000 - 255)
    assert matcher.push("!") == "a" * 255 + "!"
    assert (matcher.push("a" * 255 + "b"), matcher.stopped, matcher.end()) == ("", True, "")


def test_a_stop_string_across_tokens_is_never_shown_in_part(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one END two", add_special_tokens=False)
    pieces = told(tokenizer, tokens, stops=(" END",))
    assert "".join(pieces) == "one"


def test_what_only_looked_like_a_stop_string_comes_out_later(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one EN two", add_special_tokens=False)
    assert "".join(told(tokenizer, tokens, stops=(" END",))) == "one EN two"
    tokens = tokenizer.encode("one EN", add_special_tokens=False)
    assert "".join(told(tokenizer, tokens, stops=(" END",))) == "one EN"


def test_a_stop_string_may_be_part_of_a_token_or_half_a_multibyte_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("aé🦊z", add_special_tokens=False)
    assert "".join(told(tokenizer, tokens, stops=("🦊",))) == "aé"


METASPACE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def metaspace_tokenizer() -> tokenizers.Tokenizer:
    words = ["<unk>", "▁the", "▁cat", "s", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {word: number for number, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def test_metaspace_tokenizers_are_spelled_too() -> None:
    tokenizer = metaspace_tokenizer()
    assert not is_byte_level(METASPACE)
    table = TokenBytes({i: w for w, i in tokenizer.get_vocab().items()}, frozenset(), byte_level=False)
    tokens = [1, 2, 3, *(5 + byte for byte in "é🦊".encode()), 1]
    transcript = Detokenizer(table, ())
    text = "".join(map(transcript.push, tokens)) + transcript.end()
    assert " the catsé🦊 the" == tokenizer.decode(tokens) == text


@pytest.mark.parametrize("decoder", [None, {}, {"type": "WordPiece"}, {"type": "Sequence", "decoders": []}])
def test_an_unknown_kind_of_tokenizer_is_refused(decoder: dict[str, object] | None) -> None:
    with pytest.raises(CheckpointInvalid):
        is_byte_level(decoder)


def test_a_broken_tokenizer_file_is_refused_clearly(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", json.dumps({"decoder": {"type": "ByteLevel"}})):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json"):
            Tokenizer(tmp_path)


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with a token for each byte and for some words, as Llama 2 has."""
    written = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "é", "🦊"]
    model = models.BPE(
        vocab={token: number for number, token in enumerate(written)},
        merges=[],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(["<unk>", "<s>"])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    directory = tmp_path_factory.mktemp("fallback")
    made.save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


BYTES = 2
"""The id of the token of byte 0."""


@QUIET
@given(tokens=st.lists(st.integers(0, 262) | st.sampled_from([BYTES + 0xC3, BYTES + 0xA9]), max_size=40))
def test_runs_of_fallback_bytes_are_decoded_as_by_the_tokenizer(
    fallback: Tokenizer, tokens: list[int]
) -> None:
    assert fallback.decode(tokens) == "".join(told(fallback, tokens))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"\xc3\xa9", "é"),
        (b"\xc3\xa9\xff", "\ufffd" * 3),
        (b"\xff\xc3\xa9", "\ufffd" * 3),
        (b"\xc3", "\ufffd"),
        (b"ab\xf0\x9f\xa6", "\ufffd" * 5),
        ("🦊".encode(), "🦊"),
    ],
)
def test_a_run_with_one_invalid_byte_has_no_valid_character(
    fallback: Tokenizer, written: bytes, text: str
) -> None:
    tokens = [BYTES + byte for byte in written]
    assert fallback.decode(tokens) == "".join(told(fallback, tokens)) == text


def test_a_special_token_does_not_end_a_run(fallback: Tokenizer) -> None:
    tokens = [BYTES + 0xC3, 1, BYTES + 0xA9]
    assert fallback.decode(tokens) == "".join(told(fallback, tokens)) == "é"


def test_a_long_text_of_bytes_arrives_in_parts_and_whole(fallback: Tokenizer) -> None:
    text = "四季" * 40
    pieces = told(fallback, [BYTES + byte for byte in text.encode()])
    assert "".join(pieces) == text
    assert sum(map(bool, pieces)) > 4
