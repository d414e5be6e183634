"""Hedging: which of two workers answers, what is charged, and that the other placement is released."""

import asyncio
import json

import pytest

from gateway.dispatch import hedged_opening
from gateway.dispatch import hedging as hedging_module
from tests.fakes.scripted_worker import Script, ScriptedWorker
from tests.integration.queueing.test_shared_turns import nothing_is_left, together
from tests.integration.runtime.test_reference_cycles import left_by

LIMITS = [{"requests": 10, "per": "day"}, {"total_tokens": 100_000, "per": "day"}]
AFTER_MS = 30


def hedging(retries=None, **more):
    """Round robin: the first request goes to the first worker, whatever the loads are."""
    rules = {"share": 0.0, "at_least": 1000, "seconds": 3600, **(retries or {})}
    return {
        "routing.policy": "round_robin",
        "requests.hedging": json.dumps({"after_ms": AFTER_MS, **more}),
        "requests.retries": json.dumps(rules),
    }


async def asked(running, **more):
    async with running.chat(max_tokens=4, **more) as response:
        await response.read()
        return response.status


async def ended(worker):
    await asyncio.wait_for(worker.seen[-1].done.wait(), 60)
    return worker.seen[-1].ended


def outcomes(running):
    at = running.here.gateway.services.dispatch
    return {name: count for name, count in at.hedging.outcomes.items() if count}


@pytest.mark.parametrize("stream", [True, False])
async def test_the_second_answers_where_the_first_is_silent_which_is_let_go_at_once(gateway, stream):
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as good,
        gateway(slow, good, **hedging()) as running,
    ):
        running.knows_shapes()
        slow.then(silent=True)
        assert await asked(running, stream=stream) == 200
        assert await ended(slow) == "aborted"
        assert await ended(good) == "finished"
        await running.until(lambda: running.idle)
        assert outcomes(running) == {"won": 1}
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
        assert 'radixgate_hedges_total{outcome="won"} 1.0' in metrics
        assert "radixgate_retries_total 1.0" in metrics
        assert 'radixgate_worker_requests_total{worker="w1"} 1.0' in metrics


async def test_the_placement_of_the_slower_attempt_is_free_while_the_answer_goes_on(gateway):
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as good,
        gateway(slow, good, **hedging()) as running,
    ):
        slow.then(silent=True)
        good.then(tokens=1000, gap=0.02)
        async with running.chat(stream=True) as response:
            await response.content.readline()
            assert await ended(slow) == "aborted"
            loads = [worker.load for worker in running.here.gateway.fleet]
            assert [load.streams for load in loads] == [0, 1]
            assert loads[0].kv_tokens == loads[0].tokens_queued == 0
            response.close()
        await running.until(lambda: running.idle)
        assert await ended(good) == "aborted"


async def test_the_first_answers_where_it_is_first_after_all(gateway):
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as other,
        gateway(slow, other, **hedging()) as running,
    ):
        slow.then(until=asyncio.Event())
        other.then(silent=True)
        call = asyncio.create_task(asked(running, stream=True))
        await running.until(lambda: other.seen)
        slow.script.until.set()
        assert await call == 200
        assert (await ended(slow), await ended(other)) == ("finished", "aborted")
        await running.until(lambda: running.idle)
        assert outcomes(running) == {"lost": 1}


async def test_a_worker_that_answers_in_time_is_the_only_one(gateway):
    settings = hedging(after_ms=5000)
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other, **settings) as running:
        assert await asked(running) == 200
        assert (len(one.seen), len(other.seen), outcomes(running)) == (1, 0, {})


async def test_the_attempt_that_remains_alone_is_charged_when_its_client_leaves(gateway, records):
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, limits=LIMITS, **hedging()) as running,
    ):
        one.then(until=asyncio.Event(), break_after=0)
        other.then(silent=True)
        call = asyncio.create_task(asked(running, stream=True))
        await running.until(lambda: other.seen)
        one.script.until.set()
        await running.until(lambda: running.here.gateway.fleet["w0"].load.streams == 0)
        call.cancel()
        assert await ended(other) == "aborted"
        await running.until(lambda: running.idle and records)
        assert (records[0].worker, records[0].attempts, records[0].code) == ("w1", 2, "client_closed")
        assert outcomes(running) == {"left": 1}


async def test_a_client_that_leaves_frees_both(gateway):
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, limits=LIMITS, concurrency=5, **hedging()) as running,
    ):
        for worker in (one, other):
            worker.then(silent=True)
        call = asyncio.create_task(asked(running, stream=True))
        await running.until(lambda: other.seen)
        call.cancel()
        assert (await ended(one), await ended(other)) == ("aborted", "aborted")
        await running.until(lambda: running.idle)
        assert outcomes(running) == {"left": 1}


