"""Numbers in the query parameters of the admin API."""

import pytest

from gateway.adminapi.problems import Problem
from gateway.adminapi.query_parameters import number


def test_a_number_is_read_and_has_a_default():
    assert number({"limit": "7"}, "limit", 50, 200) == 7
    assert number({"limit": "200"}, "limit", 50, 200) == 200
    assert number({}, "limit", 50, 200) == 50


@pytest.mark.parametrize("text", ["", "-1", "201", "x", "٣", "000000001999", "000000001" + "9" * 5000])
def test_a_number_beyond_its_bounds_is_refused_however_it_is_written(text):
    with pytest.raises(Problem, match="limit"):
        number({"limit": text}, "limit", 50, 200)
