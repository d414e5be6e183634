"""The query parameters that filter finished requests."""

import pytest

from gateway.explorer.request_query import LIMIT, RequestQuery, RequestQueryProblem, parse_request_query


def test_parameters_become_a_query():
    assert parse_request_query({}) == RequestQuery(limit=LIMIT)
    assert parse_request_query({"tenant": "a", "slow": "true", "failed": "0", "limit": "7"}) == RequestQuery(
        tenant="a", slow=True, failed=False, limit=7
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "000000001999"},
        {"limit": "000000001" + "9" * 5000},
        {"limit": "x"},
        {"limit": "٣"},
        {"slow": "perhaps"},
        {"since": "now"},
    ],
)
def test_other_parameters_are_refused_by_name(parameters):
    (name,) = parameters
    with pytest.raises(RequestQueryProblem, match=name):
        parse_request_query(parameters)
