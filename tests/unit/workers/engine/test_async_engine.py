"""The engine behind an event loop: streams, aborts, failures. A scripted runner arranges every moment."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.engine import engine
from workers.engine.async_engine import AsyncEngine, OutputStream
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import FAILED_STEPS_MAX, Engine
from workers.engine.engine_parts import EngineInfo, EngineParts
from workers.engine.errors import EngineFailed, QueueFull, RequestRefused, StepFailed
from workers.engine.request import Output, Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import SampledTokens, StepPlan
from workers.engine.tokenization.tokenizer import Tokenizer


class ScriptedRunner:
    """Always samples token 40. A step takes a millisecond, waits while the gate is closed, fails when told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()
        self.failure: Exception | None = None
        self.failures: list[Exception] = []
        self.steps = 0

    def run(self, plan: StepPlan) -> list[SampledTokens]:
        self.steps += 1
        time.sleep(0.001)
        if not self.gate.is_set():
            self.held.set()
            assert self.gate.wait(60), "the gate was not opened within 60 s"
        if self.failures:
            raise self.failures.pop()
        if self.failure:
            raise self.failure
        return [SampledTokens(tokens=(40,)) for item in plan.items if item.samples]

    async def hold(self) -> None:
        """Close the gate; returns when a step stands before it."""
        self.held.clear()
        self.gate.clear()
        assert await asyncio.to_thread(self.held.wait, 60), "no step came to the gate"


@asynccontextmanager
async def running(checkpoint: Path, **settings: Any) -> AsyncIterator[tuple[AsyncEngine, ScriptedRunner]]:
    runner = ScriptedRunner()
    info = EngineInfo(
        context_length=512, block_size=4, pool_tokens=1024, running_max=4, vocab_size=512, dtype="", device=""
    )
    config = EngineConfig(**{"model": checkpoint, "running_max": 4, "waiting_max": 3, **settings})
    parts = EngineParts(info=info, runner=runner, tokenizer=Tokenizer(checkpoint), eos_ids=frozenset())
    async with AsyncEngine(Engine(config, parts)) as front:
        try:
            yield front, runner
        finally:
            runner.gate.set()


