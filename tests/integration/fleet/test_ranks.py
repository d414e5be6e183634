"""Workers with several data-parallel ranks: each request names the rank that has its prefix."""

from tests.fakes.scripted_worker import ScriptedWorker

LONG = "It was a long prompt, and there was more of it than of any other. " * 40


def worker_with_ranks(ranks):
    worker = ScriptedWorker()
    worker.ranks = ranks
    return worker


async def told(running, *texts, **more):
    for text in texts:
        async with running.chat(text, **more) as answer:
            assert answer.status == 200, await answer.text()


async def test_the_turns_of_a_conversation_name_the_rank_that_began_it(gateway):
    async with worker_with_ranks(4) as worker, gateway(worker) as running:
        for start in ("a", "b", "c", "d", "e"):
            await told(running, start + LONG, start + LONG + "And then?")
        await running.until(lambda: running.idle)
    ranks = [seen.body["routed_dp_rank"] for seen in worker.seen]
    assert ranks[::2] == ranks[1::2]
    assert set(ranks) <= {0, 1, 2, 3}


async def test_prompts_that_come_at_once_name_different_ranks(gateway):
    async with worker_with_ranks(2) as worker, gateway(worker) as running:
        worker.then(gap=3600.0)
        async with running.chat("x" + LONG, stream=True), running.chat("y" + LONG, stream=True):
            pass
        await running.until(lambda: running.idle)
    assert sorted(seen.body["routed_dp_rank"] for seen in worker.seen) == [0, 1]


async def test_no_rank_is_named_where_there_is_only_one_or_the_settings_forbid_it(gateway):
    async with worker_with_ranks(1) as one, worker_with_ranks(2) as other:
        for worker, more in ((one, {}), (other, {"dp_rank": "off"})):
            entry = f'[{{"id": "w", "kind": "sglang", "url": "{worker.url}"'
            entry += "".join(f', "{name}": "{value}"' for name, value in more.items()) + "}]"
            async with gateway(workers=entry) as running:
                await told(running, LONG)
            assert "routed_dp_rank" not in worker.seen[0].body
