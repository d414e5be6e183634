"""The tokens that a request is charged for."""

from gateway.dispatch.charged_tokens import WARNED_SECONDS, ImpossibleUsage, tokens_to_charge
from gateway.domain.token_usage import ChargedTokens, PromptDetails, TokenUsage
from gateway.telemetry.progress import Progress
from tests.fakes.answer_tallies import tally_of
from tests.fakes.clock import FakeClock
from tests.fakes.dispatch_stage import DispatchStage, prompt_of


def progress(**state):
    made = Progress("req-1", "chat/completions", FakeClock(), lambda: 1_700_000_000.0)
    made.prompt_tokens = 60
    for name, value in state.items():
        setattr(made, name, value)
    return made


def charged(made):
    tokens = tokens_to_charge(made)
    return tokens and (tokens.prompt_tokens, tokens.cached_tokens, tokens.output_tokens)


def test_tokens_to_charge_follow_the_last_reported_usage():
    details = PromptDetails(cached_tokens=40)
    made = progress(
        usage=TokenUsage(prompt_tokens=64, completion_tokens=6, prompt_tokens_details=details),
        own_count=ChargedTokens(prompt_tokens=1),
    )
    assert charged(made) == (64, 40, 6)
    made.usage = TokenUsage(prompt_tokens=10, completion_tokens=None)
    assert charged(made) == (10, None, 0)
    made.discard_attempt()
    assert charged(made) is None


def test_a_refused_request_is_charged_no_tokens():
    assert charged(progress(dispatched=True, worker_refused=True)) == (0, None, 0)


def test_an_answer_without_usage_is_charged_by_the_gateways_own_count():
    own = ChargedTokens(prompt_tokens=60, output_tokens=9)
    assert charged(progress(dispatched=True, own_count=own)) == (60, None, 9)


def test_a_dispatched_request_without_a_count_is_charged_its_prompt_and_its_frames():
    assert charged(progress(dispatched=True, tally=tally_of(frames=3))) == (60, None, 3)


def test_a_request_that_was_never_dispatched_is_charged_nothing():
    assert charged(progress()) is None


def test_a_worker_with_impossible_counts_is_warned_of_once_a_minute(caplog):
    stage = DispatchStage("a")
    ctx, clock = stage.context(), stage.clock
    usage, check = TokenUsage(prompt_tokens=2**39, completion_tokens=1), ImpossibleUsage(clock)

    def report(worker="a"):
        made = progress(usage=usage, worker=worker)
        check.forget(ctx, prompt_of(), made)
        assert (made.usage, made.usage_impossible) == (None, True)
        return len(caplog.records)

    assert [report(), report(), report("b")] == [1, 1, 2]
    clock.advance(WARNED_SECONDS)
    assert report() == 3
