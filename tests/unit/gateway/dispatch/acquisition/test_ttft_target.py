"""The TTFT target of a service class."""

from gateway.dispatch.acquisition.ttft_target import target_at
from policies.service_class import CHAT
from tests.fakes.dispatch_stage import DispatchStage


def test_a_first_token_is_due_its_classs_target_after_the_request_came():
    stage = DispatchStage("a")
    request = stage.pending()
    stage.clock.advance(5.0)
    assert target_at(request) == stage.clock() - 5.0 + CHAT.ttft_seconds
