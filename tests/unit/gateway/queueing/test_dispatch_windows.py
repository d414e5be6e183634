"""The window ahead of a worker follows the tightest service class in sight."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.queueing.dispatch_windows import KEPT_SECONDS, DispatchWindows, OwnDispatchWindows
from gateway.queueing.queued_request import QueuedRequest
from policies.admission.traffic_in_sight import SIGHT_SECONDS
from policies.latency_model import PrefillFit
from policies.service_class import BATCH, CHAT, VOICE
from tests.fakes.dispatch_stage import DispatchStage
from workers.worker import Speed

MOST = 16_384


def stage_of(workers):
    made = DispatchStage(*workers)
    for worker in made.fleet:
        worker.learnt.own.fit = fit = PrefillFit(fixed_ms=1.0, ms_per_token=0.02, error_ms=1.0, samples=1000)
        worker.learnt._speed = fit.speed(worker.speed)
    return made


@pytest.fixture
def stage():
    return stage_of("ab")


@pytest.fixture
def windows(stage):
    return DispatchWindows(stage.fleet, MOST, BATCH.ttft_seconds, stage.clock)


@pytest.fixture
def with_batch(windows):
    windows.note_request("m", BATCH.ttft_seconds, "acme")
    return windows


def test_without_any_class_in_sight_it_is_as_wide_as_the_settings_allow(windows):
    window = windows.of("m")
    assert (window.narrow, window.wide, window.open) == (MOST, MOST, None)


@pytest.mark.parametrize("alone", [BATCH, CHAT, VOICE])
def test_while_one_class_is_alone_in_sight_nothing_has_to_be_protected(windows, alone):
    windows.note_request("m", alone.ttft_seconds, "acme")
    window = windows.of("m")
    assert (window.narrow, window.wide, window.open) == (MOST, MOST, None)


def test_the_tightest_class_in_sight_decides(windows):
    windows.note_request("m", BATCH.ttft_seconds, "acme")
    windows.note_request("m", CHAT.ttft_seconds, "acme")
    windows.note_request("m", VOICE.ttft_seconds, "acme")
    window = windows.of("m")
    assert (window.narrow, window.wide, window.open) == (2250, 4500, 1125)


def test_a_tenant_with_most_of_the_work_contends_once_its_prompts_are_longer_than_the_settings_allow(windows):
    windows.note_request("m", CHAT.ttft_seconds, "short", tokens=500)
    windows.note_request("m", CHAT.ttft_seconds, "long", tokens=MOST)
    assert not windows._in_sight.contended(("m",), windows._clock())
    windows.note_request("m", CHAT.ttft_seconds, "long", tokens=MOST + 1)
    assert windows.of("m").contended


def test_a_tenant_that_begins_to_crowd_is_noticed_within_a_tenth_of_a_second(stage, windows):
    windows.note_request("m", CHAT.ttft_seconds, "chats", tokens=100)
    assert not windows.of("m").contended
    for _ in range(3):
        windows.note_request("m", CHAT.ttft_seconds, "flood", tokens=9000, crowds=True)
    stage.clock.advance(0.1)
    assert windows.of("m").contended


def test_a_tighter_class_counts_from_its_first_request_on(windows):
    windows.note_request("m", CHAT.ttft_seconds, "acme")
    before = windows.of("m").narrow
    windows.note_request("m", VOICE.ttft_seconds, "acme")
    assert windows.of("m").narrow < before


def test_a_class_that_sends_no_more_is_out_of_sight_after_a_while(stage, windows, with_batch):
    windows.note_request("m", VOICE.ttft_seconds, "acme")
    assert windows.of("m").narrow < MOST
    stage.clock.advance(SIGHT_SECONDS + KEPT_SECONDS)
    assert windows.of("m").narrow == MOST


def test_other_models_of_the_same_workers_are_in_sight(stage, windows):
    stage.join("c", models=("m", "n"))
    windows.note_request("m", BATCH.ttft_seconds, "acme")
    windows.note_request("n", CHAT.ttft_seconds, "acme")
    before = windows.of("m").narrow
    assert before < MOST
    windows.note_request("n", VOICE.ttft_seconds, "acme")
    assert windows.of("m").narrow < before


def test_a_gateway_that_decides_alone_among_several_has_its_part(stage, windows, with_batch):
    windows.note_request("m", VOICE.ttft_seconds, "acme")
    queue = stage.queue
    window = OwnDispatchWindows(queue, windows)
    assert window.of("m") == windows.of("m")
    queue.gateways = 2
    assert (window.of("m").narrow, window.of("m").wide, window.of("m").open) == (1125, 2250, 562)
    queue.shared = True
    assert window.of("m") == windows.of("m")


@pytest.fixture
def busy(stage, windows):
    """Voice at 5,000 tokens a second, and batch work, for a while."""
    for _ in range(100):
        windows.note_request("m", BATCH.ttft_seconds, "acme", tokens=1000)
        windows.note_request("m", VOICE.ttft_seconds, "acme", tokens=500)
        stage.clock.advance(0.1)
    return windows


def have_slots(stage, *slots):
    for worker, count in zip(stage.fleet, slots, strict=True):
        worker.report = replace(worker.report, slots=count)


@pytest.mark.parametrize(("slots", "filled"), [((8, 8), True), ((8, None), False)])
def test_workers_are_filled_if_all_of_them_report_their_slots(stage, busy, slots, filled):
    busy.count_gateways(SimpleNamespace(gateways=1))
    have_slots(stage, *slots)
    found = busy.of("m").filled
    assert (found is not None) is filled
    assert found is None or found.last_open == "a"


@pytest.mark.parametrize("slower", ["a", "b"])
def test_the_windows_of_open_workers_follow_the_speed_of_these_alone(stage, busy, slower):
    busy.count_gateways(SimpleNamespace(gateways=1))
    have_slots(stage, 8, 8)
    stage.worker(slower).learnt._speed = Speed(fixed_ms=50.0, ms_per_token=0.02)
    fixed_ms = {"a": 50.0, "b": 1.0}[slower]
    assert busy.of("m").wide == pytest.approx((1.2 * 1000 * VOICE.ttft_seconds - fixed_ms) / 0.02, abs=1)


@pytest.mark.parametrize(("gateways", "filled"), [(1, True), (6, False)])
def test_each_gateway_counts_its_part_of_what_urgent_classes_need(stage, busy, gateways, filled):
    busy.count_gateways(SimpleNamespace(gateways=gateways))
    have_slots(stage, 8, 8)
    assert (busy.of("m").filled is not None) is filled


@pytest.mark.parametrize(
    ("workers", "gateways", "last_open"),
    [("abcd", 1, "a"), ("abcd", 20, None), ("abc", 1, None), ("abcd", None, None)],
    ids=["four", "others need too much", "three", "cells"],
)
def test_workers_are_filled_beside_crowding_tenants(workers, gateways, last_open):
    stage = stage_of(workers)
    windows = DispatchWindows(stage.fleet, MOST, BATCH.ttft_seconds, stage.clock)
    for _ in range(60):
        windows.note_request("m", CHAT.ttft_seconds, "chats", tokens=100)
        windows.note_request("m", CHAT.ttft_seconds, "flood", tokens=9000, crowds=True)
        stage.clock.advance(0.1)
    if gateways is not None:
        windows.count_gateways(SimpleNamespace(gateways=gateways))
    found = windows.of("m")
    assert found.contended
    assert (found.filled.last_open if found.filled is not None else None) == last_open


def test_no_worker_is_kept_from_a_tenant_that_is_alone_again():
    stage = stage_of("abcd")
    windows = DispatchWindows(stage.fleet, MOST, BATCH.ttft_seconds, stage.clock)
    windows.count_gateways(SimpleNamespace(gateways=1))
    for tenant, tokens in (("chats", 100), ("flood", 9000)):
        for _ in range(60):
            windows.note_request("m", CHAT.ttft_seconds, tenant, tokens=tokens, crowds=tenant == "flood")
            stage.clock.advance(0.1)
    assert windows.of("m").filled is not None
    for _ in range(60):
        windows.note_turn("m", CHAT.ttft_seconds, "flood", tokens=9000, crowds=True)
        stage.clock.advance(0.1)
    assert windows.of("m").filled is None


@pytest.mark.parametrize(("gateways", "shares"), [(1, [0.0, 0.75]), (2, [0.75, 0.75])])
def test_a_tenant_has_a_share_of_the_work_once_a_worker_computes_it_for_longer_than_the_target(
    stage, windows, gateways, shares
):
    windows.count_gateways(SimpleNamespace(gateways=gateways))
    windows.note_request("m", CHAT.ttft_seconds, "others", tokens=7000)
    windows.note_request("m", CHAT.ttft_seconds, "chats", tokens=21_000)
    assert [windows.work_share("m", "chats", target) for target in (CHAT.ttft_seconds, 0.2)] == shares


def test_long_prompts_beside_a_flood_crowd_by_their_share_of_what_the_workers_compute(stage, windows):
    windows.note_request("m", CHAT.ttft_seconds, "flood", tokens=900_000, crowds=True)
    windows.note_request("m", CHAT.ttft_seconds, "long", tokens=MOST)
    assert windows._in_sight.contended(("m",), windows._clock())
    windows.note_request("m", CHAT.ttft_seconds, "long", tokens=3 * MOST + 1)
    assert not windows._in_sight.contended(("m",), windows._clock())


def test_slots_of_the_settings_go_before_those_that_a_worker_reports(stage):
    worker = next(iter(stage.fleet))
    worker.report = replace(worker.report, slots=8)
    assert worker.slots == 8
    worker.known_slots = 4
    assert worker.slots == 4


def test_batch_work_gets_the_narrow_window(stage, windows, with_batch):
    windows.note_request("m", VOICE.ttft_seconds, "acme")
    window, room = OwnDispatchWindows(stage.queue, windows), stage.rooms.of("m")
    room.ticket(QueuedRequest(tenant="acme", cost=1.0))
    assert window.is_narrow(room, "acme", background=True)
    assert not window.is_narrow(room, "acme", background=False)
