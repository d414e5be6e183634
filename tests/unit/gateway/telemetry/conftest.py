"""A clock that only moves when it is told to."""

import pytest

from tests.fakes.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()
