"""Policies of other packages: a broken one affects no other, and all are checked against the protocol."""

import pytest

from policies import registry
from policies.registry import PolicyError, queue_policy, routing_names, routing_policy
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.protocol import Candidate, RouteQuery
from workers.worker import WorkerSnapshot

QUERY = RouteQuery(prompt_tokens=100, output_tokens=10, sequence=0, draw=0.5)
FLEET = [Candidate(worker=WorkerSnapshot(id=name)) for name in ("a", "b")]

MODULE = """
from policies.routing.protocol import PolicyOptions, Route

class Options(PolicyOptions):
    says: str = ""

def route(worker, cost_ms=1.0):
    return Route(worker=worker, cost_ms=cost_ms, matched_tokens=0, reason="because")

RETURNED = {
    "all": lambda: [route("a"), route("b")],
    "none": lambda: None,
    "nobody": lambda: (),
    "one": lambda: (route("a"),),
    "twice": lambda: (route("a"), route("a")),
    "stranger": lambda: (route("a"), route("c")),
    "nan": lambda: (route("a"), route("b", float("nan"))),
    "names": lambda: ("a", "b"),
    "raises": lambda: 1 / 0,
}

class Plugged:
    name = "plugged"
    options_type = Options
    def __init__(self, options):
        self.options = options
    def rank(self, query, candidates, now):
        return RETURNED[self.options.says]()

class Needy(Plugged):
    def __init__(self):
        pass

class Rankless:
    name = "plugged"
    options_type = Options

thing = Plugged(None)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with a policy `plugged`, which is `of` its module."""

    def install(of):
        (tmp_path / "plugged_module.py").write_text(MODULE)
        about = tmp_path / "plugged-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[radixgate.routing_policies]\nplugged = {of}\n")
        monkeypatch.syspath_prepend(tmp_path)

    registry._installed.cache_clear()
    yield install
    registry._installed.cache_clear()


def test_a_policy_of_another_package_ranks_under_its_name(installed):
    installed("plugged_module:Plugged")
    assert "plugged" in routing_names()
    policy = routing_policy("plugged", {"says": "all"})
    assert policy.name == "plugged"
    assert [route.worker for route in policy.rank(QUERY, FLEET, 0.0)] == ["a", "b"]


BROKEN = {
    "no_such_module:Plugged": "cannot be loaded: ModuleNotFoundError",
    "plugged_module:Missing": "cannot be loaded: AttributeError",
    "plugged_module:thing": "is not a class",
    "plugged_module:Rankless": "has no rank",
    "plugged_module:Needy": "cannot be made: TypeError",
}


@pytest.mark.parametrize("of", BROKEN)
def test_a_broken_package_is_an_error_only_where_its_policy_is_chosen(installed, of):
    installed(of)
    with pytest.raises(PolicyError, match=f"'plugged'.*{BROKEN[of]}"):
        routing_policy("plugged", {})
    assert routing_policy("cost", {}).name == "cost"
    assert "plugged" in routing_names()


PROMISES = {
    "none": "failed: TypeError",
    "nobody": "a, b left out",
    "one": "b left out",
    "twice": "worker a is no candidate, or is there twice",
    "stranger": "worker c is no candidate",
    "nan": "cost of worker b is not finite",
    "names": "str in place of a Route",
    "raises": r"policy plugged failed: ZeroDivisionError.*plugged_module.py, line \d+",
}


@pytest.mark.parametrize("says", PROMISES)
def test_a_broken_contract_is_reported_with_the_name_of_the_policy(installed, says):
    installed("plugged_module:Plugged")
    policy = routing_policy("plugged", {"says": says})
    with pytest.raises(PolicyContractBroken, match=PROMISES[says]):
        policy.rank(QUERY, FLEET, 0.0)


def test_unknown_policies_and_options_are_refused_with_what_there_is():
    with pytest.raises(
        PolicyError, match="there are chwbl, cost, least_work, p2c, product, round_robin, session"
    ):
        routing_policy("nearest", {})
    with pytest.raises(PolicyError, match="unknown field `harmm`"):
        routing_policy("cost", {"harmm": 1})
    with pytest.raises(PolicyError, match="Expected `float`"):
        routing_policy("cost", {"delay_weight": "much"})
    with pytest.raises(PolicyError, match="there are dlpm, fifo, priority, sfq, vtc"):
        queue_policy("nearest")
