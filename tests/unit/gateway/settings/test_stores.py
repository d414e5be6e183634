"""Settings of cells that cannot work are refused, each with its path."""

import pytest

from gateway.settings.sources import load_settings
from gateway.settings.types import SettingsProblem

GOOD = {
    "cells.name": "east",
    "cells.url": "http://10.0.0.1:8000",
    "cells.redis_url": "redis://shared:6379",
    "deployment_secret": "a secret of the tests",
    "workers": '[{"id": "w", "kind": "sglang", "url": "http://w:1"}]',
}


def load(**changes):
    tree = {**GOOD, **{name.replace("__", "."): value for name, value in changes.items()}}
    assignments = [f"{name}={value}" for name, value in tree.items() if value is not None]
    return load_settings(None, {}, assignments).settings


def test_a_cell_has_a_name_an_address_and_a_redis_that_all_cells_share():
    cells = load().cells
    assert (cells.name, cells.redis_prefix, cells.lease_seconds) == ("east", "rg-cells", 5.0)
    assert load(cells__redis_url="redis+cluster://one:6379,two:6379").cells is not None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cells__redis_url": "embedded"}, "$.cells.redis_url: expected the address of a Redis"),
        ({"cells__redis_url": "redis://host:0"}, "$.cells.redis_url: the port"),
        ({"cells__url": "http://10.0.0.1:0"}, "$.cells.url: the port"),
        ({"cells__url": "http://user:password@host"}, "$.cells.url: an address has no user"),
        ({"cells__name": "a b"}, "$.cells.name: expected"),
        ({"cells__lease_seconds": "0.5"}, "$.cells.lease_seconds"),
        ({"deployment_secret": None}, "$.deployment_secret: the gateways of all cells"),
        ({"cells__name": None}, "$.cells"),
    ],
)
def test_what_cannot_work_is_refused(changes, expected):
    with pytest.raises(SettingsProblem) as refused:
        load(**changes)
    assert str(refused.value).startswith(expected), refused.value
