"""Prompts of the load client: texts made from the block ids of a trace."""

from array import array

import pytest

from gateway.bench.trace_prompts import TracePrompts
from policies.simulation.trace import TraceRequest
from workers.engine import tiny_checkpoint


def request(*blocks, prompt_tokens=None, **more):
    tokens = 512 * len(blocks) if prompt_tokens is None else prompt_tokens
    return TraceRequest(at=0.0, prompt_tokens=tokens, output_tokens=1, blocks=array("Q", blocks), **more)


def test_equal_blocks_are_equal_text_and_other_blocks_other_text_from_there_on():
    prompts = TracePrompts()
    one, two = (prompts.text(request(*blocks)).split() for blocks in ((1, 2, 3), (1, 2, 4)))
    assert one[:1024] == two[:1024]
    assert one[1024:] != two[1024:]
    assert one[1024:1034] != two[1024:1034]


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 1024])
def test_a_prompt_has_as_many_words_as_it_should_have_tokens(tokens):
    blocks = range(-(-tokens // 512))
    assert len(TracePrompts().text(request(*blocks, prompt_tokens=tokens)).split()) == tokens


def test_another_seed_gives_another_text():
    assert TracePrompts(seed=1).text(request(1)) != TracePrompts(seed=2).text(request(1))


def test_with_a_tokenizer_lengths_are_true(tmp_path):
    prompts = TracePrompts(tiny_checkpoint.build(tmp_path / "tiny", hidden=16, layers=1, heads=2))
    asked = [request(1, 2, prompt_tokens=900), request(7, prompt_tokens=40)]
    assert prompts.tokens_per_word(asked) == pytest.approx(1.0, abs=0.02)