async def test_quota_is_charged_once(gateway):
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as good,
        gateway(slow, good, limits=LIMITS, **hedging()) as running,
    ):
        running.knows_shapes()
        slow.then(silent=True)
        left = []
        for _ in range(2):
            async with running.chat(max_tokens=4) as response:
                await response.read()
                left.append(
                    [int(response.headers[f"x-ratelimit-remaining-{k}"]) for k in ("requests", "tokens")]
                )
            await running.settled()
        assert len(slow.seen) == 1 or len(good.seen) == 2
        assert left[0][0] - left[1][0] == 1
        assert 0 <= left[0][1] - left[1][1] < 30


FORBIDDEN = {
    "by concurrency": {"concurrency": 1},
    "by a limit": {"limits": [{"requests": 1, "per": "day"}]},
    "by length": hedging(prompt_tokens_max=1),
    "by the budget of retries": hedging({"at_least": 0}),
    "by the number of attempts": {"requests.attempts_max": "1"},
    "as batch work": {},
}


@pytest.mark.parametrize("why", FORBIDDEN)
async def test_there_is_no_second_leg_where_that_is_forbidden(gateway, why):
    settings = {**hedging(), **FORBIDDEN[why]}
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as other,
        gateway(slow, other, **settings) as running,
    ):
        slow.then(until=asyncio.Event())
        more = {"service_tier": "flex"} if why == "as batch work" else {}
        call = asyncio.create_task(asked(running, stream=True, **more))
        await running.until(lambda: slow.seen)
        await asyncio.sleep(5 * AFTER_MS / 1000)
        slow.script.until.set()
        assert await call == 200
        assert other.seen == []
        await running.until(lambda: running.idle)


async def test_a_hedge_overtakes_no_waiting_request(gateway):
    settings = {**hedging(), "queueing.release_window_tokens": "1"}
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other, **settings) as running:
        for worker in (one, other):
            worker.then(until=asyncio.Event())
        calls = [asyncio.create_task(asked(running, stream=True)) for _ in range(4)]
        await running.until(lambda: one.seen and other.seen)
        await asyncio.sleep(5 * AFTER_MS / 1000)
        assert (len(one.seen), len(other.seen)) == (1, 1)
        for worker in (one, other):
            worker.script.until.set()
        assert await asyncio.gather(*calls) == [200] * 4
        await running.until(lambda: running.idle)


ENDS = {
    "second wins": ({"silent": True}, {}, "second", 200, "won"),
    "first wins": ({}, {"silent": True}, "first", 200, "lost"),
    "second is cut off": ({}, {"break_after": 0}, "second", 200, "failed"),
    "second is full": ({}, {"status": 503, "body": {}}, "second", 200, "failed"),
    "second fails inside": ({}, {"status": 500, "body": {}}, "second", 200, "failed"),
    "second refuses": ({}, {"status": 400, "body": {}}, "second", 200, "failed"),
    "first is cut off": ({"break_after": 0}, {}, "first", 200, "won"),
    "first refuses": ({"status": 400, "body": {}}, {"silent": True}, "first", 400, "lost"),
    "both are full": ({"status": 503, "body": {}}, {"status": 503, "body": {}}, "second", 503, "failed"),
    "both fail inside": ({"status": 500}, {"status": 500}, "first", 502, "failed"),
    "second wins and breaks": ({"silent": True}, {"break_after": 2}, "second", 200, "won"),
}
"""What each does, which one may go on first, what the client sees, and what became of the second leg."""


@pytest.mark.parametrize("end", ENDS)
async def test_however_it_ends_all_places_are_free_and_no_circles_are_left(gateway, end):
    first, second, goes, status, outcome = ENDS[end]
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, limits=[{"requests": 10_000, "per": "day"}], **hedging()) as running,
    ):
        fleet, times = running.here.gateway.services.dispatch.fleet, 0

        async def once():
            nonlocal times
            # Even requests begin at one worker and odd ones at the other.
            a, b = (one, other) if times % 2 == 0 else (other, one)
            a.script, b.script = (Script(until=asyncio.Event(), **part) for part in (first, second))
            await running.until(lambda: len(fleet.serving("m")) == 2, seconds=60)
            times, seen = times + 1, len(b.seen)
            call = asyncio.create_task(asked(running, stream=True))
            await running.until(lambda: len(b.seen) > seen)
            early, late = (a, b) if goes == "first" else (b, a)
            early.script.until.set()
            await running.until(lambda: call.done() or sum(worker.load.streams for worker in fleet) == 1)
            late.script.until.set()
            assert await call == status
            await running.until(lambda: running.idle)
            await asyncio.sleep(0.01)

        assert await left_by(once) == {}
        assert outcomes(running) == {outcome: times}


