"""The call that a worker gets: its fields, and when a whole answer is asked for as a stream."""

import msgspec
import pytest

from gateway.dispatch.worker_calls import SAMPLE_SECONDS, SAMPLED_EVERY, SAMPLES_LEARNT
from gateway.domain.request import Surface
from tests.fakes.dispatch_stage import DispatchStage, inference, prompt_of, tenant

WHOLE = inference(stream=False, fields={"messages": msgspec.Raw(b"[]")})


@pytest.fixture
def stage():
    made = DispatchStage("a")
    made.worker_calls.aggregates_streams = True
    made.worker("a").response_shapes.learn(Surface.CHAT, b'{"choices":[{"index":0}]}')
    return made


async def call(stage, *, sequence=1, prompt=None, **context):
    pending = stage.pending(stage.context(**context), prompt)
    pending.sequence = sequence
    placement = await stage.acquisition.acquire(pending)
    return stage.worker_calls.make(pending, placement)


def learn_speed(stage):
    for _ in range(SAMPLES_LEARNT):
        stage.fleet.learn_first_token(stage.worker("a"), tokens=100, ttft_ms=30.0)


async def test_a_stream_is_sent_to_the_worker_as_it_came(stage):
    made = await call(stage)
    assert (made.stream, made.path, made.model) == (True, "v1/chat/completions", "m")


async def test_a_surface_at_the_workers_root_has_no_version_in_its_path(stage):
    asked = inference(surface=Surface.TOKENIZE, stream=False)
    assert (await call(stage, request=asked)).path == "tokenize"


async def test_the_salt_is_that_of_the_tenants_isolation_group(stage):
    assert (await call(stage, tenant=tenant(group="g"))).cache_salt == "salt of g"


async def test_a_bound_that_the_gateway_sets_goes_to_the_worker(stage):
    made = await call(stage, prompt=prompt_of(output_tokens_max=7))
    assert bytes(made.fields["max_tokens"]) == b"7"


async def test_a_whole_answer_may_take_as_long_as_whole_answers_take(stage):
    stage.worker_calls.aggregates_streams = False
    made = await call(stage, request=WHOLE)
    assert (made.stream, made.first_byte_seconds_max) == (False, 600.0)


@pytest.mark.parametrize(("orders", "priority"), [(True, 2), (False, None)])
async def test_a_level_goes_only_to_workers_that_order_by_it(stage, orders, priority):
    stage.worker("a").priority = orders
    assert (await call(stage)).priority == priority


async def test_a_whole_answer_is_streamed_while_the_workers_speed_is_learnt(stage):
    made = await call(stage, request=WHOLE)
    assert made.stream
    assert bytes(made.fields["stream"]) == b"true"


async def test_a_whole_answer_of_a_well_known_worker_is_not_streamed(stage):
    learn_speed(stage)
    assert not (await call(stage, request=WHOLE)).stream


async def test_one_whole_answer_in_so_many_is_streamed_all_the_same(stage):
    learn_speed(stage)
    assert (await call(stage, request=WHOLE, sequence=SAMPLED_EVERY)).stream


async def test_a_worker_streams_no_two_whole_answers_for_its_speed_in_a_row(stage):
    learn_speed(stage)
    pending = stage.pending(stage.context(request=WHOLE))
    placement = await stage.acquisition.acquire(pending)
    streamed = []
    for since in (0.0, 0.5 * SAMPLE_SECONDS, SAMPLE_SECONDS):
        pending.sequence += SAMPLED_EVERY
        later = msgspec.structs.replace(placement, placed_at=placement.placed_at + since)
        streamed.append(stage.worker_calls.make(pending, later).stream)
    assert streamed == [True, False, True]


async def test_whole_answers_are_streamed_while_requests_wait(stage):
    learn_speed(stage)
    stage.worker_calls._requests_wait = lambda queue: queue == "m"
    assert (await call(stage, request=WHOLE)).stream


async def test_a_whole_answer_of_unknown_shape_is_not_streamed(stage):
    stage.worker("a").response_shapes.forget()
    assert not (await call(stage, request=WHOLE)).stream
