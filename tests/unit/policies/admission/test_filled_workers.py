"""Which workers urgent classes leave to the others, and what of an engine's slots batch work leaves."""

from math import inf

import pytest

from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import (
    FilledWorkers,
    filled_beside_tenants,
    filled_workers,
    slots_allowed,
)
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals
from policies.admission.window_room import leaves_one_open
from policies.admission.window_sizes import window_for_targets
from workers.worker import Speed

VOICE, CODE, CHAT, BATCH = 0.15, 0.2, 0.5, 2.0
FILLED = FilledWorkers(last_open="b", tokens=9000, patient_seconds=0.3)


def of(demand, workers="abcd", tokens_max=16_384):
    return filled_workers(demand, list(workers), ms_per_token=0.02, tokens_max=tokens_max)


OPEN_SPEED = Speed(fixed_ms=50.0, ms_per_token=0.02)


def window(filled=FILLED, open_speed=OPEN_SPEED):
    return window_for_targets(
        {VOICE, CHAT, BATCH},
        contended=False,
        ms_per_token=0.02,
        tokens_max=16_384,
        batch_seconds=BATCH,
        filled=filled,
        open_speed=open_speed,
    )


def test_chats_and_batch_work_fill_what_voice_and_code_leave():
    filled = of({VOICE: 10_000.0, CODE: 20_000.0, CHAT: 90_000.0, BATCH: inf})
    # 0.6 seconds of prompts come in a second; they may take half of the time of the open workers.
    assert filled == FilledWorkers(last_open="b", tokens=15_000, patient_seconds=0.3)


def test_beside_batch_work_alone_chats_are_urgent():
    assert of({CHAT: 1000.0, BATCH: 5000.0}) == FilledWorkers(
        last_open="a", tokens=16_384, patient_seconds=1.0
    )


@pytest.mark.parametrize(
    ("demand", "workers"),
    [
        ({VOICE: 10.0, BATCH: 10.0}, "a"),
        ({VOICE: 10.0, BATCH: 10.0}, ""),
        ({VOICE: 10.0}, "abcd"),
        ({VOICE: 10.0, CODE: 10.0}, "abcd"),
        ({VOICE: 80_000.0, BATCH: 10.0}, "abcd"),
        ({VOICE: inf, BATCH: 10.0}, "abcd"),
    ],
    ids=["one worker", "slots not known", "one class", "none patient", "none to spare", "demand not known"],
)
def test_no_worker_is_filled_where_none_can_be_spared(demand, workers):
    assert of(demand, workers) is None


def test_the_more_urgent_work_comes_the_narrower_is_the_window_of_others_on_open_workers():
    shares = [of({VOICE: tokens, BATCH: 10.0}, "ab").narrow_share for tokens in (5e3, 17e3, 20e3, 24e3)]
    assert shares == pytest.approx([0.67, 0.67, 0.52, 0.32])
    found = window(of({VOICE: 20e3, BATCH: 10.0}, "ab"))
    assert found.narrow == int((0.52 * 150 - 50) / 0.02)


def test_an_urgent_request_is_sent_to_an_open_worker_also_where_it_is_expected_a_little_late():
    assert window().wide == (1.2 * 150 - 50) / 0.02
    assert window(None).wide < window().wide


def test_the_windows_of_open_workers_hardly_change_where_only_the_two_constants_of_a_speed_do():
    # Both speeds take 110 ms for 3,000 tokens.
    windows = [
        window(open_speed=Speed(fixed_ms=fixed, ms_per_token=(110 - fixed) / 3000)) for fixed in (35, 65)
    ]
    assert windows[0].narrow == pytest.approx(windows[1].narrow, rel=0.15)


def test_an_engine_that_takes_longer_than_the_target_for_any_prompt_is_still_sent_several():
    assert window(open_speed=Speed(fixed_ms=500.0, ms_per_token=0.02)).wide == (1.2 * 150 - 75) / 0.02


def test_only_filled_workers_have_a_long_window_for_patient_classes():
    found = window()
    assert found.tokens("b", is_narrow=True, patient=True) == found.narrow
    assert found.tokens("c", is_narrow=False, patient=True) == 9000
    assert found.tokens("c", is_narrow=False, patient=False) == found.wide
    assert window(None).tokens("c", is_narrow=True, patient=False) == window(None).narrow


