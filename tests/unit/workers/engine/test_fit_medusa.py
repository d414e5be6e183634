"""Medusa heads fitted to a model's own texts: they draft these texts, and the model's answers stay the same."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from tests.unit.workers.engine.conftest import Answer, greedy
from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.fit_medusa import RidgeRegression, fit_heads, main, save_heads
from workers.engine.request import Request

Finish = Callable[[Engine, Iterable[Request]], dict[str, Answer]]
PROMPTS = [[40 + place, 7, 99, 12 * place + 3] for place in range(2)]
TOKENS = 24


@pytest.fixture
def config(checkpoint: Callable[[str], Path]) -> EngineConfig:
    return EngineConfig(model=checkpoint("llama-gqa"), dtype="float32", kv_tokens=2048, seed=0)


def test_heads_predict_the_texts_of_their_fit_and_change_no_answer(
    config: EngineConfig, load: Callable[..., Engine], finish: Finish, tmp_path: Path
) -> None:
    # Fewer tokens than numbers in a state: the fit can be exact.
    fitted = fit_heads(config, PROMPTS, heads=3, tokens=TOKENS, ridge=1e-6)
    save_heads(fitted, tmp_path / "heads")
    speculation = SpecConfig(method="medusa", model=tmp_path / "heads", num_tokens=3, adaptive=False)
    asked = [
        Request(id=str(number), prompt=prompt, params=greedy(TOKENS - 4))
        for number, prompt in enumerate(PROMPTS)
    ]
    plain = finish(load(dtype="float32"), asked)
    engine = load(dtype="float32", speculation=speculation)
    assert [answer.tokens for answer in finish(engine, asked).values()] == [
        answer.tokens for answer in plain.values()
    ]
    assert engine.speculation.acceptance_rate > 0.9


def test_sums_give_the_least_squares_that_all_places_at_once_give() -> None:
    chance = torch.Generator().manual_seed(0)
    states = torch.randn(50, 8, generator=chance, dtype=torch.float64)
    wanted = torch.randint(12, (50,), generator=chance)
    regression = RidgeRegression(vocab=12, hidden=8)
    for part in range(0, 50, 7):
        regression.add(states[part : part + 7], wanted[part : part + 7])
    one_hot = torch.nn.functional.one_hot(wanted, 12).double()
    plain = torch.linalg.lstsq(states, one_hot).solution.T
    assert torch.allclose(regression.solve(0.0).double(), plain, atol=1e-6)
    assert regression.solve(1.0).norm() < plain.norm()


def test_held_out_texts_measure_how_good_they_are(config: EngineConfig) -> None:
    fitted = fit_heads(config, [*PROMPTS, *PROMPTS], heads=2, tokens=TOKENS, ridge=1e-6, held_out=2)
    # The texts that were held out are those that were fitted.
    assert all(by_rank[0] > 0.9 for by_rank in fitted.accuracies)
    strange = fit_heads(config, [*PROMPTS, [300, 301]], heads=2, tokens=TOKENS, held_out=1)
    for by_rank in strange.accuracies:
        assert list(by_rank) == sorted(by_rank, reverse=True)
        assert 0 <= sum(by_rank) <= 1


def test_the_command_writes_heads_that_the_engine_loads(
    config: EngineConfig, load: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "prompts.txt"
    texts.write_text("the gateway measures the ocean\nhello there\n\nand more of it\n", encoding="utf-8")
    out = tmp_path / "heads"
    told = ["--model", str(config.model), "--out", str(out), "--heads", "2", "--tokens", "8"]
    assert main([*told, "--prompts", str(texts), "--held-out", "1"]) == 0
    printed = capsys.readouterr().out
    assert "head 1" in printed
    assert re.search(r"drafts: \d+ % accepted, [1-3]\.\d\d tokens a step", printed)
    assert re.search(r"chain of [12] drafts: .*\ntree of \d+ drafts: ", printed)
    assert "fitted in" in printed
    described = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (described["medusa_num_heads"], described["medusa_num_layers"]) == (2, 1)
    load(speculation=SpecConfig(method="medusa", model=out))
    assert main([*told, "--random", "3"]) == 0
    # Without prompts that were held out nothing can be said of acceptance.
    assert "accepted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["--model", "nowhere"], "config.json"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        (["--random", "1", "--held-out", "1"], "held"),
        (["--tokens", "3", "--heads", "4", "--random", "2"], "tokens"),
        (["--heads", "0", "--random", "2"], "head"),
        (["--held-out", "-1", "--random", "2"], "held"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    config: EngineConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: list[str],
    named: str,
) -> None:
    told = ["--model", str(config.model), "--out", str(tmp_path / "heads"), *changes]
    assert main(told) == 1
    assert named in capsys.readouterr().err.splitlines()[-1]
