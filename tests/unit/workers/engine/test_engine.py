"""The engine as a whole: counts, caching, isolation, endings, preemption, limits."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.engine.conftest import greedy
from workers.engine import engine as engine_module
from workers.engine.engine import Engine
from workers.engine.errors import QueueFull, RequestRefused
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import SampledTokens, StepPlan
from workers.engine.scheduler.sequence import FinishReason

BLOCK = 16
Finish = Callable[..., dict[str, Any]]


def request(name: str, prompt: list[int], salt: str = "", **params: Any) -> Request:
    settings = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True, **params}
    return Request(id=name, prompt=prompt, params=SamplingParams(**settings), salt=salt)


def words(count: int, start: int = 10) -> list[int]:
    return [start + (number * 37) % 400 for number in range(count)]


@pytest.mark.parametrize(
    ("length", "cached"),
    [(1, 0), (BLOCK - 1, 0), (BLOCK, 0), (BLOCK + 1, BLOCK), (2 * BLOCK, BLOCK), (2 * BLOCK + 1, 2 * BLOCK)],
)
def test_a_repeated_prompt_has_all_whole_blocks_but_the_last_token_cached(
    length: int, cached: int, load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load(block_size=BLOCK)
    first = finish(engine, [request("a", words(length))])["a"]
    second = finish(engine, [request("b", words(length))])["b"]
    assert (0, cached) == (first.cached_tokens, second.cached_tokens)
    assert (length, 4) == (second.prompt_tokens, second.completion_tokens)
    assert first.tokens == second.tokens


def test_the_generated_part_is_cached_for_the_next_turn(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load(block_size=BLOCK)
    prompt = words(20)
    first = finish(engine, [request("a", prompt, max_tokens=30)])["a"]
    # 49 of 50 tokens were computed: three whole blocks.
    turn = finish(engine, [request("b", prompt + first.tokens + [5, 6, 7])])["b"]
    assert turn.cached_tokens == 3 * BLOCK


def test_another_salt_has_nothing_cached_and_the_same_answer(
    load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load(block_size=4)
    answers = [finish(engine, [request(salt, words(30), salt=salt)])[salt] for salt in ("acme", "zeta", "")]
    assert [answer.cached_tokens for answer in answers] == [0, 0, 0]
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens
    assert finish(engine, [request("again", words(30), salt="acme")])["again"].cached_tokens == 28


def test_simultaneous_equal_prompts_are_computed_once(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load(block_size=4)
    answers = finish(engine, [request(str(number), words(41)) for number in range(6)])
    assert [answer.cached_tokens for answer in answers.values()] == [0, 40, 40, 40, 40, 40]
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 1


def test_a_seeded_request_gets_the_same_tokens_alone_in_a_batch_and_after_preemption(
    load: Callable[..., Engine], finish: Finish
) -> None:
    params = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 42}
    alone = finish(load(), [request("x", words(9), **params)])["x"].tokens
    others = [request(str(n), words(5 + n, start=20 + n), max_tokens=40, temperature=1.0) for n in range(5)]
    batched = finish(load(), [*others, request("x", words(9), **params)])["x"].tokens
    tight = load(block_size=4, kv_tokens=160, seed=3)
    preempted: list[str] = []
    plan = tight.scheduler.plan
    tight.scheduler.plan = lambda now: (made := plan(now), preempted.extend(s.id for s in made.preempted))[0]
    squeezed = finish(tight, [*others, request("x", words(9), **params)])["x"].tokens
    assert "x" in preempted
    assert alone == batched == squeezed


def test_greedy_answers_survive_preemption(load: Callable[..., Engine], finish: Finish) -> None:
    requests = [request(str(n), words(6, start=30 + n), max_tokens=30) for n in range(6)]
    roomy = finish(load(), requests)
    tight = finish(load(block_size=4, kv_tokens=48), requests)
    assert {name: answer.tokens for name, answer in roomy.items()} == {n: a.tokens for n, a in tight.items()}


def test_without_a_seed_two_requests_differ_and_the_engines_seed_repeats_them(
    load: Callable[..., Engine], finish: Finish
) -> None:
    requests = [request(name, words(9), temperature=1.5, max_tokens=20) for name in "ab"]
    first, second = finish(load(seed=5), requests), finish(load(seed=5), requests)
    assert first["a"].tokens != first["b"].tokens
    assert first["a"].tokens == second["a"].tokens
    assert first["a"].tokens != finish(load(seed=6), requests)["a"].tokens


def test_the_stream_is_the_text_of_the_whole(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load()
    requests = [request(str(n), words(7, start=n), temperature=1.3, seed=n, max_tokens=60) for n in range(8)]
    for answer in finish(engine, requests).values():
        assert engine.tokenizer.decode(answer.tokens) == answer.text
        assert (answer.completion_tokens, answer.finish) == (60, FinishReason.LENGTH)


def test_a_stop_string_ends_the_answer_before_it(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load()
    whole = finish(engine, [request("a", words(9), max_tokens=40)])["a"].text
    stop = whole[20:26]
    cut = finish(engine, [request("b", words(9), max_tokens=40, stop=("never said", stop))])["b"]
    assert (whole[: whole.index(stop)], FinishReason.STOP) == (cut.text, cut.finish)
    assert cut.completion_tokens < 40


def test_a_stop_string_in_the_last_token_counts_as_stop(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load()
    whole = finish(engine, [request("a", words(9), max_tokens=12)])["a"]
    answer = finish(engine, [request("b", words(9), max_tokens=12, stop=(whole.text[-1],))])["b"]
    assert answer.finish == FinishReason.STOP


def test_a_stop_token_ends_the_answer_and_is_no_part_of_its_text(
    load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load()
    whole = finish(engine, [request("a", words(9), max_tokens=12)])["a"]
    token = whole.tokens[5]
    end = whole.tokens.index(token)
    answer = finish(engine, [request("b", words(9), max_tokens=12, stop_token_ids=frozenset({token}))])["b"]
    assert (whole.tokens[: end + 1], FinishReason.STOP) == (answer.tokens, answer.finish)
    assert engine.tokenizer.decode(whole.tokens[:end]) == answer.text


def test_the_end_token_ends_unless_it_is_ignored(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load()
    whole = finish(engine, [request("a", words(9), max_tokens=12)])["a"]
    engine._eos_ids = frozenset({whole.tokens[3]})
    heard, ignored = (
        finish(engine, [request("b", words(9), max_tokens=12, ignore_eos=ignore)])["b"]
        for ignore in (False, True)
    )
    assert (heard.finish, ignored.finish) == (FinishReason.STOP, FinishReason.LENGTH)
    assert whole.tokens.index(whole.tokens[3]) + 1 == heard.completion_tokens


def test_aborting_frees_everything_wherever_the_request_stands(load: Callable[..., Engine]) -> None:
    for steps in (0, 1, 3, 6):
        engine = load(block_size=4, chunk_tokens=8)
        engine.submit(request("a", words(20), max_tokens=50))
        for _ in range(steps):
            engine.step()
        last = engine.abort("a")
        assert last is not None
        assert last.finish == FinishReason.ABORT
        assert not engine.has_work
        assert engine.loads().used_tokens == 0
        assert engine.abort("a") is None
        engine.tree.check()


def test_what_an_aborted_request_computed_stays_cached(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load(block_size=4, chunk_tokens=8)
    engine.submit(request("a", words(40)))
    engine.step()
    engine.abort("a")
    assert finish(engine, [request("b", words(40))])["b"].cached_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [(60, 4, True), (61, 4, False), (63, 1, True), (64, 1, False), (1, 63, True), (1, 64, False)],
)
def test_the_context_is_a_hard_limit(
    prompt: int, max_tokens: int, fits: bool, load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load(context_length=64)
    if fits:
        answer = finish(engine, [request("a", words(prompt), max_tokens=max_tokens)])["a"]
        assert max_tokens == answer.completion_tokens
        return
    with pytest.raises(RequestRefused) as refused:
        engine.submit(request("a", words(prompt), max_tokens=max_tokens))
    assert refused.value.code == "context_length_exceeded"
    assert "64" in str(refused.value)
    assert str(prompt + max_tokens) in str(refused.value)
    assert not engine.has_work


def test_what_fills_the_whole_pool_runs_and_one_token_more_is_refused(
    load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load(block_size=4, kv_tokens=32)
    assert finish(engine, [request("a", words(20), max_tokens=12)])["a"].completion_tokens == 12
    with pytest.raises(RequestRefused, match="32"):
        engine.submit(request("b", words(20), max_tokens=13))


@pytest.mark.parametrize("prompt", [[], [512], [-1], [5, 9999]])
def test_prompts_without_tokens_or_with_unknown_ones_are_refused(
    prompt: list[int], load: Callable[..., Engine]
) -> None:
    with pytest.raises(RequestRefused) as refused:
        load().submit(request("a", prompt))
    assert refused.value.param == "prompt"


def test_a_name_can_be_used_again_when_its_request_has_ended(
    load: Callable[..., Engine], finish: Finish
) -> None:
    engine = load()
    engine.submit(request("a", words(3)))
    with pytest.raises(RequestRefused):
        engine.submit(request("a", words(3)))
    engine.abort("a")
    assert finish(engine, [request("a", words(3))])["a"].completion_tokens == 4


def test_a_full_queue_refuses_and_recovers(load: Callable[..., Engine]) -> None:
    engine = load(running_max=1, waiting_max=2)
    engine.submit(request("a", words(3)))
    engine.step()
    engine.submit(request("b", words(3)))
    engine.submit(request("c", words(3)))
    with pytest.raises(QueueFull):
        engine.submit(request("d", words(3)))
    engine.abort("b")
    engine.submit(request("d", words(3)))


def test_loads_count_what_runs_waits_and_is_held(load: Callable[..., Engine]) -> None:
    engine = load(block_size=4, running_max=1, kv_tokens=256)
    engine.submit(request("a", words(10), max_tokens=20))
    engine.step()
    engine.submit(request("b", words(9), max_tokens=20))
    loads = engine.loads()
    assert (loads.running, loads.waiting, loads.used_tokens, loads.pool_tokens) == (1, 1, 12, 256)
    # Two of its blocks are cached already.
    assert loads.waiting_uncached_tokens == 1
    while engine.has_work:
        engine.step()
    loads = engine.loads()
    assert (loads.running, loads.waiting, loads.used_tokens, loads.generated_per_second) == (0, 0, 0, 0.0)
    assert pytest.approx(8 / 19) == loads.cache_hit_rate


def test_the_cache_can_be_flushed_when_nothing_runs(load: Callable[..., Engine], finish: Finish) -> None:
    engine = load(block_size=4)
    finish(engine, [request("a", words(20))])
    engine.submit(request("b", words(20)))
    assert not engine.flush_cache()
    engine.abort("b")
    assert engine.flush_cache()
    assert finish(engine, [request("c", words(20))])["c"].cached_tokens == 0


def test_stepping_an_idle_engine_does_nothing(load: Callable[..., Engine]) -> None:
    assert load().step() == []


def test_the_engines_page_shows_the_plans_that_are_made(load: Callable[..., Engine]) -> None:
    engine = load(block_size=4, chunk_tokens=8, kv_tokens=64)
    run, seen = engine._runner.run, []

    def recorded(plan: StepPlan) -> list[SampledTokens]:
        tables = {one.id: " ".join(map(str, one.blocks.ids)) for one in engine.scheduler.running}
        seen.append((str(plan), ", ".join(f"{name} `{ids}`" for name, ids in sorted(tables.items()))))
        return run(plan)

    engine._runner.run = recorded  # type: ignore[method-assign]
    engine.submit(Request(id="a", prompt=list(range(20, 30)), params=greedy(3)))
    engine.step()
    engine.submit(Request(id="b", prompt=[*range(20, 28), 99, 98, 97], params=greedy(3)))
    while engine.has_work:
        engine.step()
    page = (Path(engine_module.__file__).parent / "README.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ")[1:3] for line in page.replace(r"\|", "¦").splitlines() if re.match(r"\| \d", line)
    ]
    assert [(plan.strip("`").replace("¦", "|"), tables) for plan, tables in rows] == seen
