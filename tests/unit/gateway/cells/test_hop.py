"""The header of a relayed request holds for one cell, one address and one API key, and cannot be forged."""

import pytest

from gateway.cells.hop import HopInvalid, HopSignature

SIGNATURE = HopSignature(b"a secret")


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7", None])
def test_the_address_of_the_client_arrives(address):
    header = SIGNATURE.header("west", address, "sk-key")
    assert SIGNATURE.address(header, "west", "sk-key") == address


@pytest.mark.parametrize(
    ("cell", "key", "secret"),
    [("east", "sk-key", b"a secret"), ("west", "sk-2", b"a secret"), ("west", "sk-key", b"x")],
)
def test_a_header_for_another_cell_key_or_deployment_is_refused(cell, key, secret):
    header = SIGNATURE.header("west", "10.0.0.7", "sk-key")
    with pytest.raises(HopInvalid):
        HopSignature(secret).address(header, cell, key)


@pytest.mark.parametrize("forged", ["", "-", "10.0.0.7 ", "10.0.0.7 é", "10.0.0.7 \udcff", "- - -"])
def test_text_of_a_client_is_refused(forged):
    with pytest.raises(HopInvalid):
        SIGNATURE.address(forged, "west", "sk-key")


def test_a_key_that_is_no_text_is_signed_as_its_bytes():
    header = SIGNATURE.header("west", None, "sk-\udcff")
    assert SIGNATURE.address(header, "west", "sk-\udcff") is None
