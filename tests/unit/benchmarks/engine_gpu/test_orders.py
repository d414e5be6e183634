"""Speeds come from the difference of two runs, and travel as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from tests.benchmarks.engine_gpu.orders import Order, Prompts, Speed, measure, read_speeds, write_order
from tests.benchmarks.engine_gpu.roofline import Roofline
from tests.benchmarks.engine_gpu.table import cells, document

ORDER = Order(
    model="m",
    device="cpu",
    dtype="float32",
    vocab=512,
    batches=(2,),
    prompt_tokens=100,
    decode_steps=10,
    rounds=2,
    settings={},
)
ROOFLINE = Roofline(weight_bytes=1000, kv_bytes_per_token=0, bandwidth=100_000.0)


class FakeEngine:
    """Prefills 50 tokens in a second, and makes a decode step in a tenth of one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.prompts: list[Prompts] = []

    def __call__(self, prompts: Prompts, new_tokens: int) -> None:
        self.prompts.append(prompts)
        self.now += sum(map(len, prompts)) / 50 + (new_tokens - 1) / 10

    def clock(self) -> float:
        return self.now


def test_two_runs_separate_prefill_from_decode() -> None:
    engine = FakeEngine()
    speed = measure(ORDER, engine, 2, engine.clock)
    assert (speed.batch, speed.prefill, speed.decode) == (2, pytest.approx(50), pytest.approx(20))


def test_no_prompt_comes_twice_so_that_no_cache_has_it() -> None:
    engine = FakeEngine()
    measure(ORDER, engine, 2, engine.clock)
    sent = [tuple(prompt) for prompts in engine.prompts for prompt in prompts]
    assert len(set(sent)) == len(sent) == 2 * 2 * 3
    assert all(300 <= token < 512 for prompt in sent for token in prompt)


def test_the_speeds_are_the_last_line_whatever_an_engine_has_printed_before() -> None:
    speeds = [Speed(batch=2, prefill=50.0, decode=20.0)]
    lines: Iterator[str] = iter(["loading {", json.dumps([asdict(speed) for speed in speeds])])
    assert read_speeds("\n".join(lines)) == speeds
    assert json.loads(write_order(ORDER))["batches"] == [2]


def test_a_row_has_speeds_and_shares_and_a_skipped_one_its_reason() -> None:
    speeds = [Speed(batch=2, prefill=5000.0, decode=100.0)]
    # 2 sequences, 1,000 bytes a step, 100,000 bytes a second: 200 tokens a second at most.
    assert cells(ORDER, ROOFLINE, speeds) == ["5,000", "100", "50 %"]
    assert cells(ORDER, ROOFLINE, "not installed") == ["SKIPPED"]
    assert document(ORDER, ROOFLINE, {"a": speeds, "b": "not installed"}) == {
        "a": {
            "batch_2": {
                "prefill_tokens_per_second": 5000.0,
                "decode_tokens_per_second": 100.0,
                "roofline_share": 0.5,
            }
        },
        "b": {"skipped": "not installed"},
    }
