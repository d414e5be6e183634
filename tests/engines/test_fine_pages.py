"""SGLang with its default pages of one token: they are folded into the model's blocks."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.processes import Engine, SglangOfOneTokenPages
from tests.engines.test_caches import TENANTS, foretold
from tests.integration.kv_index.test_kv_events import feed_of, held, index_of
from tests.integration.routing.test_prefix_cache_routing import conversation, text

BLOCK = 16


@pytest.fixture
def fine(checkpoint: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = SglangOfOneTokenPages(checkpoint, tmp_path / "sglang.log")
    engine.start()
    try:
        engine.wait()
        yield engine
    finally:
        engine.kill()


async def test_the_index_holds_the_whole_blocks_of_what_the_engine_holds(gateway, fine, model_of):
    chance = random.Random(5)
    async with gateway(fine, kind="sglang", **model_of(BLOCK)) as running:
        evicted = 0
        await foretold(running, conversation(0))
        assert "w0" in index_of(running).followed
        follower = feed_of(running).follower
        for _ in range(30):
            before = set(follower._pages)
            messages = [{"role": "user", "content": text(chance.randrange(14), words=40)}]
            messages += [{"role": "user", "content": text(chance.randrange(3), words=30)}]
            predicted, reported = await foretold(running, messages, chance.choice(TENANTS))
            assert predicted == reported // BLOCK * BLOCK
            assert held(running) == len(follower.held_blocks())
            evicted += len(before - set(follower._pages))
        assert evicted > 10 * BLOCK
        assert held(running) > 10
        assert index_of(running).corrections == 0
