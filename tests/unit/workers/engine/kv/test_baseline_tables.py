"""The layouts that paging replaced give the same tokens, and waste what they are said to waste."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.engine.conftest import finish_all, greedy
from tests.unit.workers.engine.model.test_decoder import greedy_requests
from workers.engine.ablation.kv_waste import KVWaste, measure_kv_waste
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import BlockMisused, ConfigInvalid
from workers.engine.kv.block_pool import BlockPool
from workers.engine.request import Request


@pytest.mark.parametrize("layout", ["contiguous", "none"])
@pytest.mark.parametrize("variant", ["llama-gqa", "mistral-mqa"])
@pytest.mark.parametrize("settings", [{}, {"block_size": 4, "running_max": 3}], ids=["plain", "small"])
def test_every_layout_gives_the_same_tokens(
    layout: str, variant: str, settings: dict[str, Any], load: Callable[..., Engine]
) -> None:
    wanted = [a.tokens for a in finish_all(load(variant), greedy_requests("a")).values()]
    engine = load(variant, kv_layout=layout, kv_tokens=512, **settings)
    for name in ("first", "second"):
        answers = finish_all(engine, greedy_requests(name)).values()
        assert wanted == [answer.tokens for answer in answers]
        assert not any(answer.cached_tokens for answer in answers)
    assert engine.tree.pool.free_blocks == engine.tree.pool.capacity


@pytest.mark.parametrize("layout", ["contiguous", "none"])
def test_an_abort_gives_everything_back(layout: str, load: Callable[..., Engine]) -> None:
    engine = load(kv_layout=layout, kv_tokens=512)
    for steps in range(3):
        engine.submit(Request(id="a", prompt=[5] * 40, params=greedy(20)))
        for _ in range(steps):
            engine.step()
        engine.abort("a")
        assert engine.tree.pool.free_blocks == engine.tree.pool.capacity


def test_without_kv_every_step_computes_the_whole_sequence(load: Callable[..., Engine]) -> None:
    engine = load(kv_layout="none", chunk_tokens=4)
    engine.submit(Request(id="a", prompt=[5] * 10, params=greedy(4)))
    plans: list[str] = []
    while engine.has_work:
        plan = engine.scheduler.plan
        engine.scheduler.plan = lambda *a, plan=plan: plans.append(found := plan(*a)) or found  # type: ignore[func-returns-value,method-assign,misc]
        engine.step()
        engine.scheduler.plan = plan  # type: ignore[method-assign]
    assert [str(plan) for plan in plans] == ["a 0+10!", "a 0+11!", "a 0+12!", "a 0+13!"]


def test_a_run_is_taken_from_the_first_hole_that_is_long_enough() -> None:
    pool = BlockPool(10, 4)
    first, second, third = (pool.allocate_run(count) for count in (2, 3, 1))
    assert (first, second, third) == ([1, 2], [3, 4, 5], [6])
    for block in second:
        pool.release(block)
    assert pool.longest_run == 4
    assert pool.allocate_run(4) == [7, 8, 9, 10]
    assert pool.allocate_run(3) == [3, 4, 5]
    with pytest.raises(BlockMisused):
        pool.allocate_run(1)
    pool.check()


def test_a_contiguous_request_waits_when_no_hole_is_long_enough_although_blocks_are_free(
    load: Callable[..., Engine],
) -> None:
    engine = load(kv_layout="contiguous", block_size=4, kv_tokens=64)
    for name, prompt, answer in (("a", 8, 8), ("b", 8, 30), ("c", 4, 4)):
        engine.submit(Request(id=name, prompt=[7] * prompt, params=greedy(answer)))
    engine.step()
    engine.submit(Request(id="d", prompt=[9] * 12, params=greedy(8)))
    for _ in range(10):
        engine.step()
    # a and c have left: four blocks are free before b, and two behind it, which makes no five.
    assert [sequence.id for sequence in engine.scheduler.running] == ["b"]
    assert [sequence.id for sequence in engine.scheduler.waiting] == ["d"]
    waste = measure_kv_waste(engine.scheduler, engine.tree.pool)
    assert waste.external == 4 * engine.tree.pool.free_blocks
    while engine.has_work:
        engine.step()
    assert engine.tree.pool.free_blocks == engine.tree.pool.capacity


@pytest.fixture
def two(load: Callable[..., Engine]) -> Callable[[str], KVWaste]:
    """The waste of two running requests: 10 and 3 tokens of prompt, at most 20 of output, one step done."""

    def measure(layout: str) -> KVWaste:
        engine = load(kv_layout=layout, block_size=8, kv_tokens=128)
        for name, prompt in (("a", [5] * 10), ("b", [6] * 3)):
            engine.submit(Request(id=name, prompt=prompt, params=greedy(20)))
        engine.step()
        return measure_kv_waste(engine.scheduler, engine.tree.pool)

    return measure


def test_paging_wastes_less_than_a_block_a_sequence(two: Callable[[str], KVWaste]) -> None:
    assert two("paged") == KVWaste(pool=128, used=13, reserved=0, internal=6 + 5, external=0)


def test_a_contiguous_layout_reserves_what_may_never_come(two: Callable[[str], KVWaste]) -> None:
    # 30 and 23 tokens, rounded to 32 and 24.
    assert two("contiguous") == KVWaste(pool=128, used=13, reserved=20 + 20, internal=2 + 1, external=0)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="kv_layout must be one of paged, contiguous, none"):
        EngineConfig(model=tmp_path, kv_layout="slabs")  # type: ignore[arg-type]
