"""The recovery of counters: sums of the ledger's hours in a window, and how often the ledger is asked."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from gateway.quotas import counter_recovery
from gateway.quotas.counter_recovery import CounterRecovery, SpentHour, SpentUnknown, is_long, spent
from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.quota_store import Cost, Reservation
from policies.admission.limit_windows import Window
from tests.fakes.clock import FakeClock

HOUR, DAY = 3600.0, 86_400.0
NOW = datetime(2026, 11, 18, 10, 30, tzinfo=UTC).timestamp()
"""A Wednesday."""


def at(day, hour, tokens, model="m"):
    start = datetime(2026, 11, day, hour, tzinfo=UTC).timestamp()
    return SpentHour(start=start, model=model, units=(1, tokens, 0, 0, tokens, 10 * tokens))


def tokens(window, models=()):
    return Limit(unit="total_tokens", amount=24_000, window=window, models=models)


@pytest.mark.parametrize(
    ("period", "used"), [("day", 4), ("week", 6), ("month", 7)], ids=["day", "week", "month"]
)
def test_a_window_of_the_calendar_has_what_was_used_since_it_began(period, used):
    hours = [at(1, 5, 1), at(16, 0, 2), at(18, 0, 3), at(18, 10, 1)]
    meter = spent(tokens(Window.of(period, "calendar")), hours, NOW)
    assert meter.used == used


def test_a_rolling_window_begins_with_the_first_use_after_the_last_one_has_ended():
    hours = [at(16, 8, 100), at(17, 7, 10), at(17, 12, 5), at(18, 9, 2)]
    meter = spent(tokens(Window.of("day", "rolling")), hours, NOW)
    assert (meter.used, meter.mark) == (7, at(17, 12, 0).start + DAY)


def test_a_rolling_window_that_has_ended_has_nothing_used():
    assert spent(tokens(Window.of("day", "rolling")), [at(15, 8, 100)], NOW).used == 0


def test_a_smooth_window_has_emptied_since():
    """1000 an hour: of 5000 at the end of the tenth hour of the day before, and then 300 in this one."""
    window = tokens(Window.of("day"))
    assert spent(window, [at(18, 7, 5000)], NOW).used == pytest.approx(2500)
    assert spent(window, [at(18, 7, 5000), at(18, 10, 300)], NOW).used == pytest.approx(2800)
    assert spent(window, [at(17, 7, 5000)], NOW).used == 0


def test_a_limit_for_some_models_counts_those_alone():
    hours = [at(18, 1, 5, "qwen-7b"), at(18, 1, 7, "llama-8b")]
    assert spent(tokens(Window.of("day", "calendar"), ("qwen-*",)), hours, NOW).used == 5


def test_money_is_counted_as_money():
    budget = Limit(unit="spend", amount=10**9, window=Window.of("month", "calendar"))
    assert spent(budget, [at(18, 1, 5)], NOW).used == 50


def test_windows_up_to_an_hour_and_concurrency_are_not_worth_it():
    long = [is_long(tokens(Window.of(period))) for period in ("second", "minute", "hour", "day")]
    assert (long, is_long(concurrency(3))) == ([False, False, False, True], False)


class Books:
    """A ledger that counts its reads, and answers when the test lets it."""

    def __init__(self):
        self.read = []
        self.open = asyncio.Event()
        self.broken = False

    async def hours(self, scope, since):
        self.read.append(scope)
        await self.open.wait()
        if self.broken:
            raise SpentUnknown("away")
        return []


def asked(*names):
    scopes = tuple(Scope(name=name, limits=(tokens(Window.of("day")),)) for name in names)
    return Reservation(id="r", organisation="o", scopes=scopes, cost=Cost(prompt_tokens=1))


async def put_back(*_, again):
    return True


async def test_many_requests_of_an_account_read_the_ledger_once():
    books = Books()
    recovery = CounterRecovery(books)
    waiting = [asyncio.ensure_future(recovery.restore(asked("tenant:a"), put_back)) for _ in range(20)]
    await asyncio.sleep(0)
    books.open.set()
    await asyncio.gather(*waiting)
    assert books.read == ["tenant:a"]


async def test_a_request_that_leaves_keeps_no_other_from_what_it_had_begun():
    books, put = Books(), []

    async def note(organisation, scope, found, *, again):
        put.append(scope)
        return True

    recovery = CounterRecovery(books)
    leaving = asyncio.ensure_future(recovery.restore(asked("tenant:a"), note))
    await asyncio.sleep(0)
    staying = asyncio.ensure_future(recovery.restore(asked("tenant:a"), note))
    await asyncio.sleep(0)
    leaving.cancel()
    books.open.set()
    await staying
    assert put == ["tenant:a"]


async def test_a_ledger_that_does_not_answer_keeps_requests_waiting_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(counter_recovery, "WAIT_SECONDS_MAX", 0.01)
    await CounterRecovery(Books()).restore(asked("tenant:a"), put_back)


async def test_an_outage_of_the_ledger_is_logged_once(caplog):
    books = Books()
    books.broken = True
    books.open.set()
    recovery = CounterRecovery(books)
    for name in ("tenant:a", "tenant:b", "tenant:c"):
        await recovery.restore(asked(name), put_back)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_ledger_that_is_away_is_left_alone_for_a_moment():
    books, clock = Books(), FakeClock()
    books.broken = True
    books.open.set()
    recovery = CounterRecovery(books, clock=clock)
    await recovery.restore(asked("tenant:a"), put_back)
    assert not recovery.ready
    clock.now += counter_recovery.REST_SECONDS
    assert recovery.ready


@pytest.mark.parametrize("usage", [[], [at(18, 10, 5)]], ids=["new", "with usage"])
async def test_an_account_is_counted_again_after_a_loss_a_few_times(usage):
    clock, puts = FakeClock(), []

    class History(Books):
        async def hours(self, scope, since):
            return usage

    async def note(organisation, scope, found, *, again):
        puts.append(again)
        return not again

    recovery = CounterRecovery(History(), wall=lambda: NOW, clock=clock)
    await recovery.restore(asked("tenant:a"), note)
    await recovery.recount()
    assert puts == [False]
    for seconds in (*counter_recovery.RECOUNT_SECONDS, 86_400.0):
        clock.advance(seconds)
        await recovery.recount()
    assert puts == [False] + [True] * (len(counter_recovery.RECOUNT_SECONDS) if usage else 0)


async def test_the_event_loop_goes_on_while_a_long_history_is_counted(monkeypatch):
    # A request waits a second at most for the count; this test waits for the end of it.
    monkeypatch.setattr(counter_recovery, "WAIT_SECONDS_MAX", 60.0)
    counting, loop_went_on, put = threading.Event(), threading.Event(), []

    class Hours(list):
        """Hours whose count does not end before the event loop has run something else."""

        def __iter__(self):
            counting.set()
            assert loop_went_on.wait(60), "the count held up the event loop"
            return super().__iter__()

    class History(Books):
        async def hours(self, scope, since):
            return Hours(at(1 + n % 17, n % 24, 1) for n in range(counter_recovery.INLINE_HOURS_MAX + 1))

    async def others():
        while not counting.is_set():
            await asyncio.sleep(0.001)
        loop_went_on.set()

    async def note(organisation, scope, found, *, again):
        put.extend(meter.used for _, meter in found)
        return True

    limits = (tokens(Window.of("month", "calendar")),)
    reservation = Reservation(
        id="r",
        organisation="o",
        scopes=(Scope(name="tenant:a", limits=limits),),
        cost=Cost(prompt_tokens=1),
    )
    recovery = CounterRecovery(History(), wall=lambda: NOW)
    going = asyncio.create_task(others())
    await recovery.restore(reservation, note)
    await going
    assert put == [counter_recovery.INLINE_HOURS_MAX + 1]
