"""Feedback: reported cached tokens against the index, and the confidence in a worker's entries."""

from array import array

import pytest

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.kv_index.feedback import Feedback
from gateway.kv_index.match_confidence import DOUBTED_CONFIDENCE, MatchConfidence
from radix_cache.local_index import LocalIndex
from radix_cache.match import KnownMatch, WorkerId
from radix_cache.namespace import Namespace

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=4)


class Here:
    """Feedback over an index in the process."""

    def __init__(self):
        now = 0.0
        self.index = LocalIndex(lambda: now, blocks_max=1000, predicted_seconds=10, idle_seconds_max=1000)
        self.credits = MatchConfidence()
        self.raised = []
        self.feedback = Feedback(
            self.index, self.credits, lambda _, hashes, worker: self.raised.append(len(hashes))
        )

    def send(self, prompt, writer="r"):
        expected = self.feedback.request_sent(W, prompt)
        self.index.record(SPACE, prompt.hashes, W, writer)
        return expected

    def end(self, expected, cached_tokens, writer="r"):
        self.index.confirm(SPACE, expected.prompt.hashes, W)
        self.feedback.cache_reported(expected, writer, cached_tokens)
        self.feedback.request_ended(expected)
        self.index.withdraw(W, writer)

    def held(self, *blocks):
        return self.index.match(SPACE, array("Q", blocks)).confirmed.get(W, 0)


def prompt(*blocks, tokens=None):
    return PromptBlocks(
        namespace=SPACE,
        exact=True,
        hashes=array("Q", blocks),
        prompt_tokens=4 * len(blocks) + 1 if tokens is None else tokens,
    )


@pytest.fixture
def here():
    made = Here()
    made.index.confirm(SPACE, array("Q", [1, 2, 3, 4]), W)
    made.index.confirm(SPACE, array("Q", [1, 2, 8, 9]), W)
    return made


def test_what_was_beyond_the_report_is_cut(here):
    here.end(here.send(prompt(1, 2, 3, 4)), 4)
    assert here.held(1, 2, 8, 9) == 2
    assert here.held(1, 2, 3, 4) == 4


@pytest.mark.parametrize("cached_tokens", [None, 16, 17])
def test_no_report_and_a_report_of_all_of_it_cut_nothing(here, cached_tokens):
    here.end(here.send(prompt(1, 2, 3, 4)), cached_tokens)
    assert here.held(1, 2, 8, 9) == 4
    assert here.raised == []


def test_the_last_token_is_always_computed_and_its_block_changes_nothing(here):
    here.end(here.send(prompt(1, 2, 3, 4, tokens=16)), 12)
    assert here.held(1, 2, 8, 9) == 4


def test_zero_is_a_report(here):
    here.end(here.send(prompt(1, 2, 3, 4)), 0)
    assert here.held(1, 2, 8, 9) == 2  # They are held by the answered request alone.


def test_a_report_above_the_known_cached_tokens_is_an_observation(here):
    here.end(here.send(prompt(1, 2, 8, 9, 10, 11)), 23)
    assert here.raised == [5]


def test_nothing_is_cut_while_another_request_is_on_its_way_along_that_path(here):
    other = here.send(prompt(1, 7), "other")
    here.end(here.send(prompt(1, 2, 3, 4)), 4)
    assert here.held(1, 2, 8, 9) == 4
    here.end(other, 4, "other")
    # Nor by the one that was there first: the other has come by since.
    assert here.held(1, 2, 8, 9) == 4
    here.end(here.send(prompt(1, 2, 3, 4)), 4)
    assert here.held(1, 2, 8, 9) == 2


def test_nothing_is_cut_after_another_gateways_request_was_on_its_way_there(here):
    here.index.record(SPACE, array("Q", [1, 2, 3]), W, "elsewhere")
    here.end(here.send(prompt(1, 2, 3, 4)), 4)
    assert here.held(1, 2, 8, 9) == 4


def test_tokens_of_several_prompts_are_no_measure_of_the_first(here):
    here.end(here.send(prompt(1, 2, 3, 4, tokens=100)), 0)
    assert here.held(1, 2, 8, 9) == 4


def test_a_prompt_without_a_block_changes_nothing(here):
    here.end(here.send(prompt(tokens=3)), 0)
    assert here.held(1, 2, 3, 4) == 4


def test_of_a_hybrid_model_feedback_moves_the_credit_and_never_the_count(here):
    here.credits.update(W, losses=None, hybrid=True)
    for _ in range(20):
        here.end(here.send(prompt(1, 2, 3, 4)), 4)
    assert here.held(1, 2, 8, 9) == 4
    assert here.credits.of(W) == pytest.approx(0.25, abs=0.01)
    match = here.index.match(SPACE, array("Q", [1, 2, 3, 4]))
    assert here.feedback.trusted_blocks(match, W) == 1


def test_routing_counts_on_a_share_of_what_is_known_and_on_all_that_is_on_its_way(here):
    here.credits.update(W, losses=1, hybrid=False)
    assert here.feedback.trusted_blocks(KnownMatch(confirmed={W: 9}), W) == int(9 * DOUBTED_CONFIDENCE)
    assert here.feedback.trusted_blocks(KnownMatch(confirmed={W: 9}, pending={W: 8}), W) == 8
    assert here.feedback.trusted_blocks(KnownMatch(confirmed={W: 9}), WorkerId("v")) == 0
