"""The ladder: one idea a rung, the same answers on all of them, and figures that show what the idea did."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from workers.engine.ablation import command
from workers.engine.ablation.command import main
from workers.engine.ablation.measurement import LadderResult, measure_engine
from workers.engine.ablation.rungs import CHANGES, rungs
from workers.engine.ablation.traffic import Arrival, TrafficShape, traffic
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.tiny_checkpoint import build

SMALL = TrafficShape(
    requests=10,
    seconds=0.0,
    prompt_median=12,
    output_median=40,
    prompt_max=90,
    output_max=90,
    shared=2,
    shared_tokens=32,
)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LadderResult]:
    """Every rung over the same small traffic; memory for a few of the requests. The model soon repeats itself."""
    shape = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 96, "vocab": 512, "context": 512}
    model = build(tmp_path_factory.mktemp("ladder") / "model", **shape, init=0.05)
    arrivals = traffic(SMALL, vocab=512, seed=3)
    base = EngineConfig(
        model=model,
        block_size=4,
        kv_tokens=400,
        running_max=4,
        chunk_tokens=24,
        dtype="float32",
        seed=0,
    )
    return {rung.name: measure_engine(Engine.load(rung.config), arrivals) for rung in rungs(base)}


def test_each_rung_changes_one_setting_of_the_one_below(checkpoint: Callable[[str], Path]) -> None:
    configs = [asdict(rung.config) for rung in rungs(EngineConfig(model=checkpoint("llama-gqa")))]
    for lower, higher in pairwise(configs):
        assert len([name for name in lower if lower[name] != higher[name]]) == 1
    assert len(configs) == len(CHANGES) == 7


def test_every_rung_gives_the_same_tokens(climbed: dict[str, LadderResult]) -> None:
    assert len({figures.tokens for figures in climbed.values()}) == 1
    wanted = sum(arrival.max_tokens for arrival in traffic(SMALL, vocab=512, seed=3))
    assert all(figures.output_tokens == wanted for figures in climbed.values())


def test_each_idea_saves_what_it_is_meant_to_save(climbed: dict[str, LadderResult]) -> None:
    none, contiguous, paged, continuous, _, caching, speculation = climbed.values()
    assert none.kv_tokens_max == 0
    assert none.computed > 3 * contiguous.computed
    assert none.wasted["recomputed"] > 0 == contiguous.wasted["recomputed"]
    assert paged.kv_lost < contiguous.kv_lost
    assert paged.wasted["padding"] > 0 == continuous.wasted["padding"]
    assert continuous.rows > paged.rows
    assert continuous.steps < paged.steps
    assert caching.cached_tokens > 0 == continuous.cached_tokens
    assert caching.computed < continuous.computed
    assert speculation.accepted_length > 1
    assert speculation.steps < caching.steps


def test_traffic_is_the_same_for_the_same_seed_and_mixed() -> None:
    shape = TrafficShape(requests=200, seconds=3.0)
    arrivals = traffic(shape, vocab=512, seed=1)
    assert arrivals == traffic(shape, vocab=512, seed=1) != traffic(shape, vocab=512, seed=2)
    assert sorted(arrival.at_seconds for arrival in arrivals) == [arrival.at_seconds for arrival in arrivals]
    outputs = sorted(arrival.max_tokens for arrival in arrivals)
    assert outputs[-1] > 2 * outputs[100] > 0
    heads = [arrival.prompt[:96] for arrival in arrivals]
    assert 100 < sum(heads.count(head) > 1 for head in heads) < 190
    assert all(16 <= token < 512 for arrival in arrivals for token in arrival.prompt)


def test_a_request_is_not_submitted_before_its_time(load: Callable[..., Engine]) -> None:
    engine = load()
    arrivals = [Arrival(at_seconds=at, prompt=(20, 21, 22), max_tokens=2) for at in (0.0, 0.05)]
    figures = measure_engine(engine, arrivals)
    assert figures.seconds >= 0.05
    assert [len(tokens) for tokens in figures.tokens] == [2, 2]
    assert all(seconds > 0 for seconds in figures.ttft)


def test_the_command_prints_a_table_and_writes_both_files(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoint("llama-gqa"))
    files = [str(tmp_path / "ladder.svg"), str(tmp_path / "ladder.json")]
    chosen = ["--only", "paged KV", "--only", "prefix caching"]
    arguments = ["--quick", "--threads", "1", "--model", model, "--plot", files[0], "--json", files[1]]
    assert main([*arguments, *chosen]) == 0
    printed = capsys.readouterr().out
    assert "the same tokens on every rung" in printed
    assert [line.split("  ")[0] for line in printed.splitlines() if line.startswith("p")][-2:] == [
        "paged KV",
        "prefix caching",
    ]
    written = json.loads(Path(files[1]).read_text())
    assert list(written["runs"]) == ["paged KV", "prefix caching"]
    assert written["runs"]["paged KV"]["all"]["tokens_per_second"] > 0
    assert {"machine", "versions", "settings", "runs"} == written.keys()
    assert "<svg" in Path(files[0]).read_text()


def test_each_rung_is_printed_before_the_next_one_begins(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def measured(engine: Engine, arrivals: Sequence[Arrival]) -> LadderResult:
        printed.append(capsys.readouterr().out)
        return measure_engine(engine, arrivals)

    monkeypatch.setattr(command, "measure_engine", measured)
    chosen = ["--only", "paged KV", "--only", "prefix caching"]
    assert main(["--quick", "--threads", "1", "--model", str(checkpoint("llama-gqa")), *chosen]) == 0
    # The first run warms up.
    _, before_first, before_second = printed
    assert "paged KV" not in before_first
    assert "TTFT" in before_first
    assert before_second.startswith("paged KV ")
    assert "prefix caching" not in before_second


def test_what_cannot_be_done_is_one_line(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["--model", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err.splitlines()[-1]
    arguments = ["--quick", "--threads", "1", "--model", str(checkpoint("llama-gqa")), "--only", "paged KV"]
    assert main([*arguments, "--plot", str(tmp_path / "nowhere" / "a.png")]) == 1
    assert "cannot be written" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*arguments, "--plot", str(tmp_path / "a.png")]) == 1
    assert "needs matplotlib" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("wrong", [["--requests", "0"], ["--seconds", "-1"], ["--only", "magic"]])
def test_wrong_use_ends_with_code_two(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
