"""The session policy keeps a conversation at one worker while that is not much dearer."""

from tests.unit.policies.routing.candidates import best, candidate, query


def test_a_session_stays_at_home_until_home_costs_too_much():
    workers = [candidate(name) for name in "abcd"]
    homes = {session: best("session", workers, query(session=session)) for session in range(40)}
    assert set(homes.values()) == set("abcd")
    for session, home in homes.items():
        matched_elsewhere = [
            candidate(n, matched=1500 if n != home else 0) for n in "abcd"
        ]  # 150 ms faster elsewhere
        assert best("session", matched_elsewhere, query(session=session)) == home
        busy = [candidate(n, tokens_queued=5000 if n == home else 0) for n in "abcd"]
        assert best("session", busy, query(session=session)) != home
        assert best("session", busy, query(session=session), patience_ms=1000) == home


def test_without_a_session_the_least_ttft_is_taken():
    workers = [candidate("a", tokens_queued=100), candidate("b", matched=500)]
    assert best("session", workers) == "b"
