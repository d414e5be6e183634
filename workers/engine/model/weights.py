"""Safetensors on disk, one file or several, to a Decoder.

q_proj k_proj v_proj   -> qkv       one product instead of three
gate_proj up_proj      -> gate_up   one instead of two
lm_head, or the embedding again where the head is tied
"""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.engine.checkpoint import read_json
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.decoder import Decoder, Layer, Linear
from workers.engine.model.rope import RopeTable
from workers.engine.model.spec import ModelSpec


def load_decoder(
    directory: Path, spec: ModelSpec, *, context_length: int, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Read every weight that the spec needs; CheckpointInvalid names a missing or misshapen one."""
    shards = _shards(directory)

    def take(name: str, *shape: int) -> Tensor:
        return _read(shards, name, shape).to(device=device, dtype=dtype)

    embedding = take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    head = embedding if spec.tied_head else take("lm_head.weight", spec.vocab_size, spec.hidden_size)
    return Decoder(
        spec=spec,
        embedding=embedding,
        layers=tuple(_layer(f"model.layers.{number}.", spec, take) for number in range(spec.layers)),
        norm=take("model.norm.weight", spec.hidden_size),
        head=Linear(weight=head),
        rope=RopeTable.build(spec.rope, head_dim=spec.head_dim, context_length=context_length, device=device),
    )


def _layer(prefix: str, spec: ModelSpec, take: Callable[..., Tensor]) -> Layer:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def linear(names: dict[str, int], inputs: int, *, bias: bool) -> Linear:
        """The named matrices one under the other; `names` gives the outputs of each."""
        weights = [take(f"{prefix}{name}.weight", outputs, inputs) for name, outputs in names.items()]
        biases = [take(f"{prefix}{name}.bias", outputs) for name, outputs in names.items()] if bias else []
        return Linear(weight=torch.cat(weights), bias=torch.cat(biases) if biases else None)

    attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    return Layer(
        attention_norm=take(f"{prefix}input_layernorm.weight", hidden),
        qkv=linear(attention, hidden, bias=spec.qkv_bias),
        output=linear({"self_attn.o_proj": hidden}, queries, bias=spec.output_bias),
        mlp_norm=take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, bias=spec.mlp_bias),
        down=linear({"mlp.down_proj": hidden}, inner, bias=spec.mlp_bias),
    )


def _shards(directory: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        single = directory / "model.safetensors"
        if not single.exists():
            raise CheckpointInvalid(f"{directory} has neither {single.name} nor {index.name}")
        with _open(single) as file:
            return dict.fromkeys(file.keys(), single)
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointInvalid(f"{index} has no weight_map")
    # A file name that leads out of the directory would read what nobody meant to share.
    if stray := [name for name in weight_map.values() if Path(str(name)).name != name]:
        raise CheckpointInvalid(f"{index} names a shard outside of the checkpoint: {stray[0]!r}")
    return {tensor: directory / name for tensor, name in weight_map.items()}


def _read(shards: dict[str, Path], name: str, shape: tuple[int, ...]) -> Tensor:
    path = shards.get(name)
    if path is None:
        raise CheckpointInvalid(f"the checkpoint has no tensor {name}")
    with _open(path) as file:
        try:
            tensor: Tensor = file.get_tensor(name)
        except SafetensorError as err:
            raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
    if tuple(tensor.shape) != shape:
        raise CheckpointInvalid(f"{name} has shape {tuple(tensor.shape)}, config.json says {shape}")
    return tensor


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as err:
        raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
