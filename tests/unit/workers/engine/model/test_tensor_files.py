"""The tensors of a checkpoint are read as they were meant, or the checkpoint is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.tensor_files import INDEX, SINGLE

QUERY = "model.layers.0.self_attn.q_proj.weight"


def test_a_missing_tensor_is_named(copy: Path) -> None:
    weights = load_file(copy / SINGLE)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / SINGLE)
    with pytest.raises(CheckpointInvalid, match=r"layers\.1\.mlp\.up_proj"):
        Engine.load(EngineConfig(model=copy))


def test_a_misshapen_tensor_is_named_with_both_shapes(copy: Path) -> None:
    weights = load_file(copy / SINGLE)
    save_file({**weights, "lm_head.weight": np.zeros((3, 64), np.float32)}, copy / SINGLE)
    with pytest.raises(CheckpointInvalid, match=r"lm_head.*\(3, 64\).*\(512, 64\)"):
        Engine.load(EngineConfig(model=copy))


def test_a_shard_outside_of_the_checkpoint_is_refused(copy: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointInvalid, match="elsewhere"):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_a_tensor_that_is_not_used_is_named(copy: Path, name: str) -> None:
    weights = load_file(copy / SINGLE)
    save_file({**weights, name: np.zeros(3, np.float32)}, copy / SINGLE)
    with pytest.raises(CheckpointInvalid, match=rf"1 tensors that .* does not use, {name}"):
        Engine.load(EngineConfig(model=copy))


def test_fewer_layers_than_weights_are_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(CheckpointInvalid, match=r"of 1 layers .* does not use, model\.layers\.1\."):
        Engine.load(EngineConfig(model=copy))


def test_a_saved_copy_of_a_tied_head_and_saved_frequencies_are_not_missed(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = load_file(copy / SINGLE)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    save_file(weights, copy / SINGLE)
    Engine.load(EngineConfig(model=copy))


def test_a_saved_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointInvalid, match=r"lm_head\.weight differs from the embedding"):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_finite_number_is_refused(copy: Path, number: float) -> None:
    weights = load_file(copy / SINGLE)
    weights["model.norm.weight"][7] = number
    save_file(weights, copy / SINGLE)
    with pytest.raises(CheckpointInvalid, match=r"model\.norm\.weight has numbers that are infinite or not"):
        Engine.load(EngineConfig(model=copy))


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_a_weight_of_a_type_that_only_quantised_models_have_is_refused(
    copy: Path, dtype: torch.dtype
) -> None:
    weights = {name: torch.from_numpy(weight) for name, weight in load_file(copy / SINGLE).items()}
    save_tensors(weights | {QUERY: weights[QUERY].to(dtype)}, copy / SINGLE)
    with pytest.raises(CheckpointInvalid, match=rf"{QUERY} has the type {dtype}"):
        Engine.load(EngineConfig(model=copy))


def test_a_weight_beyond_the_type_that_the_model_computes_in_is_refused(copy: Path) -> None:
    weights = load_file(copy / SINGLE)
    save_file({**weights, QUERY: weights[QUERY] * np.float32(1e6)}, copy / SINGLE)
    Engine.load(EngineConfig(model=copy, dtype="bfloat16"))
    with pytest.raises(
        CheckpointInvalid, match=rf"{QUERY} has numbers that are infinite .* in torch\.float16"
    ):
        Engine.load(EngineConfig(model=copy, dtype="float16"))


def in_two_shards(directory: Path) -> dict[str, str]:
    """Divide the single file, and return the index's map of tensors to files."""
    weights = load_file(directory / SINGLE)
    (directory / SINGLE).unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, directory / file)
    return {name: file for file, held in parts.items() for name in held}


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_tensor_that_the_index_does_not_expect_in_its_shard_is_refused(copy: Path) -> None:
    weight_map = in_two_shards(copy)
    write_index(copy, weight_map)
    Engine.load(EngineConfig(model=copy))
    stray = weight_map.pop("model.norm.weight")
    write_index(copy, weight_map)
    with pytest.raises(CheckpointInvalid, match=rf"{stray} has tensors .* model\.norm\.weight among them"):
        Engine.load(EngineConfig(model=copy))
    # The same tensor in both shards: engines differ in which one they take.
    twice = load_file(copy / "a.safetensors") | load_file(copy / "b.safetensors")
    save_file(twice, copy / "a.safetensors")
    write_index(copy, weight_map | {"model.norm.weight": stray})
    with pytest.raises(CheckpointInvalid, match=r"a\.safetensors has tensors that .* does not expect there"):
        Engine.load(EngineConfig(model=copy))


def test_a_single_file_beside_an_index_of_others_is_refused(copy: Path) -> None:
    single = (copy / SINGLE).read_bytes()
    write_index(copy, in_two_shards(copy))
    (copy / SINGLE).write_bytes(single)
    with pytest.raises(CheckpointInvalid, match="remove one of them"):
        Engine.load(EngineConfig(model=copy))


def test_an_index_may_list_the_single_file(copy: Path) -> None:
    write_index(copy, dict.fromkeys(load_file(copy / SINGLE), SINGLE))
    Engine.load(EngineConfig(model=copy))
