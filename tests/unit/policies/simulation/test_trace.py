"""Reading traces, and what is refused in them."""

import gzip
from array import array
from pathlib import Path

import pytest

from policies.simulation.trace import (
    TraceInvalid,
    TraceRequest,
    ideal_hit_ratio,
    paced,
    read_trace,
    write_trace,
)

CONVERSATIONS = Path(__file__).parents[3] / "data" / "mooncake" / "conversation_trace.jsonl"


def request(at: float = 0.0, blocks: tuple[int, ...] = (1,), tokens: int | None = None) -> TraceRequest:
    return TraceRequest(
        at=at,
        prompt_tokens=512 * len(blocks) if tokens is None else tokens,
        output_tokens=10,
        blocks=array("Q", blocks),
    )


def test_the_public_trace_has_the_figures_of_its_authors():
    trace = read_trace(CONVERSATIONS)
    assert len(trace) == 12_031
    assert round(sum(r.prompt_tokens for r in trace) / len(trace)) == 12_035
    assert round(sum(r.output_tokens for r in trace) / len(trace)) == 343
    assert round(ideal_hit_ratio(trace), 3) == 0.374


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = [request(0.0, (1, 2), 600), request(1.5, (1, 3), 1024)]
    write_trace(tmp_path / "trace", trace)
    assert read_trace(tmp_path / "trace") == trace


def test_a_trace_begins_with_its_first_request_at_any_time_of_its_clock(tmp_path):
    write_trace(tmp_path / "trace", [request(1_700_000_001.5, (1, 3)), request(1_700_000_000.0, (1, 2))])
    assert [(one.at, list(one.blocks)) for one in read_trace(tmp_path / "trace")] == [
        (0, [1, 2]),
        (1.5, [1, 3]),
    ]


def test_lines_may_end_as_on_any_system(tmp_path):
    line = b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}'
    (tmp_path / "trace").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line)
    assert len(read_trace(tmp_path / "trace")) == 2


def test_a_trace_that_is_compressed_is_refused_for_that(tmp_path):
    (tmp_path / "trace").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(TraceInvalid, match="gunzip"):
        read_trace(tmp_path / "trace")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "has 2 blocks, not 1"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "has a token"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "negative"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', "line 2"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_the_reason(tmp_path, line, says):
    file = tmp_path / "trace"
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}'
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(TraceInvalid, match=says):
        read_trace(file)


def test_an_empty_trace_and_a_missing_one_are_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(TraceInvalid, match="no requests"):
        read_trace(tmp_path / "empty")
    with pytest.raises(TraceInvalid, match="cannot be read"):
        read_trace(tmp_path / "missing")


def test_coarse_timestamps_are_spread_inside_their_buckets():
    trace = [request(at) for at in (0, 0, 0, 3, 3, 3, 9, 9, 9)]
    spread = [r.at for r in paced(trace, seed=1)]
    assert len(set(spread)) == 9
    assert [sum(low <= at < low + 3 for at in spread) for low in (0, 3, 6, 9)] == [3, 3, 0, 3]


def test_exact_timestamps_stay_and_speed_divides_them():
    trace = [request(at) for at in (0, 1, 5, 6)]
    assert [r.at for r in paced(trace, speed=2)] == [0, 0.5, 2.5, 3]


def test_the_same_seed_paces_alike_and_another_does_not():
    trace = [request(0)] * 20 + [request(3)] * 20
    assert paced(trace, seed=4) == paced(trace, seed=4)
    assert paced(trace, seed=4) != paced(trace, seed=5)
