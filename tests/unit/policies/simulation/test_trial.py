"""Trials name a policy with its options."""

import pytest

from policies.registry import OptionsInvalid, PolicyError
from policies.simulation.trial import policy_of


def test_subjects_carry_their_options_and_wrong_ones_are_refused():
    assert policy_of("cost:tie=0.1,delay_weight=0").options.tie == 0.1
    with pytest.raises(PolicyError, match=r"there are chwbl, cost, .*sglang"):
        policy_of("nearest")
    with pytest.raises(PolicyError, match="not OPTION=VALUE"):
        policy_of("cost:tie")
    with pytest.raises(OptionsInvalid, match="unknown field `tiee`"):
        policy_of("sglang:tiee=1")
