"""Small parts: estimates, places, child processes, the deployment secret, supervision."""

import asyncio
import re
import sys

import pytest

from gateway.dispatch.output_estimates import OutputEstimates
from gateway.domain.context import RequestContext
from gateway.domain.errors import BudgetExhausted, QuotaExceeded
from gateway.domain.model import Model
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.fleet.loads import Place, WorkerLoad
from gateway.process.children import Child, ChildFailed
from gateway.process.loop_supervisor import LoopSupervisor
from gateway.process.secrets import deployment_secret
from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.quota import Refusal
from gateway.settings.tree import Settings
from gateway.settings.types import Secret, SettingsProblem
from gateway.tokenization.prompt_encoders import TextEncoder
from policies.admission.limit_windows import Window


def context(*, limit=None, choices=1, amount=None, prompts=None):
    limits = (Limit(unit="total_tokens", amount=amount, window=Window.of("minute")),) if amount else ()
    plan = Plan(limits=limits)
    return RequestContext(
        id="r",
        tenant=Tenant(
            id="t",
            organisation="t",
            key_id="k",
            plan=plan,
            group="",
            scopes=(Scope(name="tenant:t", limits=limits),),
        ),
        model=Model(name="m", block_size=16, encoder=TextEncoder(), context_length=None, created=0),
        request=InferenceRequest(
            surface=Surface.COMPLETIONS if prompts else Surface.CHAT,
            model="m",
            fields={},
            prompt=prompts or [{"role": "user"}, {"role": "assistant"}],
            stream=True,
            include_usage=False,
            choices=choices,
            output_tokens_max=limit,
        ),
        received_at=0.0,
    )


def a_minute(amount, unit="requests", **more):
    return Limit(unit=unit, amount=amount, window=Window.of("minute"), **more)


def reserved(estimates, ctx, prompt_tokens):
    return estimates.reserved(ctx, ctx.tenant.scopes, prompt_tokens)


def test_a_clients_own_bound_is_reserved_for_every_choice():
    assert reserved(OutputEstimates(), context(limit=100, choices=3), 10) == 300


def test_every_prompt_of_a_completion_gets_its_own_answers():
    request = context(limit=100, choices=2, prompts=["a", "b", [1, 2]])
    estimates = OutputEstimates()
    assert reserved(estimates, request, 10) == 600
    assert estimates.expected(request) == 600
    for _ in range(200):
        estimates.learn(request, 6 * 40)
    assert estimates.expected(context()) == pytest.approx(40, abs=1)
    assert reserved(estimates, context(prompts=["a"] * 5), 10) == pytest.approx(200, abs=5)


def test_without_a_bound_the_tenants_answers_of_late_are_the_estimate():
    estimates = OutputEstimates()
    for _ in range(200):
        estimates.learn(context(), 40)
    assert reserved(estimates, context(), 10) == pytest.approx(40, abs=1)
    assert estimates.expected(context(limit=20)) == 20


def test_an_estimate_shrinks_to_fit_the_limit_and_never_below_nothing():
    assert reserved(OutputEstimates(), context(amount=60), 50) == 10
    assert reserved(OutputEstimates(), context(amount=60), 100) == 0


@pytest.mark.parametrize(
    ("limit", "seconds", "said"),
    [
        (concurrency(1), 1.0, "1 request at one time of tenant 't' is used up. Try again in 1 second."),
        (a_minute(5), 0.25, "5 requests per minute of tenant 't' is used up. Try again in 0.25 seconds."),
        (a_minute(5), 3599.99, "5 requests per minute of tenant 't' is used up. Try again in 60 minutes."),
        (
            a_minute(1, "total_tokens", models=("qwen*", "llama-1")),
            20,
            "1 total token per minute for the models qwen*, llama-1 of tenant 't' is used up. "
            "Try again in 20 seconds.",
        ),
        (
            a_minute(1_500_000, "spend"),
            2,
            "1.5 of spend per minute of tenant 't' is used up. Try again in 2 seconds.",
        ),
    ],
)
def test_a_limit_is_spoken_of_in_english(limit, seconds, said):
    error = QuotaExceeded(Refusal(scope="tenant:t", limit=limit, retry_after_seconds=seconds))
    assert error.message == f"The limit of {said}"


