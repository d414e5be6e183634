"""Names of limits: two kinds of limits never share a counter."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.limit import Limit
from policies.admission.limit_windows import Window

PATTERNS = st.lists(st.text("ab/,%()", min_size=1, max_size=6), max_size=3).map(tuple)


KINDS = st.builds(
    Limit,
    unit=st.sampled_from(["requests", "spend"]),
    amount=st.just(1),
    window=st.sampled_from([Window.of("minute"), Window.of("minute", "calendar")]),
    models=PATTERNS,
    mode=st.sampled_from(["enforce", "soft", "shadow"]),
)


@given(KINDS, KINDS)
def test_limits_of_two_kinds_are_never_counted_under_one_name(one, other):
    assert (one.name == other.name) == (one.kind == other.kind)


def test_patterns_with_a_slash_are_not_several():
    several = Limit(unit="requests", amount=1, window=Window.of("day"), models=("meta", "llama"))
    single = Limit(unit="requests", amount=1, window=Window.of("day"), models=("meta/llama",))
    assert (several.name, single.name) == ("requests/day/meta,llama", "requests/day/meta/llama")
