"""Tallies of answers of which only the number of frames matters."""

from gateway.domain.answer_tally import AnswerTally


def tally_of(*, frames: int) -> AnswerTally:
    """Return the tally of a stream of so many frames, whose text was not read."""
    tally = AnswerTally()
    tally.counted = frames
    return tally