def test_a_budget_says_when_it_begins_anew_and_that_retrying_is_of_no_use():
    limit = Limit(unit="spend", amount=20_000_000, window=Window.of("month", "calendar"))
    error = BudgetExhausted(Refusal(scope="key:k1", limit=limit, retry_after_seconds=200_000.5))
    assert error.message == (
        "The budget of 20 of spend per calendar month of key 'k1' does not suffice. It begins anew in 3 days."
    )
    assert error.headers() == {
        "retry-after": "200001",
        "retry-after-ms": "200000500",
        "x-should-retry": "false",
        "x-radixgate-limit": "key:k1; spend/calendar month",
    }


def test_a_place_counts_from_entering_to_leaving_and_leaves_once():
    load = WorkerLoad()
    place = Place(load, uncached_tokens=100, kv_tokens=150)
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (100, 1, 150)
    place.first_token()
    place.first_token()
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (0, 1, 150)
    place.leave()
    place.leave()
    place.first_token()
    assert (load.tokens_queued, load.streams, load.kv_tokens) == (0, 0, 0)


def test_a_deployment_secret_is_made_once_and_kept_private(tmp_path):
    settings = Settings(state_directory=str(tmp_path / "state"))
    first = deployment_secret(settings)
    assert deployment_secret(settings) == first
    assert len(first) == 64
    file = tmp_path / "state" / "deployment.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["deployment.secret"]


def test_a_given_secret_is_used_and_nothing_is_written(tmp_path):
    settings = Settings(state_directory=str(tmp_path / "state"), deployment_secret=Secret("given"))
    assert deployment_secret(settings) == b"given"
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_made_is_a_settings_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsProblem, match=r"^\$\.state_directory: "):
        deployment_secret(Settings(state_directory=str(tmp_path / "file" / "state")))


READY = re.compile(r"ready at (\S+)")


def child(tmp_path, program):
    return Child("child", lambda url: [sys.executable, "-c", program, url or ""], READY, tmp_path / "log")


async def test_a_child_is_started_again_at_the_same_place_when_it_dies(tmp_path):
    program = (
        "import sys, time\nprint('ready at', sys.argv[1] or 'http://here:1', flush=True)\ntime.sleep(60)"
    )
    one = child(tmp_path, program)
    assert await one.start(10) == "http://here:1"
    first = one.pid
    keeping = asyncio.create_task(one.restart_when_dead(10))
    one._process.kill()
    async with asyncio.timeout(10):
        while one.restarts == 0:
            await asyncio.sleep(0.01)
    assert one.url == "http://here:1"
    assert one.pid != first
    keeping.cancel()
    await one.stop()
    assert one._process.returncode is not None


async def test_a_child_that_ends_too_soon_is_quoted(tmp_path):
    one = child(tmp_path, "import sys\nsys.exit('no such model')")
    with pytest.raises(ChildFailed, match="no such model"):
        await one.start(10)


async def test_a_child_that_never_gets_ready_is_stopped(tmp_path):
    one = child(tmp_path, "import time\ntime.sleep(60)")
    with pytest.raises(ChildFailed, match=r"not ready after 0\.2 seconds"):
        await one.start(0.2)
    assert one._process.returncode is not None


async def test_a_loop_that_crashes_is_started_again(monkeypatch):
    monkeypatch.setattr("gateway.process.loop_supervisor.RESTART_SECONDS", (0.0,))
    runs = []

    async def crashes_twice():
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("again")
        await asyncio.sleep(60)

    supervisor = LoopSupervisor()
    supervisor.start("loop", crashes_twice)
    async with asyncio.timeout(5):
        while len(runs) < 3:
            await asyncio.sleep(0)
    assert supervisor.loops["loop"].restarts == 2
    await supervisor.close()


async def test_a_loop_that_was_woken_in_the_moment_it_was_told_to_end_is_told_again(monkeypatch):
    """asyncio.wait_for of Python 3.11 loses a cancellation that comes with what it waits for."""
    monkeypatch.setattr("gateway.process.loop_supervisor.AGAIN_SECONDS", 0.01)
    bell, rounds = asyncio.Event(), []

    async def waits_for_a_bell():
        while True:
            rounds.append(1)
            bell.clear()
            try:
                await asyncio.wait_for(bell.wait(), 60)
            except TimeoutError:
                continue

    supervisor = LoopSupervisor()
    supervisor.start("loop", waits_for_a_bell)
    await asyncio.sleep(0.01)
    bell.set()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await supervisor.close()
    assert len(rounds) <= 2
