"""The retry budget against a plain model: a list of all that ever happened."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from policies.admission.retry_budget import SLOTS, RetryBudget


class AgainstAList(RuleBasedStateMachine):
    @initialize(
        share=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
        at_least=st.integers(0, 4),
        seconds=st.sampled_from([0.5, 10.0, 60.0]),
        now=st.floats(0, 1e6),
    )
    def begin(self, share, at_least, seconds, now):
        self.budget = RetryBudget(share=share, at_least=at_least, seconds=seconds)
        self.share, self.at_least, self.seconds, self.now = share, at_least, seconds, now
        self.requests, self.retries = [], []
        self.refused = 0

    def number(self, moment):
        return int(moment / (self.seconds / SLOTS))

    def within(self, moments):
        return sum(self.number(moment) > self.number(self.now) - SLOTS for moment in moments)

    def left(self):
        allowed = int(max(self.at_least, self.share * self.within(self.requests)))
        return max(0, allowed - self.within(self.retries))

    @rule(windows=st.floats(0, 2.5))
    def time_passes(self, windows):
        self.now += windows * self.seconds

    @rule(count=st.integers(1, 12))
    def requests_come(self, count):
        for _ in range(count):
            self.budget.record_request(self.now)
            self.requests.append(self.now)

    @rule()
    def one_wants_to_be_sent_again(self):
        allowed = self.left() > 0
        assert self.budget.try_spend(self.now) == allowed
        if allowed:
            self.retries.append(self.now)
        else:
            self.refused += 1

    @rule()
    def one_is_taken_and_not_sent(self):
        if self.budget.try_spend(self.now):
            self.budget.give_back(self.now)
        else:
            self.refused += 1

    @invariant()
    def as_the_list_says(self):
        if hasattr(self, "budget"):
            assert self.budget.remaining(self.now) == self.left()
            assert (self.budget.spent, self.budget.refused) == (len(self.retries), self.refused)
            assert len(self.budget._slots) <= SLOTS


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=30)
