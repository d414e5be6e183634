"""Write the tiny checkpoint as a GGUF file, which llama.cpp reads: `python gguf_file.py CHECKPOINT FILE`.

It runs in the environment of llama.cpp, which has gguf, numpy and safetensors. Only what the tiny checkpoint has is
covered: a Llama with weights in float32, and a byte-level BPE that splits words as Qwen does.
"""

import json
import re
import sys
from pathlib import Path

import gguf
from safetensors.numpy import load_file

SPECIAL = re.compile(r"<\|.*\|>$")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in ("gate", "up", "down")},
}
"""The name of a tensor in the checkpoint, without its layer -> its name in GGUF."""


def write(checkpoint, file):
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, checkpoint, config)
    for name, weights in load_file(checkpoint / "model.safetensors").items():
        heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}
        if found := re.search(r"self_attn\.([qk])_proj", name):
            weights = interleaved(weights, config[heads[found[1]]])
        writer.add_tensor(name_of(name), weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def name_of(name):
    """Return the name of a tensor in GGUF."""
    stem, _, kind = name.rpartition(".")
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", stem)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}" if layer else f"{NAMES[stem]}.{kind}"


def interleaved(weights, heads):
    """Return the rows of a projection in the order in which llama.cpp rotates them: pairs beside each other."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def add_tokenizer(writer, checkpoint, config):
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    tokens += [f"<unused {at}>" for at in range(len(tokens), config["vocab_size"])]
    kinds = [gguf.TokenType.CONTROL if SPECIAL.match(token) else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in vocabulary["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    writer.add_chat_template(settings["chat_template"])


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
