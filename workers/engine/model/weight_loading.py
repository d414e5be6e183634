"""Loading a Decoder from the safetensors of a checkpoint, in one file or several.

q_proj k_proj v_proj   -> qkv       one product instead of three
gate_proj up_proj      -> gate_up   one instead of two
lm_head                -> head      the embedding again where the head is tied

A tensor that no layer takes is refused: config.json describes another model than the one that was saved.

Linear layers are quantised here if the settings require it, or come quantised from the checkpoint. Embedding, norms
and head are never quantised.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import Quantization
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.model.decoder import Decoder, DecoderLayer
from workers.engine.model.linear import PlainLinear, Projection, StackedLinear
from workers.engine.model.quantised_checkpoint import read_groups
from workers.engine.model.quantization import GroupedLinear, GroupedWeight, build_projection
from workers.engine.model.rope import RopeTable
from workers.engine.model.tensor_files import TensorFiles


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
        CheckpointInvalid: a weight is missing, is not used, is not finite, or has another shape than in the spec.
        ConfigInvalid: `quantization` is set, and the checkpoint is quantised already.
    """
    if spec.quantization is not None and quantization != "none":
        raise ConfigInvalid(
            f"quantization {quantization} was asked for, "
            f"and the checkpoint is quantised ({spec.quantization.method})"
        )
    files = TensorFiles.of(directory, dtype=dtype, device=device)
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
    if spec.tied_head:
        _refuse_another_head(files, embedding)
    _refuse_unused(files, spec)
    return decoder


def _refuse_another_head(files: TensorFiles, embedding: Tensor) -> None:
    """Raise CheckpointInvalid if a head was saved with a tied model, and is not the embedding.

    Some engines compute with such a head, and others with the embedding.
    """
    if "lm_head.weight" in files and not torch.equal(
        files.take("lm_head.weight", *embedding.shape), embedding
    ):
        raise CheckpointInvalid(
            "lm_head.weight differs from the embedding, and config.json ties the two (tie_word_embeddings)"
        )


def _refuse_unused(files: TensorFiles, spec: ModelSpec) -> None:
    """Raise CheckpointInvalid for tensors that the model of config.json has no place for."""
    # The frequencies of the rotary embedding, which early Llamas saved, follow from config.json.
    unused = [name for name in files.unused() if not name.endswith(".rotary_emb.inv_freq")]
    if unused:
        raise CheckpointInvalid(
            f"the checkpoint has {len(unused)} tensors that the {spec.architecture} of {spec.layers} layers in "
            f"config.json does not use, {min(unused)} among them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds decoder layers by joining the matrices that a checkpoint stores apart."""

    files: TensorFiles
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
