"""Step times: runs are sums of steps, and files are checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.simulation.engines.step_time import CalibrationInvalid, StepTime, read_step_time


@given(
    steps=st.integers(1, 200),
    tokens=st.integers(0, 5000),
    streams=st.integers(1, 64),
    capacity=st.integers(1, 5000),
)
def test_a_run_takes_as_long_as_its_steps(steps, tokens, streams, capacity):
    times = StepTime()
    one_by_one = sum(times.decode((tokens + step * streams) / capacity) for step in range(steps))
    assert times.decode_run(steps, tokens, streams, capacity) == pytest.approx(one_by_one)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"prefill_ms": [1, 0.1, 0], "chunk_tokens": 512}'),
        ("t.yaml", "prefill_ms: [1, 0.1, 0]\nchunk_tokens: 512"),
    ],
)
def test_a_calibration_replaces_what_it_names(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    times = read_step_time(tmp_path / name)
    assert (times.prefill(10), times.chunk_tokens, times.decode_ms) == (2.0, 512, StepTime().decode_ms)


def test_a_wrong_calibration_is_refused_with_the_path(tmp_path):
    (tmp_path / "t.yaml").write_text("chunk_tokens: 0")
    with pytest.raises(CalibrationInvalid, match="chunk_tokens"):
        read_step_time(tmp_path / "t.yaml")
    with pytest.raises(CalibrationInvalid, match="cannot be read"):
        read_step_time(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    "text",
    [
        '{"prefill_ms": [0, 0, 0]}',
        '{"prefill_ms": [-1, 0, 0]}',
        '{"prefill_ms": [10, -10, 0.002]}',
        '{"prefill_ms": [1e308, 1e308, 1e308]}',
        '{"decode_ms": [5, -20, 15]}',
        '{"decode_ms": [5, -6, 0]}',
    ],
)
def test_steps_that_take_no_time_or_less_are_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(CalibrationInvalid, match=r"t\.json.*_ms"):
        read_step_time(tmp_path / "t.json")


def test_a_step_time_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "t.yaml").write_text("prefill_ms: [.nan, 0, 0]")
    with pytest.raises(CalibrationInvalid, match="prefill_ms"):
        read_step_time(tmp_path / "t.yaml")
