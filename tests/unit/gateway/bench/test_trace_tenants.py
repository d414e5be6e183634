"""Tenants of the load client: which one sends which request of a trace."""

from array import array

import pytest

from gateway.bench.trace_tenants import Caller, CallersInvalid, assign_callers, caller_of, read_callers
from policies.simulation.trace import TraceRequest
from policies.simulation.workloads import WorkloadParameters, generated


def request(*blocks, prompt_tokens=None, **more):
    tokens = 512 * len(blocks) if prompt_tokens is None else prompt_tokens
    return TraceRequest(at=0.0, prompt_tokens=tokens, output_tokens=1, blocks=array("Q", blocks), **more)


def test_a_caller_whom_the_trace_names_sends_its_own_requests():
    callers = [Caller(name="acme"), Caller(name="globex")]
    asked = [request(1, tenant="globex"), request(2, tenant="initech")]
    played = assign_callers(asked, callers)
    assert [caller_of(one, callers, played).name for one in asked] == ["globex", "acme"]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_caller_sends_something_where_the_trace_has_tenants_enough(count):
    callers = [Caller(name=f"caller {number}") for number in range(count)]
    asked = generated("mixed", WorkloadParameters(requests=200, tenants=count, skew=0.0))
    played = assign_callers(asked, callers)
    assert {caller_of(one, callers, played).name for one in asked} == {caller.name for caller in callers}


def test_the_turns_of_a_conversation_are_one_callers_and_all_callers_get_some():
    callers = [Caller(name=f"t{number}") for number in range(4)]
    for session in range(20):
        turns = [request(0, session, *range(100, 100 + turn)) for turn in range(5)]
        assert len({caller_of(turn, callers, {}).name for turn in turns}) == 1
    assert {caller_of(request(0, session), callers, {}).name for session in range(60)} == {
        "t0",
        "t1",
        "t2",
        "t3",
    }


def test_a_file_of_callers_that_is_wrong_is_refused_without_its_keys(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text("- {name: acme, key: sk-secret, ttft_ms: soon}", encoding="utf-8")
    with pytest.raises(CallersInvalid, match="ttft_ms") as refusal:
        read_callers(file)
    assert "sk-secret" not in str(refusal.value)
    file.write_text("- {name: a}\n- {name: a}", encoding="utf-8")
    with pytest.raises(CallersInvalid, match="two callers with the same name"):
        read_callers(file)
