"""The tiny checkpoint: the same bytes every time, all or nothing, and genuine."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from workers.engine import tiny_checkpoint
from workers.engine.tiny_checkpoint import SPECIAL_TOKENS, build
from workers.engine.tiny_text import sentences
from workers.engine.tokenization.tokenizer import Tokenizer

SMALL = {
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "intermediate": 48,
    "vocab": 300,
    "context": 128,
}


def digest(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_two_builds_in_two_processes_have_the_same_bytes(tmp_path: Path) -> None:
    options = [text for name, value in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "workers.engine.tiny_checkpoint", str(tmp_path / "a"), *options]
    root = Path(tiny_checkpoint.__file__).parents[2]
    subprocess.run(command, check=True, cwd=root, capture_output=True)
    assert digest(build(tmp_path / "b", **SMALL)) == digest(tmp_path / "a")


def test_another_seed_gives_other_weights_and_another_tokenizer(tmp_path: Path) -> None:
    a, b = (digest(build(tmp_path / str(seed), **SMALL, seed=seed)) for seed in (0, 1))
    assert a["model.safetensors"] != b["model.safetensors"]
    assert a["tokenizer.json"] != b["tokenizer.json"]


def test_building_again_changes_nothing(tmp_path: Path) -> None:
    target = build(tmp_path / "a", **SMALL)
    before = {path.name: path.stat().st_mtime_ns for path in target.iterdir()}
    assert target == build(target, **SMALL)
    assert before == {path.name: path.stat().st_mtime_ns for path in target.iterdir()}


def test_other_parameters_and_damage_are_built_again(tmp_path: Path) -> None:
    target = build(tmp_path / "a", **SMALL)
    whole = digest(target)
    (target / "model.safetensors").write_bytes(b"cut")
    assert whole == digest(build(target, **SMALL))
    (target / "config.json").unlink()
    assert whole == digest(build(target, **SMALL))
    assert (
        json.loads((build(target, **{**SMALL, "layers": 1}) / "config.json").read_text())["num_hidden_layers"]
        == 1
    )
    assert (
        json.loads((build(target, **{**SMALL, "layers": 2}) / "config.json").read_text())["num_hidden_layers"]
        == 2
    )


def test_a_strangers_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError):
        build(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_build_that_dies_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_checkpoint, "save_file", die)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "a", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_second_build_of_the_same_at_the_same_time_gets_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tiny_checkpoint._swap

    def late(fresh: Path, target: Path, old: Path) -> None:
        monkeypatch.setattr(tiny_checkpoint, "_swap", real)
        build(target, **SMALL)
        # What a rename onto a directory with files in it says.
        raise OSError("Directory not empty")

    monkeypatch.setattr(tiny_checkpoint, "_swap", late)
    assert (build(tmp_path / "a", **SMALL) / "config.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"architecture": "gpt"},
        {"hidden": 30, "heads": 4},
        {"kv_heads": 3},
        {"vocab": 259},
        {"layers": 0},
        {"heads": 0},
    ],
)
def test_shapes_that_do_not_go_together_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        build(tmp_path / "a", **{**SMALL, **wrong})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_transformers_reads_the_same_text_as_the_same_tokens(
    architecture: str, checkpoint: Callable[[str], Path]
) -> None:
    directory = checkpoint(f"{architecture}-gqa")
    theirs, ours = AutoTokenizer.from_pretrained(directory), Tokenizer(directory)
    texts = [
        *sentences(3, 40),
        "  spaces\n\n and 12,345 — naïve 中文 🦊",
        "<|im_start|>user\nhi<|im_end|>\n",
        "",
    ]
    for text in texts:
        for special in (True, False):
            assert theirs.encode(text, add_special_tokens=special) == ours.encode(
                text, add_special_tokens=special
            )
    assert theirs.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert (
        theirs.bos_token,
        theirs.eos_token,
        theirs.pad_token,
    ) == ("<|endoftext|>", "<|im_end|>", "<|pad|>")


def test_transformers_loads_the_model_with_every_weight(checkpoint: Callable[[str], Path]) -> None:
    directory = checkpoint("qwen2-mqa")
    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert torch.float32 == model.dtype
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 2


def test_greedy_choices_are_clear(checkpoint: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint("llama-gqa"))
    tokens = torch.randint(4, 500, (1, 300), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        best = model(tokens).logits[0].topk(2).values
    # Two right implementations differ by about 1e-5; nearly every lead is a thousand times that.
    lead = best[:, 0] - best[:, 1]
    assert lead.quantile(0.02) > 5e-3


def test_the_command_line_prints_the_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_checkpoint.main([str(tmp_path / "a"), "--vocab", "10"]) == 1
    assert "vocab 10" in capsys.readouterr().err
