"""The keys of a config.json that change a model in a way that this engine does not compute.

A checkpoint with such a key would run, and its answers would be wrong. A key is ignored where its value
changes nothing.
"""

from collections.abc import Mapping
from typing import Any

from workers.engine.errors import CheckpointInvalid

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    # Logits
    "final_logit_softcapping": (0,),
    "attn_logit_softcapping": (0,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "lm_head_multiplier": (1,),
    "dim_model_base": (),
    # Scales within the layers
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "mup_enabled": (False,),
    # Attention
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "attn_output_gate": (False,),
    "attention_sinks": (False,),
    "attention_chunk_size": (),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "rope_local_base_freq": (),
    "kv_lora_rank": (0,),
    "alibi": (False,),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "num_kv_shared_layers": (0,),
    "hidden_activation": ("silu",),
    # Layers of other kinds
    "num_experts": (0,),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "moe_num_experts": (0,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "mamba_d_state": (),
    "linear_num_value_heads": (0,),
}
"""The values of each key that leave the model as this engine computes it; so does null, for every key."""


def refuse_unsupported_keys(config: Mapping[str, Any]) -> None:
    """Raise CheckpointInvalid, which names the key, for a config.json of a model that is computed differently."""
    for name, harmless in _HARMLESS.items():
        value = config.get(name)
        if value is not None and value not in harmless:
            raise CheckpointInvalid(f"config.json: {name} {value!r} is not supported: it changes the model")
    own_code = config.get("auto_map")
    if isinstance(own_code, Mapping) and "AutoModelForCausalLM" in own_code:
        raise CheckpointInvalid(
            f"config.json: auto_map names code of the checkpoint's own ({own_code['AutoModelForCausalLM']}), which"
            " is not run"
        )
