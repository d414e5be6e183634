"""Groups of models that share workers."""

from gateway.fleet.model_groups import ModelGroups
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId


def worker(name, *models):
    return Worker(WorkerId(name), "test", None, frozenset(models), models_fixed=True)


def grouped(*workers):
    groups = ModelGroups(workers)
    return {group: sorted(each.id for each in members) for group, members in groups.workers()}


def test_models_without_a_worker_in_common_are_groups_of_their_own():
    assert grouped(worker("a", "m"), worker("b", "n"), worker("c", "n")) == {"m": ["a"], "n": ["b", "c"]}


def test_models_that_share_workers_by_way_of_another_model_are_one_group():
    found = grouped(worker("a", "m", "n"), worker("b", "o", "p"), worker("c", "n", "o"), worker("d", "q"))
    assert found == {"n": ["a", "b", "c"], "q": ["d"]}


def test_a_worker_of_two_models_joins_them_whatever_came_first():
    ones = [worker("a", "m"), worker("b", "n"), worker("c", "m", "n")]
    assert grouped(*ones) == grouped(*reversed(ones)) == {"m": ["a", "b", "c"]}


def test_an_adapter_that_some_workers_load_does_not_rename_the_group():
    bare = ModelGroups([worker("a", "llama"), worker("b", "llama")])
    loaded = ModelGroups([worker("a", "llama", "an-adapter"), worker("b", "llama")])
    assert bare.of("llama") == loaded.of("llama") == loaded.of("an-adapter") == "llama"


def test_a_model_without_workers_is_a_group_of_its_own():
    groups = ModelGroups([worker("a", "m"), worker("b")])
    assert groups.of("unknown") == "unknown"
    assert dict(groups.models()) == {"m": "m"}
