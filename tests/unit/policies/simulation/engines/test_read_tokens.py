"""Prompt tokens that streams read, held to a plain count of the distinct blocks of all of them."""

from array import array
from random import Random

import pytest

from policies.simulation.engines.read_tokens import ReadTokens
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.workloads import blocks_of


def request(random):
    """Return a prompt that shares its first segments with some of the others."""
    segments = [
        (f"{depth} {random.randrange(3)}", 700 + 300 * depth) for depth in range(random.randint(1, 4))
    ]
    tokens = sum(length for _, length in segments)
    blocks = blocks_of(segments)
    return TraceRequest(at=0.0, prompt_tokens=tokens, output_tokens=2, blocks=array("Q", blocks))


def distinct_tokens(streams):
    """Return the tokens of all blocks, each of them once."""
    tokens = {
        block: min(BLOCK_TOKENS, stream.prompt_tokens - at * BLOCK_TOKENS)
        for stream in streams
        for at, block in enumerate(stream.blocks)
    }
    return sum(tokens.values())


@pytest.mark.parametrize("seed", range(5))
def test_a_block_that_several_streams_read_counts_once_until_the_last_of_them_ends(seed):
    random, read, streams, tokens = Random(seed), ReadTokens(), {}, 0
    for number in range(120):
        if streams and random.random() < 0.45:
            ended = random.choice(list(streams))
            tokens -= read.end(ended, streams.pop(ended))
        else:
            streams[number] = request(random)
            tokens += read.begin(number, streams[number])
        assert tokens == distinct_tokens(streams.values())
