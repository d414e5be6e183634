"""A cell follows the caches of its own tenants and of groups, and not those of other cells' tenants."""

import pytest

from gateway.cells.own_groups import OwnGroups
from gateway.domain.tenant import Plan, Tenant
from gateway.kv_index.namespace_resolver import GroupsBySalt
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey


class StubDirectory:
    """Tenants of one organisation each, named as they are."""

    def by_id(self, tenant, rules):
        if tenant == "gone":
            raise UnknownKey
        if tenant == "away":
            raise DirectoryUnavailable
        return Tenant(
            id=tenant, organisation=f"of-{tenant}", key_id="", plan=Plan(), group=f"tenant:{tenant}"
        )


class StubRegistry:
    """Cells with a fixed owner of each organisation."""

    cell = "east"

    def __init__(self):
        self.owners = {"of-acme": "east", "of-globex": "west"}

    def owner_of(self, organisation):
        return self.owners[organisation]


@pytest.mark.parametrize(
    ("group", "followed"),
    [
        ("tenant:acme", True),
        ("tenant:globex", False),
        ("group:research", True),
        ("", True),
        ("tenant:gone", True),
        ("tenant:away", True),
    ],
)
def test_caches_of_other_cells_tenants_are_not_followed(group, followed):
    assert OwnGroups(StubRegistry(), StubDirectory()).includes(group) is followed


def test_a_tenant_that_comes_to_this_cell_is_followed_from_then_on():
    registry = StubRegistry()
    groups = GroupsBySalt(
        lambda: ("tenant:acme", "tenant:globex"),
        lambda group: group.upper(),
        OwnGroups(registry, StubDirectory()).includes,
    )
    assert groups.group("TENANT:ACME") == "tenant:acme"
    assert groups.group("TENANT:GLOBEX") is None
    registry.owners["of-globex"] = "east"
    assert groups.group("TENANT:GLOBEX") == "tenant:globex"
    assert groups.group("OTHER") is None
