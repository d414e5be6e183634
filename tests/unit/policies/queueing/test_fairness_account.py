"""What tenants have received of late against their shares."""

import pytest

from policies.queueing.fairness_account import (
    HALF_SECONDS,
    TENANTS_MAX,
    WAITED_SECONDS,
    FairnessAccount,
    jain,
)


@pytest.mark.parametrize(
    ("values", "index"),
    [([], 1.0), ([0, 0], 1.0), ([5], 1.0), ([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25)],
    ids=str,
)
def test_jains_index_is_one_where_all_are_equal_and_one_nth_where_one_has_everything(values, index):
    assert jain(values) == pytest.approx(index)


def test_shares_are_due_by_weight_to_the_tenants_that_waited():
    account = FairnessAccount()
    for tenant, weight, units in (("a", 1.0, 10.0), ("b", 3.0, 30.0), ("idle", 1.0, 60.0)):
        account.record(tenant, weight, units, 100.0)
    for tenant in ("a", "b"):
        account.record_waiting(tenant, 100.0)
    found = {one.tenant: (one.share, one.due) for one in account.tenant_shares(100.0)}
    assert found == {"idle": (0.6, 0.0), "b": (0.3, 0.75), "a": (0.1, 0.25)}
    assert account.evenness(100.0) == 1.0


def test_work_fades_and_waiting_is_forgotten():
    account = FairnessAccount()
    account.record("a", 1.0, 8.0, 0.0)
    account.record_waiting("a", 0.0)
    (one,) = account.tenant_shares(HALF_SECONDS)
    assert (one.units, one.due) == (pytest.approx(4.0), 1.0)
    (one,) = account.tenant_shares(WAITED_SECONDS + 1)
    assert one.due == 0.0


def test_what_was_not_used_is_taken_back_and_nothing_is_owed():
    account = FairnessAccount()
    account.record("a", 1.0, 8.0, 0.0)
    account.record("a", 1.0, -20.0, 0.0)
    assert account.tenant_shares(0.0)[0].units == 0.0


def test_it_keeps_only_so_many():
    account = FairnessAccount()
    for number in range(TENANTS_MAX + 5):
        account.record(str(number), 1.0, 1.0, 0.0)
        account.record_waiting(str(number), 0.0)
    assert len(account.tenant_shares(0.0)) == TENANTS_MAX
