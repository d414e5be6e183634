"""Trials name a policy with its options; the bound `alone` knows service classes."""

import pytest

from policies.registry import OptionsInvalid, PolicyError
from policies.service_class import CHAT, VOICE
from policies.simulation.outcome import figures
from policies.simulation.scenario import Scenario
from policies.simulation.trace import TraceRequest, write_trace
from policies.simulation.trial import ALONE, TraceSource, Trial, policy_of
from policies.simulation.workloads import blocks_of


def test_subjects_carry_their_options_and_wrong_ones_are_refused():
    assert policy_of("cost:tie=0.1,delay_weight=0").options.tie == 0.1
    with pytest.raises(PolicyError, match=r"there are chwbl, cost, .*sglang"):
        policy_of("nearest")
    with pytest.raises(PolicyError, match="not OPTION=VALUE"):
        policy_of("cost:tie")
    with pytest.raises(OptionsInvalid, match="unknown field `tiee`"):
        policy_of("sglang:tiee=1")


def test_requests_that_are_late_alone_on_a_worker_are_late_in_the_bound_of_their_class(tmp_path):
    trace = [
        TraceRequest(
            at=float(number),
            prompt_tokens=tokens,
            output_tokens=2,
            blocks=blocks_of([(f"prompt {number}", tokens)]),
            service_class=name,
        )
        for number, (name, tokens) in enumerate([("voice", 500), ("voice", 50_000), ("chat", 500)])
    ]
    write_trace(tmp_path / "trace.jsonl", trace)
    scenario = Scenario(workers=2, kv_tokens=1_000_000, classes={each.name: each for each in (VOICE, CHAT)})
    found = figures(
        Trial(subject=ALONE, source=TraceSource(path=tmp_path / "trace.jsonl"), scenario=scenario).run()
    )
    assert {name: each["missed"] for name, each in found["classes"].items()} == {"voice": 0.5, "chat": 0.0}