def test_batch_work_leaves_a_part_of_a_filled_workers_window_to_patient_interactive_classes():
    assert window().tokens("c", is_narrow=True, patient=True) == 0.85 * 9000


def test_a_short_prompt_of_a_patient_class_may_go_anywhere_and_a_long_one_to_filled_workers():
    assert window().choices([("a", 100), ("c", 100)], patient=True) == [True, True]
    assert window().choices([("a", 9000), ("c", 9000)], patient=True) == [False, True]


def test_an_urgent_request_goes_to_a_filled_worker_only_for_what_is_cached_there():
    assert window().choices([("a", 500), ("b", 400), ("c", 400)], patient=False) == [True, True, False]
    assert window().choices([("a", 500), ("b", 400), ("c", 300)], patient=False) == [True, True, True]


def test_a_request_without_a_choice_may_go_where_it_can():
    assert window().choices([("a", 9000)], patient=True) == [True]
    assert window().choices([("c", 500)], patient=False) == [True]


@pytest.mark.parametrize(
    ("slots", "allowed"), [(256, 230), (1, 1), (4, 3), (None, inf)], ids=["many", "one", "few", "not known"]
)
def test_batch_work_leaves_a_tenth_of_the_slots(slots, allowed):
    assert slots_allowed(slots) == allowed
    assert window().slots_allowed(slots, background=True) == allowed


def test_for_other_classes_slots_are_not_looked_at():
    assert window().slots_allowed(256, background=False) == inf


def test_patient_classes_leave_a_few_slots_of_open_workers_to_urgent_ones():
    filled = FilledWorkers(last_open="a", tokens=1000, patient_seconds=0.3)
    of_classes = DispatchWindow(narrow=100, wide=1000, counts_own=True, filled=filled)

    def allowed(worker, *, patient):
        for_urgent = of_classes.keeps_for_urgent(worker, patient=patient)
        return of_classes.slots_allowed(256, background=False, for_urgent=for_urgent)

    assert allowed("a", patient=True) == 250
    assert allowed("a", patient=False) == allowed("b", patient=True) == inf


def test_only_a_request_of_a_patient_class_leaves_a_worker_without_a_slot_for_one_with_a_slot():
    assert not window().waits_for_slots(patient=True)
    assert window().waits_for_slots(patient=False)
    assert DispatchWindow(narrow=100, wide=1000, contended=True).waits_for_slots(patient=True)


def test_a_tenant_that_crowds_or_has_most_of_the_work_leaves_slots_to_others():
    of_one_class = DispatchWindow(narrow=100, wide=1000, contended=True)
    for leaves in ({"is_narrow": True}, {"work_share": 0.6}):
        assert of_one_class.slots_allowed(256, background=False, **leaves) == 230
    assert of_one_class.slots_allowed(256, background=True, is_narrow=True) == inf


MANY = tuple(f"w{number:02}" for number in range(16))


def beside(tokens_per_second, prompt_tokens, workers):
    return filled_beside_tenants(
        (tokens_per_second, tokens_per_second * prompt_tokens),
        workers,
        target_seconds=CHAT,
        ms_per_token=0.02,
        tokens_max=16_384,
    )


BESIDE_TENANTS = beside(1000.0, 500, "abcd")


@pytest.mark.parametrize(
    ("tokens_per_second", "prompt_tokens", "workers", "last_open"),
    [
        (0.0, 0, "abcd", "a"),
        (12_000.0, 500, "abcd", "a"),
        (13_000.0, 500, "abcd", None),
        (12_000.0, 9000, "abcd", None),
        (0.0, 0, "abc", None),
        (13_000.0, 500, MANY, "w01"),
        (12_000.0, 9000, MANY, "w01"),
        (49_000.0, 500, MANY, "w03"),
        (51_000.0, 500, MANY, None),
        (inf, 500, MANY, None),
    ],
)
def test_beside_crowding_tenants_as_many_workers_stay_open_as_the_others_need_up_to_a_quarter(
    tokens_per_second, prompt_tokens, workers, last_open
):
    found = beside(tokens_per_second, prompt_tokens, workers)
    assert (found.last_open if found is not None else None) == last_open


