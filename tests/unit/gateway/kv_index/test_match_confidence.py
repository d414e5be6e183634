"""The confidence in the index: how doubt comes, is healed, and is forgotten with its worker."""

from gateway.kv_index.match_confidence import DOUBTED_CONFIDENCE, MatchConfidence
from radix_cache.match import WorkerId

W = WorkerId("w")


def test_doubt_is_healed_by_answers_and_comes_back_with_the_next_loss():
    confidence = MatchConfidence()
    confidence.update(W, losses=1, hybrid=False)
    assert confidence.of(W) == DOUBTED_CONFIDENCE
    for _ in range(15):
        confidence.learn(W, 10, 10)
    assert confidence.of(W) == 1.0
    confidence.update(W, losses=1, hybrid=False)
    assert confidence.of(W) == 1.0
    confidence.update(W, losses=2, hybrid=False)
    assert confidence.of(W) == DOUBTED_CONFIDENCE


def test_doubt_ends_when_all_is_known_again():
    confidence = MatchConfidence()
    confidence.update(W, losses=1, hybrid=False)
    confidence.learn(W, 10, 0)
    assert confidence.of(W) < DOUBTED_CONFIDENCE
    confidence.update(W, losses=None, hybrid=False)
    assert confidence.of(W) == 1.0
    confidence.update(W, losses=1, hybrid=False)
    assert confidence.of(W) == DOUBTED_CONFIDENCE


def test_an_answer_of_which_nothing_was_known_changes_no_confidence():
    confidence = MatchConfidence()
    confidence.update(W, losses=1, hybrid=False)
    confidence.learn(W, 0, 0)
    assert confidence.of(W) == DOUBTED_CONFIDENCE


def test_healed_losses_are_forgotten_with_their_worker():
    confidence = MatchConfidence()
    confidence.update(W, losses=1, hybrid=False)
    for _ in range(15):
        confidence.learn(W, 10, 10)
    confidence.update(W, losses=1, hybrid=False)
    assert confidence.of(W) == 1.0
    confidence.keep_only(())
    confidence.update(W, losses=1, hybrid=False)
    assert confidence.of(W) == DOUBTED_CONFIDENCE, "another worker under the same name has losses of its own"
