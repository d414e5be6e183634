"""Loading a Decoder from the safetensors of a checkpoint, in one file or several.

q_proj k_proj v_proj   -> qkv       one product instead of three
gate_proj up_proj      -> gate_up   one instead of two
lm_head                -> head      the embedding again where the head is tied

A tensor that no layer takes is refused: config.json describes another model than the one that was saved. So is a
number that is infinite or not a number at all.

Linear layers are quantised here if the settings say so, or come quantised from the checkpoint. Embedding, norms and
head are never quantised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.engine.checkpoint.json_files import read_json
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import Quantization
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.model.decoder import Decoder, DecoderLayer
from workers.engine.model.linear import PlainLinear, Projection, StackedLinear
from workers.engine.model.quantised_checkpoint import read_groups
from workers.engine.model.quantization import GroupedLinear, GroupedWeight, build_projection
from workers.engine.model.rope import RopeTable


def load_decoder(
    directory: Path,
    spec: ModelSpec,
    *,
    context_length: int,
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization = "none",
) -> Decoder:
    """Read every weight that the spec needs.

    Args:
        directory: the checkpoint.
        spec: the model, as config.json describes it.
        context_length: positions that the rotary tables are made for.
        dtype: the type that the model computes in.
        device: where the weights go.
        quantization: how the linear layers of an unquantised checkpoint are quantised.

    Raises:
        CheckpointInvalid: a weight is missing, is not used, is not finite, or has another shape than the spec says.
        ConfigInvalid: `quantization` is asked for, and the checkpoint is quantised already.
    """
    if spec.quantization is not None and quantization != "none":
        raise ConfigInvalid(
            f"quantization {quantization} was asked for, "
            f"and the checkpoint is quantised ({spec.quantization.method})"
        )
    files = _Files(shards=_shards(directory), dtype=dtype, device=device)
    embedding = files.take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    builder = _Builder(files=files, spec=spec, quantization=quantization)
    head = (
        # The embedding is read by rows, so it stays row-major; a packed copy would be as large again.
        PlainLinear(weight=embedding)
        if spec.tied_head
        else _Builder(files=files, spec=spec, quantization="none").linear(
            {"lm_head": spec.vocab_size}, spec.hidden_size, bias=False
        )
    )
    decoder = Decoder(
        spec=spec,
        embedding=embedding,
        layers=tuple(builder.layer(f"model.layers.{number}.") for number in range(spec.layers)),
        norm=files.take("model.norm.weight", spec.hidden_size),
        head=head,
        rope=RopeTable.build(spec.rope, head_dim=spec.head_dim, context_length=context_length, device=device),
    )
    files.refuse_unused(spec)
    return decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The tensors of a checkpoint by name."""

    shards: Mapping[str, Path]
    dtype: torch.dtype
    device: torch.device
    taken: set[str] = field(default_factory=set)
    """The names of the tensors that were read."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Read a tensor, check its shape, and convert it to the type that the model computes in."""
        return self.raw(name, *shape).to(self.dtype)

    def raw(self, name: str, *shape: int) -> Tensor:
        """Read a tensor in the type that it is stored in, and check its shape."""
        self.taken.add(name)
        return _read(self.shards, name, shape).to(self.device)

    def refuse_unused(self, spec: ModelSpec) -> None:
        """Raise CheckpointInvalid for tensors that the model of config.json has no place for."""
        # The head of a tied model is the embedding, whether or not a copy was saved. The frequencies of the rotary
        # embedding, which early Llamas saved, follow from config.json.
        known = {"lm_head.weight"} if spec.tied_head else set()
        unused = [
            name
            for name in self.shards
            if name not in self.taken and name not in known and not name.endswith(".rotary_emb.inv_freq")
        ]
        if unused:
            raise CheckpointInvalid(
                f"the checkpoint has {len(unused)} tensors that the {spec.architecture} of {spec.layers} layers in "
                f"config.json does not use, {min(unused)} among them"
            )

    def __contains__(self, name: object) -> bool:
        return name in self.shards


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds decoder layers by joining the matrices that a checkpoint stores apart."""

    files: _Files
    spec: ModelSpec
    quantization: Quantization

    def layer(self, prefix: str) -> DecoderLayer:
        """Return the layer of the tensors with names that begin with `prefix`."""
        spec, take = self.spec, self.files.take
        hidden, inner = spec.hidden_size, spec.intermediate_size
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

        def linear(names: dict[str, int], inputs: int, *, bias: bool) -> Projection:
            return self.linear({prefix + name: outputs for name, outputs in names.items()}, inputs, bias=bias)

        attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        return DecoderLayer(
            attention_norm=take(f"{prefix}input_layernorm.weight", hidden),
            qkv=linear(attention, hidden, bias=spec.qkv_bias),
            output=linear({"self_attn.o_proj": hidden}, queries, bias=spec.output_bias),
            mlp_norm=take(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, bias=spec.mlp_bias),
            down=linear({"mlp.down_proj": hidden}, inner, bias=spec.mlp_bias),
            query_norm=take(f"{prefix}self_attn.q_norm.weight", spec.head_dim) if spec.qk_norm else None,
            key_norm=take(f"{prefix}self_attn.k_norm.weight", spec.head_dim) if spec.qk_norm else None,
        )

    def linear(self, names: dict[str, int], inputs: int, *, bias: bool) -> Projection:
        """Return one layer of the named matrices joined by outputs; `names` gives the outputs of each."""
        if self.spec.quantization is not None and any(f"{name}.qweight" in self.files for name in names):
            return self._quantised(names, inputs, bias=bias)
        weights = [self.files.take(f"{name}.weight", outputs, inputs) for name, outputs in names.items()]
        biases = [self.files.take(f"{name}.bias", outputs) for name, outputs in names.items()] if bias else []
        return build_projection(torch.cat(weights), torch.cat(biases) if biases else None, self.quantization)

    def _quantised(self, names: dict[str, int], inputs: int, *, bias: bool) -> Projection:
        """Return one layer where the parts have the same groups, else one for each; a part may be unquantised."""
        parts = {name: self._groups(name, inputs, outputs) for name, outputs in names.items()}
        groups = [part for part in parts.values() if part is not None]
        joined = GroupedWeight.stack(groups) if len(groups) == len(parts) else None
        biases = {name: self._bias(name, outputs, bias=bias) for name, outputs in names.items()}
        given = [each for each in biases.values() if each is not None]
        if joined is not None and len(given) in (0, len(parts)):
            return GroupedLinear.build(joined, torch.cat(given) if given else None, self.files.dtype)
        return StackedLinear(
            parts=tuple(
                build_projection(self.files.take(f"{name}.weight", names[name], inputs), biases[name], "none")
                if part is None
                else GroupedLinear.build(part, biases[name], self.files.dtype)
                for name, part in parts.items()
            )
        )

    def _groups(self, name: str, inputs: int, outputs: int) -> GroupedWeight | None:
        if self.spec.quantization is None or f"{name}.qweight" not in self.files:
            return None
        return read_groups(self.spec.quantization, self.files.raw, name, inputs=inputs, outputs=outputs)

    def _bias(self, name: str, outputs: int, *, bias: bool) -> Tensor | None:
        """Read a bias if there is one: quantisers may add a bias where the model has none."""
        return self.files.take(f"{name}.bias", outputs) if bias or f"{name}.bias" in self.files else None


def _shards(directory: Path) -> dict[str, Path]:
    """Return the file that holds each tensor."""
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
    # A file name that leads out of the directory would read files that do not belong to the checkpoint.
    if stray := [name for name in weight_map.values() if Path(str(name)).name != name]:
        raise CheckpointInvalid(f"{index} names a shard outside of the checkpoint: {stray[0]!r}")
    return {tensor: directory / name for tensor, name in weight_map.items()}


def _read(shards: Mapping[str, Path], name: str, shape: tuple[int, ...]) -> Tensor:
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
    # Both ends of the range are finite if all numbers are; one pass without a copy.
    if tensor.is_floating_point() and not all(end.isfinite() for end in tensor.aminmax()):
        raise CheckpointInvalid(f"{path}: {name} has numbers that are infinite or not numbers at all")
    return tensor


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as err:
        raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