def beside_tenants(*, contended=True, targets=(CHAT,), flood=NONE_WAITING):
    return window_for_targets(
        targets,
        contended=contended,
        ms_per_token=0.02,
        tokens_max=16_384,
        batch_seconds=BATCH,
        flood=flood,
        filled=BESIDE_TENANTS,
    )


def test_a_tenant_that_crowds_fills_workers_and_sends_short_prompts_alone_to_open_ones():
    found = beside_tenants()
    assert found.is_patient(CHAT, is_narrow=True)
    assert found.is_patient(CHAT, work_share=0.3)
    assert found.tokens("a", is_narrow=True, patient=True) == int(0.085 * 500 / 0.02)
    assert found.tokens("b", is_narrow=True, patient=True) == 16_384
    assert found.choices([("a", 2000), ("b", 9000)], patient=True) == [True, True]
    assert found.choices([("a", 9000), ("b", 9000)], patient=True) == [False, True]
    assert found.choices([("a", 9000)], patient=True) == [True]


def test_a_standing_flood_of_long_prompts_has_less_ahead_of_open_workers():
    open_tokens = [
        beside_tenants(flood=flood).filled.open_tokens
        for flood in (NONE_WAITING, WaitingTotals(1000, 500_000), WaitingTotals(100, 1_200_000))
    ]
    assert open_tokens == [2125, 2125, 725]


def test_beside_tenants_that_crowd_others_go_anywhere_but_with_prompts_longer_than_the_window():
    found = beside_tenants()
    assert not found.is_patient(CHAT, work_share=0.2)
    assert found.choices([("a", 9000), ("b", 100)], patient=False) == [True, True]
    assert found.choices([("a", 48_000), ("b", 48_000)], patient=False) == [False, True]
    assert found.tokens("a", is_narrow=False, patient=False) == found.wide


def test_a_prompt_for_a_worker_that_is_never_idle_takes_any_space():
    found = beside_tenants()
    assert found.taken_by(9000, is_narrow=True, patient=True) == 1
    assert found.taken_by(48_000, is_narrow=False, patient=False) == 1


def test_a_crowd_leaves_a_filled_worker_while_no_open_worker_has_room_for_others():
    found = beside_tenants()
    left_open = found.open_beside(is_narrow=True, work_share=0.6)
    assert left_open == found.wide
    busy_with_long_prompts = [48_000, 48_000, 48_000, 0]
    assert not leaves_one_open(busy_with_long_prompts, left_open, background=False)
    assert leaves_one_open([found.wide, 48_000, 48_000, 0], left_open, background=False)
    assert found.open_beside(is_narrow=False, work_share=0.2) is None


def test_before_any_request_waits_a_tenant_with_most_of_the_work_is_held_back_on_open_workers_alone():
    found = beside_tenants(contended=False)
    assert found.is_patient(CHAT, work_share=0.6)
    assert not found.is_patient(CHAT, work_share=0.4)
    assert found.tokens("a", is_narrow=False, patient=True) == int(0.2 * 500 / 0.02)
    assert found.tokens("b", is_narrow=False, patient=True) == found.wide == 16_384
    assert found.taken_by(9000, is_narrow=False, patient=True) == 1


def test_the_first_long_prompts_of_a_flood_leave_open_workers_idle_unless_more_of_them_is_cached_there():
    found = beside_tenants(contended=False)
    assert found.choices([("a", 9000), ("b", 9000)], patient=True) == [False, True]
    assert found.choices([("a", 8999), ("b", 9000)], patient=True) == [True, True]
    assert found.choices([("a", 2000), ("b", 1000)], patient=True) == [True, True]
    assert found.choices([("a", 9000)], patient=True) == [True]
    assert found.choices([("a", 48_000), ("b", 48_000)], patient=False) == [True, True]


def test_tenants_fill_no_worker_beside_batch_work_of_others():
    assert beside_tenants(targets=(BATCH,)).filled is None
