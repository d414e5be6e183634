"""Very long texts are encoded in pieces, and the tokens are those of the whole."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from gateway.tokenization import piecewise_encoder
from gateway.tokenization.piecewise_encoder import EncodingFailed, PiecewiseEncoder, TooManyTokens

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
WORDS = [
    "word",
    "One",
    " ",
    "  ",
    "\n",
    "\n\n",
    "3",
    ".",
    ", ",
    "(x)",
    "it's",
    "漢字",
    "。",
    "한국어",
    "Ω",
    "\t",
]


def tokenizer(pattern=QWEN):
    """Return a byte-level tokenizer with merges of blanks, and of letters with what stands before them."""
    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ" * n, "Ġ" * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    merges += [
        ("Ġ", "w"),
        ("w", "o"),
        ("r", "d"),
        ("wo", "rd"),
        ("d", "."),
        ("Ċ", "O"),
        ("Ġ", "O"),
        ("n", "e"),
    ]
    for pair in merges:
        vocab.setdefault("".join(pair), len(vocab))
    found = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = [pre_tokenizers.Split(Regex(pattern), behavior="isolated")] if pattern else []
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return found


def encode(encoder, texts, tokens_max=10**9, *, together=True):
    found = encoder.encode(texts, special=False, tokens_max=tokens_max, together=together)
    return [tokens.tolist() for tokens in found]


@given(words=st.lists(st.sampled_from(WORDS), max_size=80), size=st.integers(1, 20))
def test_the_tokens_of_the_pieces_are_those_of_the_whole(words, size):
    whole, text = tokenizer(), "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecewise_encoder, "PIECE_CHARACTERS", size)
        patch.setattr(piecewise_encoder, "COUNTED_CHARACTERS", size)
        found = encode(PiecewiseEncoder(whole), [text, "word", text])
    expected = whole.encode(text, add_special_tokens=False).ids
    assert found == [expected, whole.encode("word", add_special_tokens=False).ids, expected]


def test_a_tokenizer_whose_tokens_reach_over_the_ends_of_words_gets_whole_texts(monkeypatch):
    """It has tokens that begin in one word and end in the next, so that a text cannot be cut there."""
    monkeypatch.setattr(piecewise_encoder, "PIECE_CHARACTERS", 10)
    whole = tokenizer(pattern=None)
    text = "".join(random.Random(1).choices(WORDS, k=500))
    assert encode(PiecewiseEncoder(whole), [text]) == [whole.encode(text, add_special_tokens=False).ids]


def test_a_prompt_of_several_texts_is_counted_as_one_where_it_is_one():
    encoder, texts = PiecewiseEncoder(tokenizer()), ["3" * 300_000, "4" * 300_000, "5" * 300_000]
    with pytest.raises(TooManyTokens) as refused:
        encode(encoder, texts, 500_000)
    assert refused.value.at_least == 600_000
    assert list(map(len, encode(encoder, texts, 500_000, together=False))) == [300_000] * 3


def test_a_panic_of_the_tokenizer_is_an_error():
    """Its regular expressions give up at so many blanks."""
    with pytest.raises(EncodingFailed):
        encode(PiecewiseEncoder(tokenizer()), [" " * 10_000_000])
