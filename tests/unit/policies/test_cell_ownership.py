"""The cell of a tenant is stable: a cell that leaves gives up its own tenants, and no other tenant moves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from policies.cell_ownership import AWAY_SHARE, AWAY_TOKENS, away_tokens, fair_part, owner_of

NAMES = st.text(alphabet="abcdefgh-0123", min_size=1, max_size=12)
CELLS = st.sets(NAMES, min_size=1, max_size=12)


@given(cells=CELLS, organisation=st.text(max_size=30))
def test_a_tenant_belongs_to_one_of_the_cells_in_whatever_order_they_are_named(cells, organisation):
    owner = owner_of(organisation, sorted(cells))
    assert owner in cells
    assert owner == owner_of(organisation, sorted(cells, reverse=True))


@given(cells=CELLS, organisation=st.text(max_size=30), change=NAMES)
def test_only_the_tenants_of_the_cell_that_comes_or_goes_move(cells, organisation, change):
    without, with_it = cells - {change}, cells | {change}
    before, after = owner_of(organisation, without), owner_of(organisation, with_it)
    assert after in (before, change)


def test_cells_have_about_as_many_tenants_each():
    cells = [f"cell-{at}" for at in range(10)]
    counts = Counter(owner_of(f"tenant-{at}", cells) for at in range(20_000))
    assert max(counts.values()) < 1.1 * 2000
    assert min(counts.values()) > 0.9 * 2000


def test_the_rule_that_load_balancers_follow_does_not_change():
    owners = [owner_of(name, ("east", "north", "west")) for name in ("acme", "hooli", "stark", "Ünal")]
    assert owners == ["north", "east", "east", "west"]


def test_without_a_cell_there_is_no_owner():
    assert owner_of("acme", ()) is None


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 50))
def test_an_idle_worker_away_never_counts_as_much_as_one_that_others_have_filled(windows, others):
    tokens = 0
    for window in windows:
        tokens = away_tokens(window, others, tokens)
        assert 0 <= tokens <= min(AWAY_TOKENS, AWAY_SHARE * fair_part(window, others))


def test_the_more_cells_share_a_worker_the_more_counts_on_it_away():
    assert away_tokens(4000, 1) < away_tokens(4000, 3) < away_tokens(16_384, 9) == AWAY_TOKENS


@given(st.integers(100, 10**6), st.lists(st.floats(0.8, 1.0), max_size=20))
def test_a_window_that_moves_by_a_fifth_changes_what_counts_on_workers_away_once_at_most(window, moves):
    counted = [away_tokens(window, 9)]
    for move in moves:
        counted.append(away_tokens(int(window * move), 9, counted[-1]))
    assert len(set(counted)) <= 2
