"""The address of a client, whatever the client writes into its headers."""

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from gateway.settings.types import Network, address_of
from gateway.web.client_address import address_finder

PROXIES = (Network("10.0.0.0/8"), Network("fd00::/8"))


def found(peer, *forwarded, proxies=PROXIES):
    headers = CIMultiDict([("X-Forwarded-For", line) for line in forwarded])
    http = make_mocked_request("GET", "/", headers=headers).clone(remote=peer)
    return address_finder(proxies)(http)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["1.1.1.1"], "192.0.2.1"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["6.6.6.6, 203.0.113.9, 10.0.0.7"], "203.0.113.9"),
        ("10.0.0.5", ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["10.0.0.6, 10.0.0.7"], "10.0.0.6"),
        ("10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
        ("fd00::1", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["203.0.113.9, unknown"], None),
        ("", [], None),
    ],
)
def test_the_last_hop_that_is_not_trusted_is_the_client(peer, forwarded, expected):
    assert found(peer, *forwarded) == (address_of(expected) if expected else None)


def test_without_trusted_proxies_nobodys_word_is_taken():
    assert found("10.0.0.5", "203.0.113.9", proxies=()) == address_of("10.0.0.5")
