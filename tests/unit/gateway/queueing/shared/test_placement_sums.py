"""The placements that are in Redis as sums: what is reported of them, and what remains for the other gateways."""

from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.queue_messages import SharedTicket
from policies.others_load import NO_TOTALS, LoadTotals


def ticket(number, kv_tokens=10):
    return SharedTicket(id=f"g:{number}", queue="m", tenant="a", weight=1.0, cost=1.0, kv_tokens=kv_tokens)


def test_a_change_is_reported_once_with_the_sums_as_they_are_then():
    places = LocalPlacements()
    places.put_in_sums(ticket(1), "w0", 5)
    places.put_in_sums(ticket(2), "w0", 7)
    places.put_in_sums(ticket(3), "w1", 1)
    places.note_first_token(ticket(1))
    assert places.sums.take_changes(9) == {"w0": LoadTotals(7, 2, 20), "w1": LoadTotals(1, 1, 10)}
    assert places.sums.take_changes(9) == {}
    places.drop(ticket(2))
    assert places.sums.take_changes(9) == {"w0": LoadTotals(0, 1, 10)}
    places.drop(ticket(1))
    places.drop(ticket(1))
    assert places.sums.take_changes(9) == {"w0": NO_TOTALS}


def test_a_report_has_a_bounded_number_of_workers_and_the_next_one_has_the_rest():
    places = LocalPlacements()
    for number in range(5):
        places.put_in_sums(ticket(number), f"w{number}", 1)
    first, second = places.sums.take_changes(3), places.sums.take_changes(3)
    assert (len(first), len(second)) == (3, 2)
    assert first.keys() | second.keys() == {f"w{number}" for number in range(5)}


def test_tokens_are_unreported_until_the_reply_to_their_report_has_come_or_they_are_computed():
    places = LocalPlacements()
    sums = places.sums
    places.put_in_sums(ticket(1), "w0", 5)
    sums.take_changes(9)
    places.put_in_sums(ticket(2), "w0", 7)
    assert sums.unreported_tokens("w0") == 12
    sums.note_reply()
    assert sums.unreported_tokens("w0") == 7
    places.note_first_token(ticket(1))
    places.note_first_token(ticket(2))
    assert sums.unreported_tokens("w0") == sums.unreported_tokens("w1") == 0


def test_of_the_loads_in_redis_only_what_was_reported_is_this_gateways_share():
    places = LocalPlacements()
    places.put(ticket(1), "w0", 5)
    places.put_in_sums(ticket(2), "w0", 7)
    total = LoadTotals(100, 9, 500)
    assert places.others({"w0": total}) == {"w0": LoadTotals(95, 8, 490)}
    places.sums.take_changes(9)
    assert places.others({"w0": total}) == {"w0": LoadTotals(88, 7, 480)}
    places.forget_sums()
    assert places.others({"w0": total}) == {"w0": LoadTotals(88, 7, 480)}
    for number in (1, 2):
        places.drop(ticket(number))
    assert places.others({"w0": total}) == {"w0": total}
    assert (list(places), places.sums.take_changes(9)) == ([], {})