async def test_a_worker_that_is_known_is_given_as_long_as_it_usually_takes(gateway):
    settings = {**hedging(), "requests.hedging": "{}"}
    async with ScriptedWorker() as one, ScriptedWorker() as other, gateway(one, other, **settings) as running:
        one.then(silent=True)
        calls = [asyncio.create_task(asked(running, stream=True))]
        await running.until(lambda: one.seen)
        await asyncio.sleep(0.2)
        assert other.seen == []
        one.then(silent=False)
        for _ in range(24):
            assert await asked(running, stream=True) == 200
        one.then(silent=True)
        other.then(silent=True)
        calls += [asyncio.create_task(asked(running, stream=True))]
        seen = len(one.seen) + len(other.seen)
        await running.until(lambda: len(one.seen) + len(other.seen) == seen + 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await running.until(lambda: running.idle)


@pytest.mark.parametrize("end", ["won", "lost", "left"])
async def test_where_gateways_give_turns_together_nothing_of_a_second_leg_is_left(gateway, end):
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, **hedging()) as running,
        gateway(one, other, **hedging()) as beside,
    ):
        await together(running, beside)
        for worker in (one, other):
            worker.then(until=asyncio.Event())
        call = asyncio.create_task(asked(running, stream=True))
        await running.until(lambda: one.seen or other.seen)
        first, second = (one, other) if one.seen else (other, one)
        await running.until(lambda: second.seen)
        # The other gateway knows of both.
        await beside.until(lambda: all(w.load.others.streams == 1 for w in beside.here.gateway.fleet))
        if end == "left":
            call.cancel()
        else:
            (second if end == "won" else first).script.until.set()
            assert await call == 200
        await nothing_is_left(running, beside)
        await beside.until(lambda: all(w.load.others.streams == 0 for w in beside.here.gateway.fleet))
        assert outcomes(running) == {end: 1}


@pytest.mark.parametrize("waits_for", ["m", "n"])
@pytest.mark.parametrize("at", ["another gateway", "the same gateway"])
async def test_a_hedge_overtakes_no_request_that_waits_for_the_worker_at_any_gateway_for_any_model(
    gateway, monkeypatch, at, waits_for
):
    settings = {**hedging(), "queueing.release_window_tokens": "1000"}
    may_look, has_looked = asyncio.Event(), asyncio.Event()

    async def first_of(first, after_seconds, open_second, on_failure):
        """The real one, whose second stream waits until the test lets it."""

        async def later():
            await may_look.wait()
            second = await open_second()
            has_looked.set()
            return second

        return await hedging_module.first_of(first, after_seconds, later, on_failure)

    monkeypatch.setattr(hedged_opening, "first_of", first_of)
    most, too_much = (
        ("here " * 480, "also " * 480),
        "more " * 1400,
    )  # About 600 and 1,700 tokens, nothing in common.
    async with (
        ScriptedWorker(["m", "n"]) as one,
        ScriptedWorker(["m", "n"]) as other,
        gateway(one, other, **settings) as running,
        gateway(one, other, **{**settings, "requests.hedging": "null"}) as beside,
    ):
        await together(running, beside)
        there = beside if at == "another gateway" else running
        for worker in (one, other):
            worker.then(until=asyncio.Event())
        calls = [asyncio.create_task(asked(beside, text=text, stream=True)) for text in most]
        await running.until(lambda: one.seen and other.seen)
        small = asyncio.create_task(asked(running, text="hello", stream=True))
        await running.until(lambda: len(one.seen) + len(other.seen) == 3)
        calls.append(asyncio.create_task(asked(there, text=too_much, model=waits_for, stream=True)))
        queue = there.here.gateway.services.dispatch.queue
        await running.until(lambda: len(queue) == 1)
        assert (len(one.seen) + len(other.seen), small.done()) == (3, False)
        may_look.set()
        await asyncio.wait_for(has_looked.wait(), 60)
        assert len(one.seen) + len(other.seen) == 3
        for worker in (one, other):
            worker.script.until.set()
        assert await asyncio.gather(small, *calls) == [200] * 4
        assert outcomes(running) == {}
        await nothing_is_left(running, beside)


@pytest.mark.parametrize("end", ["answered", "left"])
async def test_a_second_place_that_comes_too_late_is_given_back(gateway, end):
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, **hedging()) as running,
        gateway(one, other, **hedging()) as beside,
    ):
        await together(running, beside)
        for worker in (one, other):
            worker.then(until=asyncio.Event())
        store = running.here.gateway.services.dispatch.queue._store
        given, may_be_heard, spare = asyncio.Event(), asyncio.Event(), store.spare

        async def late(*asked):
            told = await spare(*asked)
            given.set()
            await may_be_heard.wait()
            return told

        store.spare = late
        call = asyncio.create_task(asked(running, stream=True))
        await given.wait()
        first = one if one.seen else other
        if end == "left":
            call.cancel()
            await asyncio.wait([call])
        else:
            first.script.until.set()
            fleet = running.here.gateway.fleet
            await running.until(lambda: first.seen[0].ended == "finished")
            assert sum(worker.load.streams for worker in fleet) == 1
            may_be_heard.set()
            assert await call == 200
        assert len(one.seen) + len(other.seen) == 1
        may_be_heard.set()
        await nothing_is_left(running, beside)
        assert outcomes(running) == {}