@pytest.fixture
def directory(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama-gqa")


def request(name: str, max_tokens: int = 3, prompt: int = 6) -> Request:
    return Request(id=name, prompt=[7] * prompt, params=SamplingParams(max_tokens=max_tokens), salt=name)


async def collect(stream: OutputStream) -> list[Output]:
    return [output async for output in stream]


async def answer(front: AsyncEngine, name: str) -> list[Output]:
    return await collect(await front.submit(request(name, max_tokens=400)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def test_outputs_come_in_order_and_the_last_has_the_finish_reason(directory: Path) -> None:
    async with running(directory) as (front, _):
        outputs = await collect(await front.submit(request("a")))
        assert [(o.completion_tokens, o.finish) for o in outputs] == [(1, None), (2, None), (3, "length")]


async def test_many_requests_are_answered_at_once(directory: Path) -> None:
    async with running(directory, waiting_max=50) as (front, _):
        streams = [await front.submit(request(str(number), max_tokens=number + 1)) for number in range(30)]
        answers = await asyncio.gather(*map(collect, streams))
        assert [number + 1 for number in range(30)] == [len(answer) for answer in answers]


async def test_refusals_are_raised_before_there_is_a_stream(directory: Path) -> None:
    async with running(directory) as (front, _):
        with pytest.raises(RequestRefused):
            await front.submit(request("a", max_tokens=9999))
        # And the name is free again.
        assert len(await collect(await front.submit(request("a")))) == 3


async def test_a_full_queue_is_reported_at_once(directory: Path) -> None:
    async with running(directory, running_max=1) as (front, _):
        streams = [await front.submit(request("r", max_tokens=400))]
        await until(lambda: front.loads.running == 1)
        streams += [await front.submit(request(str(number))) for number in range(3)]
        with pytest.raises(QueueFull):
            await front.submit(request("one too many"))
        for stream in streams:
            stream.close()
        await until(lambda: front.loads.running + front.loads.waiting == 0)


@pytest.mark.parametrize("leave", ["close", "cancel", "context"])
async def test_a_reader_that_leaves_frees_the_blocks_before_the_next_step(
    directory: Path, leave: str
) -> None:
    async with running(directory) as (front, runner):
        stream = await front.submit(request("a", max_tokens=400))
        await anext(stream)
        await runner.hold()
        steps = runner.steps
        if leave == "close":
            stream.close()
        elif leave == "context":
            async with stream:
                pass
        else:
            reader = asyncio.create_task(collect(stream))
            await asyncio.sleep(0.01)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        runner.gate.set()
        await until(lambda: front.loads.running == 0)
        assert (0, steps) == (front.loads.used_tokens, runner.steps)
        assert await collect(stream) == []


async def test_cancelling_a_submit_leaves_nothing_behind(directory: Path) -> None:
    async with running(directory) as (front, runner):
        first = await front.submit(request("a", max_tokens=400))
        await runner.hold()
        late = asyncio.create_task(front.submit(request("b", max_tokens=400)))
        await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        runner.gate.set()
        first.close()
        await until(lambda: not front._streams)
        assert front.loads.used_tokens == 0
        assert len(await collect(await front.submit(request("b")))) == 3


async def test_a_name_is_taken_until_its_request_has_really_ended(directory: Path) -> None:
    async with running(directory) as (front, runner):
        stream = await front.submit(request("a", max_tokens=400))
        await anext(stream)
        await runner.hold()
        stream.close()
        with pytest.raises(RequestRefused):
            await front.submit(request("a"))
        runner.gate.set()
        await until(lambda: not front._streams)
        outputs = await collect(await front.submit(request("a", max_tokens=2)))
        assert [output.completion_tokens for output in outputs] == [1, 2]


async def test_an_abort_ends_the_stream_with_that_reason(directory: Path) -> None:
    async with running(directory) as (front, _):
        stream = await front.submit(request("a", max_tokens=400))
        await anext(stream)
        front.abort("a")
        front.abort("never heard of it")
        outputs = await collect(stream)
        assert outputs[-1].finish == "abort"


async def test_a_failed_step_ends_its_requests_and_no_others(directory: Path) -> None:
    async with running(directory, running_max=2) as (front, runner):
        failing = [asyncio.create_task(answer(front, name)) for name in "ab"]
        await until(lambda: front.loads.running == 2)
        waiting = asyncio.create_task(collect(await front.submit(request("c"))))
        await runner.hold()
        runner.failures = [torch.OutOfMemoryError("no memory left on the device")]
        runner.gate.set()
        answers = await asyncio.wait_for(asyncio.gather(*failing, return_exceptions=True), 60)
        assert [StepFailed] * 2 == [type(answer) for answer in answers]
        assert [output.finish for output in await waiting] == [None, None, "length"]
        assert front.failure is None
        assert front.loads.used_tokens == front.loads.running == 0
        assert len(await collect(await front.submit(request("a")))) == 3


async def test_failed_steps_with_good_ones_between_never_stop_the_engine(directory: Path) -> None:
    async with running(directory) as (front, runner):
        for number in range(2 * FAILED_STEPS_MAX):
            runner.failures = [RuntimeError("now and then")]
            with pytest.raises(StepFailed):
                await collect(await front.submit(request(f"bad {number}")))
            assert len(await collect(await front.submit(request(f"good {number}")))) == 3
        assert front.metrics.failed_steps == 2 * FAILED_STEPS_MAX


async def test_failed_steps_in_a_row_stop_the_engine(directory: Path) -> None:
    async with running(directory) as (front, runner):
        runner.failure = RuntimeError("the device does not answer")
        for number in range(FAILED_STEPS_MAX - 1):
            with pytest.raises(StepFailed):
                await collect(await front.submit(request(str(number))))
            assert front.failure is None
        with pytest.raises(EngineFailed, match="3 steps in a row failed, the last with: the device does not"):
            await collect(await front.submit(request("last")))
        assert front.failure is not None


async def test_a_failure_reaches_every_waiting_caller_and_every_later_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FAILED_STEPS_MAX", 1)
    async with running(directory, running_max=1) as (front, runner):
        readers = [asyncio.create_task(answer(front, name)) for name in "ab"]
        await runner.hold()
        readers.append(asyncio.create_task(front.submit(request("c"))))
        readers.append(asyncio.create_task(front.flush_cache()))
        await asyncio.sleep(0.01)
        runner.failure = MemoryError("no memory left on the device")
        runner.gate.set()
        answers = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 60)
        assert [EngineFailed] * 4 == [type(answer) for answer in answers]
        assert "no memory left" in str(answers[0])
        assert isinstance(front.failure, EngineFailed)
        with pytest.raises(EngineFailed):
            await front.submit(request("d"))
        with pytest.raises(EngineFailed):
            await front.flush_cache()


async def test_closing_ends_the_waiting_requests(directory: Path) -> None:
    async with running(directory) as (front, runner):
        reader = asyncio.create_task(answer(front, "a"))
        await runner.hold()
    with pytest.raises(EngineFailed, match="closed"):
        await reader


async def test_the_cache_is_flushed_only_when_nothing_runs(directory: Path) -> None:
    async with running(directory) as (front, _):
        stream = await front.submit(request("a", max_tokens=400))
        assert not await front.flush_cache()
        stream.close()
        assert await front.flush_cache()


async def test_an_idle_engine_does_not_step(directory: Path) -> None:
    async with running(directory) as (front, runner):
        await collect(await front.submit(request("a")))
        steps = runner.steps
        await asyncio.sleep(0.05)
        assert steps == runner.steps == 3
