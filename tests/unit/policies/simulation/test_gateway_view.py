"""What a simulated gateway counts of requests under way and waiting."""

from array import array

from policies.simulation.gateway_view import GatewayView
from policies.simulation.scenario import Scenario
from policies.simulation.trace import TraceRequest
from radix_cache.match import WorkerId

BLOCKS = array("Q", range(1, 5))
REQUEST = TraceRequest(at=0.0, prompt_tokens=4 * 512, output_tokens=20, blocks=BLOCKS, tenant="t")


def test_the_prefix_of_a_waiting_request_is_no_work_of_another_one_but_of_its_own():
    view = GatewayView([WorkerId("w0")], Scenario(workers=1, kv_tokens=100_000))
    view.wait(1, REQUEST)
    assert view.longest_match({}, BLOCKS, waits=False) == 4
    assert view.longest_match({}, BLOCKS, waits=True) == 0
    view.wait(2, REQUEST)
    assert view.longest_match({}, BLOCKS, waits=True) == 4
