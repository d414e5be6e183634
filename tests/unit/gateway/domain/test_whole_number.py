"""Whole numbers in query parameters."""

import pytest

from gateway.domain.whole_number import whole_number


@pytest.mark.parametrize("text", ["1", "07", "200"])
def test_a_number_within_its_bounds_is_read(text):
    assert whole_number(text, 1, 200) == int(text)


@pytest.mark.parametrize("text", ["", "0", "201", "-1", "+1", "1.0", " 1", "x", "٣", "²", "0001", "9" * 5000])
def test_any_other_text_is_no_number(text):
    assert whole_number(text, 1, 200) is None
