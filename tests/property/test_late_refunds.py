"""Late refunds of a smooth window: how far they may exceed what a charge has left, and that nothing else does.

The exact bucket knows what is left of each charge, and a window knows its sum alone. A refund is wrong by what
refunds of earlier charges have freed since its own charge, at most; all wrong refunds together are never more than
was reserved and not used. A tenant that cancels its longest requests late may so get these tokens a second time.
"""

from hypothesis import given
from hypothesis import strategies as st

from policies.admission.limit_windows import Window, WindowUsage

AMOUNT, WINDOW = 12.0, Window.of("minute")
RATE = AMOUNT / WINDOW.seconds
EPSILON = 1e-6

steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 5.0, 20.0, 59.0])),
        st.tuples(st.just("charge"), st.integers(1, 12)),
        st.tuples(st.just("refund"), st.integers(0, 30), st.integers(0, 12)),
    ),
    max_size=40,
)


class Bucket:
    """A window, and beside it what is left of each of its charges."""

    def __init__(self):
        self.now, self.usage = 0.0, WindowUsage()
        self.left, self.held = [], {}
        self.freed = []  # (number of the charge, amount) of each refund
        self.wrong = self.unused = 0.0

    def wait(self, seconds):
        self.now += seconds
        self.usage = WINDOW.current(self.usage, AMOUNT, self.now, self.now)
        drained = RATE * seconds
        for number, left in enumerate(self.left):
            self.left[number] = left - min(left, drained)
            drained -= min(left, drained)

    def charge(self, cost):
        if WINDOW.wait(self.usage, AMOUNT, self.now, cost):
            return
        self.usage = WINDOW.charge(self.usage, self.now, cost)
        receipt = WINDOW.receipt(self.usage, AMOUNT, self.now)
        self.held[len(self.left)] = float(cost), receipt, len(self.freed)
        self.left.append(float(cost))

    def refund(self, which, actual):
        if not self.held:
            return
        number = sorted(self.held)[which % len(self.held)]
        charged, receipt, freed_before = self.held.pop(number)
        actual = min(float(actual), charged)
        before = self.usage.used
        self.usage = WINDOW.settled(
            self.usage, AMOUNT, self.now, charged=charged, actual=actual, receipt=receipt
        )
        refunded = before - self.usage.used
        exact = min(charged - actual, self.left[number])
        wrong = max(0.0, refunded - exact)
        earlier = sum(amount for other, amount in self.freed[freed_before:] if other < number)
        assert wrong <= earlier + EPSILON
        self.left[number] -= exact
        self.freed.append((number, refunded))
        self.wrong += wrong
        self.unused += charged - actual


@given(steps)
def test_a_refund_is_wrong_by_no_more_than_earlier_charges_were_refunded_meanwhile(done):
    bucket = Bucket()
    for name, *values in done:
        getattr(bucket, name)(*values)
        assert bucket.usage.used >= sum(bucket.left) - bucket.wrong - EPSILON
        assert bucket.wrong <= bucket.unused + EPSILON


def test_without_refunds_of_earlier_charges_a_late_refund_is_exact():
    bucket = Bucket()
    bucket.charge(6)
    bucket.charge(6)
    bucket.wait(45.0)
    bucket.refund(1, 0)
    assert bucket.wrong == 0.0
    assert bucket.usage.used == sum(bucket.left) == 0.0


def test_the_worst_case_gives_a_tenant_what_it_had_reserved_and_not_used():
    bucket = Bucket()
    bucket.charge(6)
    bucket.charge(6)
    bucket.refund(0, 0)
    bucket.wait(30.0)
    # All of the second charge has drained, and its receipt does not know.
    bucket.charge(6)
    bucket.refund(0, 0)
    assert bucket.wrong == 6.0 == bucket.unused / 2
