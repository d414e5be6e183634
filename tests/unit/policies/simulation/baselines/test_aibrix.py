"""AIBrix's rule: the longest match among workers near the mean load."""

from tests.unit.policies.routing.candidates import best, candidate


def test_aibrix_takes_the_longest_match_within_a_deviation_of_the_mean():
    workers = [
        candidate("a", streams=4, matched=3000),
        candidate("b", streams=3, matched=1000),
        candidate("c", streams=3),
    ]
    assert best("aibrix", workers) == "b"
    assert best("aibrix", [candidate("a", streams=3, matched=3000), *workers[1:]]) == "a"
    assert best("aibrix", [candidate("a", streams=20, matched=3000), *workers[1:]]) in "bc"
