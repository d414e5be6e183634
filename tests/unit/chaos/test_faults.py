"""The faults that chaos runs."""

from tests.chaos.faults import FAULTS


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
