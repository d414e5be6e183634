"""A crowd before two workers of different speed, on a fake clock: how often each of its requests is ranked."""

import asyncio
from functools import partial
from heapq import heappop, heappush
from itertools import count

from policies.admission.search_bounds import PASSED_OVER_MAX
from policies.registry import routing_policy
from policies.routing.cost import CostPolicy
from tests.fakes.dispatch_stage import DispatchStage, prompt_of, tenant, with_limits
from tests.unit.gateway.dispatch.acquisition.test_worker_acquisition import learnt_as

TENANTS = [tenant(f"t{number}") for number in range(8)]
SIZES = (256, 640, 1024, 2048, 4096)
CALLERS, ANSWERS = 90, 250
MS_PER_TOKEN = 0.004


class Crowd:
    """Callers that each send the next request, with a new prompt, when the last one is answered."""

    def __init__(self):
        limits = with_limits(hold=0.0, release_window_tokens=16_384)
        self.stage = DispatchStage(
            "a", "b", limits=limits, passed_over_max=PASSED_OVER_MAX, waiting_seconds_max=1e6
        )
        self.stage.router.reconfigure(routing_policy("cost", {}), None, 0)
        learnt_as(self.stage, "a", MS_PER_TOKEN)
        learnt_as(self.stage, "b", 1.2 * MS_PER_TOKEN)
        self.free_at = {"a": 0.0, "b": 0.0}
        self.events, self.numbers, self.tasks = [], count(), set()

    def send(self):
        task = asyncio.ensure_future(self._send(next(self.numbers)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, number):
        stage, size = self.stage, SIZES[number * 7 % len(SIZES)]
        ctx = stage.context(tenant=TENANTS[number % len(TENANTS)])
        request = stage.pending(ctx, prompt_of(size, first=1000 + number))
        placement = await stage.acquisition.acquire(request)
        worker = str(placement.worker.id)
        self.free_at[worker] = max(stage.clock(), self.free_at[worker]) + size * MS_PER_TOKEN / 1000
        heappush(self.events, (self.free_at[worker], next(self.numbers), request, placement))

    async def answer(self):
        """Let the next prompt be computed, its answer come, and its caller send another one."""
        at, _, request, placement = heappop(self.events)
        stage = self.stage
        stage.clock.advance(max(0.0, at - stage.clock()))
        stage.placements.note_first_token(placement)
        stage.rooms.give_turns()
        end = partial(stage.attempts.reports.free_unused, placement)
        stage.acquisition.end_and_correct(request, None, end)
        self.send()
        for _ in range(4):
            await asyncio.sleep(0)


async def test_a_request_of_a_crowd_is_ranked_a_few_times_however_often_it_is_looked_at(monkeypatch):
    rankings = []
    rank = CostPolicy.rank
    monkeypatch.setattr(CostPolicy, "rank", lambda *args: rankings.append(args) or rank(*args))
    crowd = Crowd()
    for _ in range(CALLERS):
        crowd.send()
    await asyncio.sleep(0)
    for _ in range(ANSWERS):
        await crowd.answer()
    waiting = sum(map(len, crowd.stage.rooms.all().values()))
    assert waiting > CALLERS // 2
    assert len(rankings) < 5 * ANSWERS
    for task in crowd.tasks:
        task.cancel()
    await asyncio.gather(*crowd.tasks, return_exceptions=True)
