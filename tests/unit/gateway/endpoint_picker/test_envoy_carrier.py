"""The addresses that Envoy gets, and what it carries."""

import pytest

from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.endpoint_picker.envoy_carrier import EnvoyCarrier, endpoint_of
from gateway.endpoint_picker.envoy_request import EnvoyRequest
from workers.adapters.connection import ConnectionBroken


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [("10.0.0.7", "10.0.0.7:8000"), ("fd00::7", "[fd00::7]:8000"), ("localhost", "127.0.0.1:8000")],
)
async def test_an_endpoint_is_an_ip_address_with_its_port(host, endpoint):
    assert (await endpoint_of(host, 8000)).replace("[::1]", "127.0.0.1") == endpoint


async def test_a_host_without_an_address_is_a_broken_connection():
    with pytest.raises(ConnectionBroken):
        await endpoint_of("no-such-host.invalid", 80)


async def test_a_carrier_takes_a_request_once():
    carrier = EnvoyCarrier(EnvoyRequest(None, messages.ProcessingRequest(), 1.0))
    assert carrier.transport_to("10.0.0.7", 80) is not None
    assert carrier.transport_to("10.0.0.8", 80) is None
