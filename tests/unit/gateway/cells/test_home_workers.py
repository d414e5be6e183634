"""Which workers a cell prefers: each is at home in one of the living cells."""

from types import SimpleNamespace

from gateway.cells.home_workers import HomeWorkers
from policies.cell_ownership import away_tokens, home_of

CELLS = ("east", "north", "west")
WINDOW = 16_384


def fleet(noted):
    return [
        SimpleNamespace(
            id=f"w{at}",
            provider=None,
            models=frozenset({"m"}),
            away_tokens=0,
            load=SimpleNamespace(on_change=(lambda at=at: noted.append(at),)),
        )
        for at in range(30)
    ]


def test_workers_that_are_at_home_elsewhere_count_as_busier_until_their_cell_is_gone():
    noted: list[int] = []
    workers, registry = fleet(noted), SimpleNamespace(cell="east", cells=dict.fromkeys(CELLS, ()))
    homes = HomeWorkers(registry)
    homes.mark(workers, lambda _: WINDOW)
    away = [worker for worker in workers if worker.away_tokens == away_tokens(WINDOW, 2)]
    assert [worker.id for worker in away] == [w.id for w in workers if home_of(w.id, CELLS) != "east"]
    assert 0 < len(away) < len(workers)
    assert len(noted) == len(away)
    homes.mark(workers, lambda _: WINDOW)
    assert len(noted) == len(away)
    registry.cells = {"east": ()}
    homes.mark(workers, lambda _: WINDOW)
    assert not any(worker.away_tokens for worker in workers)


def test_before_any_cell_is_known_and_for_providers_nothing_counts():
    workers = fleet([])
    homes = HomeWorkers(SimpleNamespace(cell="east", cells={}))
    homes.mark(workers, lambda _: WINDOW)
    workers[0].provider = object()
    homes._living.cells = {"west": ()}
    homes.mark(workers, lambda _: WINDOW)
    assert [worker.away_tokens for worker in workers] == [0] + [away_tokens(WINDOW, 1)] * 29


def test_where_windows_are_small_less_counts_so_that_full_workers_are_left_for_others():
    workers = fleet([])
    homes = HomeWorkers(SimpleNamespace(cell="east", cells=dict.fromkeys(CELLS, ())))
    homes.mark(workers, lambda _: WINDOW)
    homes.mark(workers, lambda _: 1000)
    assert all(worker.away_tokens < 1000 for worker in workers)
    assert any(worker.away_tokens for worker in workers)
