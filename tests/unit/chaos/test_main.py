"""What chaos reads in the logs and counts of gateways."""

from tests.chaos.__main__ import more_than, tracebacks


def test_every_traceback_in_a_log_is_found():
    log = "INFO a\nTraceback (most recent call last):\n  File x\n    y\nKeyError: 'z'\nINFO b\n"
    assert tracebacks(log) == ["KeyError: 'z'"]
    assert tracebacks("INFO a\n") == []


def test_a_gateway_that_starts_again_counts_from_nothing():
    assert more_than({"one": 5, "two": 7}, {"one": 8, "two": 2}) == 3 + 2
