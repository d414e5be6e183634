"""The fields that workers get from tenants: never one of the gateway's own."""

from gateway.relay.faithful_streams import STREAMABLE_FIELDS
from gateway.web.openai.inference_requests import GATEWAY_OWNED
from workers.adapters.request_fields import FIELDS


def test_no_field_of_the_gateway_is_a_tenants():
    assert not GATEWAY_OWNED & frozenset().union(*FIELDS.values())


def test_fields_that_leave_a_stream_complete_pass():
    assert not STREAMABLE_FIELDS - FIELDS["v1/chat/completions"] - FIELDS["v1/completions"]


def test_every_api_has_its_fields():
    assert all("model" in names for names in FIELDS.values())
