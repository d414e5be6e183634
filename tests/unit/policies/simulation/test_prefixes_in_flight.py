"""What a simulated gateway counts of the prefixes of requests under way and waiting."""

from array import array

from policies.simulation.prefixes_in_flight import PrefixesInFlight
from policies.simulation.trace import TraceRequest

BLOCKS = array("Q", range(1, 5))
REQUEST = TraceRequest(at=0.0, prompt_tokens=4 * 512, output_tokens=20, blocks=BLOCKS, tenant="t")


def test_the_prefix_of_a_waiting_request_is_no_work_of_another_one_but_of_its_own():
    prefixes = PrefixesInFlight()
    prefixes.wait(1, REQUEST)
    assert prefixes.longest_match({}, BLOCKS, waits=False) == 4
    assert prefixes.longest_match({}, BLOCKS, waits=True) == 0
    prefixes.wait(2, REQUEST)
    assert prefixes.longest_match({}, BLOCKS, waits=True) == 4
