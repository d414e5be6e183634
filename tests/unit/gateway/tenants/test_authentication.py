"""Authentication: which keys are accepted, why others are refused, and which addresses have to wait."""

import pytest

from gateway.domain.errors import (
    AccountDisabled,
    AddressNotAllowed,
    KeysUnavailable,
    ScopeNotAllowed,
    TooManyFailures,
    Unauthenticated,
)
from gateway.domain.tenant import Plan, Tenant
from gateway.settings.types import Network, address_of
from gateway.tenants.auth_throttle import ADDRESSES_MAX, AuthThrottle
from gateway.tenants.authentication import Authentication
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey

TENANT = Tenant(id="acme", organisation="acme", key_id="k", plan=Plan(), group="")
HERE = address_of("192.0.2.1")


class Directory:
    """One key opens a tenant, one raises what it is told."""

    def __init__(self, tenant=TENANT, error=UnknownKey):
        self.tenant, self.error = tenant, error

    def by_key(self, presented):
        if presented != "right":
            raise self.error
        return self.tenant


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def authentication(failures=3, clock=None, **tenant):
    return Authentication(
        Directory(**tenant) if "error" in tenant else Directory(Tenant(**{**_fields(TENANT), **tenant})),
        AuthThrottle(failures, clock or Clock()),
    )


def _fields(tenant):
    return {name: getattr(tenant, name) for name in tenant.__slots__}


def nobody_asks():
    raise AssertionError("the address matters to nobody here")


async def test_a_right_key_is_accepted_from_any_address():
    assert await authentication().authenticate("right", nobody_asks) == TENANT


async def test_a_wrong_key_is_refused():
    with pytest.raises(Unauthenticated):
        await authentication().authenticate("wrong", lambda: HERE)


@pytest.mark.parametrize(
    ("tenant", "error", "code"),
    [
        ({"disabled": True}, AccountDisabled, "account_disabled"),
        ({"networks": ((Network("198.51.100.0/24"),),)}, AddressNotAllowed, "address_not_allowed"),
        ({"key_scopes": frozenset({"usage"})}, ScopeNotAllowed, "scope_not_allowed"),
    ],
)
async def test_a_right_key_without_the_right_gets_the_reason(tenant, error, code):
    with pytest.raises(error) as refused:
        await authentication(**tenant).authenticate("right", lambda: HERE)
    assert (refused.value.status, refused.value.code) == (403, code)


async def test_a_key_for_usage_reads_usage():
    assert (
        await authentication(key_scopes=frozenset({"usage"})).authenticate("right", nobody_asks, "usage")
    ).id == "acme"


async def test_a_directory_that_is_away_is_no_refusal_of_the_key():
    with pytest.raises(KeysUnavailable) as refused:
        await authentication(error=DirectoryUnavailable).authenticate("wrong", lambda: HERE)
    assert refused.value.status == 503


async def test_too_many_failures_have_to_wait_until_the_next_one_is_allowed():
    clock = Clock()
    at = authentication(failures=3, clock=clock)
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await at.authenticate("wrong", lambda: HERE)
    with pytest.raises(TooManyFailures) as refused:
        await at.authenticate("wrong", lambda: HERE)
    assert refused.value.headers()["retry-after"] == "20"
    assert refused.value.headers()["x-should-retry"] == "false"
    clock.now = 20.1
    with pytest.raises(Unauthenticated):
        await at.authenticate("wrong", lambda: HERE)


async def test_failures_of_a_neighbour_keep_no_right_key_out():
    at = authentication(failures=1)
    with pytest.raises(Unauthenticated):
        await at.authenticate("wrong", lambda: HERE)
    assert (await at.authenticate("right", lambda: HERE)).id == "acme"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::192.0.2.1", "192.0.2.1", False),
    ],
)
async def test_an_ipv4_address_and_an_ipv6_network_are_one_caller(one, other, same):
    auth_throttle = AuthThrottle(1, Clock())
    assert auth_throttle.record_failure(address_of(one)) == 0.0
    assert (auth_throttle.record_failure(address_of(other)) > 0.0) is same


async def test_the_table_of_failures_is_bounded_and_drops_the_oldest():
    auth_throttle = AuthThrottle(1, Clock())
    for number in range(ADDRESSES_MAX + 1):
        auth_throttle.record_failure(address_of(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
    assert len(auth_throttle) == ADDRESSES_MAX
    assert auth_throttle.record_failure(address_of("10.0.0.0")) == 0.0
    assert auth_throttle.record_failure(address_of("10.0.0.9")) > 0.0
