"""Builds a tiny but complete checkpoint, so that the engine can be tried without a download.

    python -m workers.engine.tiny_checkpoint DIRECTORY

    config.json  generation_config.json           Llama, Qwen2, Qwen3 or Mistral, in Hugging Face's format
    model.safetensors                             float32, random but the same for the same seed
    tokenizer.json  tokenizer_config.json         byte-level BPE trained on generated text; a ChatML template
    radixgate_tiny.json                           the parameters that it was built with, and its files

The model generates gibberish, yet it loads in transformers, vLLM and SGLang, and its greedy choices are clear: with
weights this large the best token leads by far more than the rounding by which two correct implementations differ.
"""

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from workers.engine.tiny_text import sentences

Architecture = Literal["llama", "qwen2", "qwen3", "mistral"]

MARKER = "radixgate_tiny.json"
FORMAT = 2
"""The version of the format; raise it when the same parameters give other files."""

END_OF_TEXT, TURN_BEGIN, TURN_END, PADDING = SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
)

# How Qwen splits text into words. Transformers splits so for every qwen2 model, whatever tokenizer.json says: with
# another split the same text would be two different prompts.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- macro text(content) %}
{%- if content is string %}
{{- content }}
{%- elif content %}
{%- for part in content %}
{{- part['text'] }}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}
{{- text(messages[0]['content']) + '\\n\\n' }}
{%- endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' }}{{ tool | tojson }}
{%- endfor %}
{{- '\\n</tools>\\nCall one like this:\\n<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message['role'] == 'system') %}
{{- '<|im_start|>' + message['role'] + '\\n' + text(message['content']) }}
{%- for call in message['tool_calls'] or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
{{- call['function']['arguments'] | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpointSettings:
    """The parameters of a tiny checkpoint; ValueError names those that contradict each other."""

    architecture: Architecture
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int
    seed: int
    init: float
    window: int

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            raise ValueError(
                f"architecture must be one of {get_args(Architecture)}, not {self.architecture!r}"
            )
        if min(self.layers, self.intermediate, self.context) < 1:
            raise ValueError("layers, intermediate and context must be at least 1")
        if min(self.hidden, self.heads, self.kv_heads) < 1 or self.hidden % (2 * self.heads):
            raise ValueError(f"hidden {self.hidden} must be a multiple of twice the heads ({self.heads})")
        if self.window < 0 or (self.window and self.architecture == "llama"):
            raise ValueError(f"window must not be negative, nor anything but 0 for llama, not {self.window}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.vocab < 256 + len(SPECIAL_TOKENS):
            raise ValueError(
                f"vocab {self.vocab} is too small for 256 bytes and {len(SPECIAL_TOKENS)} special tokens"
            )

    @property
    def head_dim(self) -> int:
        """The size of one attention head."""
        return self.hidden // self.heads


def build(
    directory: Path | str,
    *,
    architecture: Architecture = "llama",
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    vocab: int = 1024,
    context: int = 4096,
    seed: int = 0,
    init: float = 0.25,
    window: int = 0,
) -> Path:
    """Build the checkpoint in `directory`, all or nothing, and return its path.

    A directory that holds exactly this checkpoint is left unchanged; another tiny checkpoint is replaced.

    Args:
        directory: where the checkpoint goes.
        architecture: the model family.
        hidden: the size of a hidden state.
        layers: the number of layers.
        heads: the number of query heads.
        kv_heads: the number of key and value heads.
        intermediate: the inner size of the MLP.
        vocab: the number of tokens.
        context: the context length in tokens.
        seed: of the random weights and of the text that the tokenizer is trained on.
        init: the standard deviation of the weights.
        window: the sliding window of every layer of a Mistral, and of the upper half of a Qwen's; 0: none.

    Raises:
        FileExistsError: the directory holds anything but a tiny checkpoint.
        ValueError: the parameters contradict each other.
    """
    shape = TinyCheckpointSettings(
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        vocab=vocab,
        context=context,
        seed=seed,
        init=init,
        window=window,
    )
    target = Path(directory).absolute()
    if _holds(target, shape):
        return target
    if target.exists() and not (target / MARKER).exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not a tiny checkpoint; it is left as it is")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built in a directory beside the target and renamed: a reader finds the whole checkpoint or none.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as workplace:
        fresh = Path(workplace) / "fresh"
        fresh.mkdir()
        _write(fresh, shape)
        try:
            _swap(fresh, target, Path(workplace) / "old")
        except OSError:
            # Another process built the same checkpoint at the same time, and was first.
            if not _holds(target, shape):
                raise
    return target


def _holds(target: Path, shape: TinyCheckpointSettings) -> bool:
    try:
        marker = json.loads((target / MARKER).read_text(encoding="utf-8"))
        sizes = {name: (target / name).stat().st_size for name in marker["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(marker == _marker(shape, sizes))


def _marker(shape: TinyCheckpointSettings, sizes: dict[str, int]) -> dict[str, Any]:
    return {"format": FORMAT, "shape": asdict(shape), "files": sizes}


def _swap(fresh: Path, target: Path, old: Path) -> None:
    if (target / MARKER).exists():
        target.rename(old)
    fresh.rename(target)


def _write(directory: Path, shape: TinyCheckpointSettings) -> None:
    write_descriptions(directory, shape, train_tokenizer(shape.vocab, sentences(shape.seed, 4000)))
    save_file(_weights(shape), directory / "model.safetensors", metadata={"format": "pt"})
    sizes = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    _write_json(directory / MARKER, _marker(shape, sizes))


def write_descriptions(
    directory: Path, shape: TinyCheckpointSettings, tokenizer: Tokenizer, *, tied_head: bool = False
) -> None:
    """Write every file of a checkpoint but its weights; `tied_head`: the head is the embedding."""
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(shape))
    _write_json(directory / "config.json", {**_config(shape), "tie_word_embeddings": tied_head})
    _write_json(directory / "generation_config.json", _special_ids())


def train_tokenizer(vocab: int, texts: Iterable[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer of `vocab` tokens, trained on `texts`; the same texts give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _tokenizer_config(shape: TinyCheckpointSettings) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": PADDING,
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _special_ids() -> dict[str, int]:
    # The trainer gives the special tokens the first ids, in their order.
    names = {"bos_token_id": END_OF_TEXT, "eos_token_id": TURN_END, "pad_token_id": PADDING}
    return {name: SPECIAL_TOKENS.index(token) for name, token in names.items()}


def _config(shape: TinyCheckpointSettings) -> dict[str, Any]:
    return {
        "architectures": [f"{shape.architecture.capitalize()}ForCausalLM"],
        "model_type": shape.architecture,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "initializer_range": shape.init,
        "use_cache": True,
        "torch_dtype": "float32",
        **_special_ids(),
        **_window(shape),
    }


def _window(shape: TinyCheckpointSettings) -> dict[str, Any]:
    if shape.architecture == "mistral":
        return {"sliding_window": shape.window or None}
    if not shape.window:
        return {}
    return {
        "use_sliding_window": True,
        "sliding_window": shape.window,
        "max_window_layers": shape.layers // 2,
    }


def _weights(shape: TinyCheckpointSettings) -> dict[str, NDArray[np.float32]]:
    chance = np.random.Generator(np.random.PCG64(shape.seed))

    def normal(*size: int) -> NDArray[np.float32]:
        return chance.standard_normal(size, dtype=np.float32) * np.float32(shape.init)

    def scale(size: int = shape.hidden) -> NDArray[np.float32]:
        # Around one, but not one: an implementation that omits a norm's weight must give other tokens.
        return 1 + chance.standard_normal(size, dtype=np.float32) * np.float32(0.1)

    keys = shape.kv_heads * shape.head_dim
    weights = {"model.embed_tokens.weight": normal(shape.vocab, shape.hidden)}
    for number in range(shape.layers):
        prefix = f"model.layers.{number}."
        weights[prefix + "input_layernorm.weight"] = scale()
        for name, outputs in (("q_proj", shape.hidden), ("k_proj", keys), ("v_proj", keys)):
            weights[f"{prefix}self_attn.{name}.weight"] = normal(outputs, shape.hidden)
            if shape.architecture == "qwen2":
                weights[f"{prefix}self_attn.{name}.bias"] = normal(outputs)
        if shape.architecture == "qwen3":
            for name in ("q_norm", "k_norm"):
                weights[f"{prefix}self_attn.{name}.weight"] = scale(shape.head_dim)
        weights[prefix + "self_attn.o_proj.weight"] = normal(shape.hidden, shape.hidden)
        weights[prefix + "post_attention_layernorm.weight"] = scale()
        weights[prefix + "mlp.gate_proj.weight"] = normal(shape.intermediate, shape.hidden)
        weights[prefix + "mlp.up_proj.weight"] = normal(shape.intermediate, shape.hidden)
        weights[prefix + "mlp.down_proj.weight"] = normal(shape.hidden, shape.intermediate)
    weights["model.norm.weight"] = scale()
    weights["lm_head.weight"] = normal(shape.vocab, shape.hidden)
    return weights


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workers.engine.tiny_checkpoint")
    parser.add_argument("directory", type=Path)
    # One option for each parameter of `build`, with its default.
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = parameter.default
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=type(default), default=default, help=f"default {default}")
    values = vars(parser.parse_args(arguments))
    try:
        print(build(values.pop("directory"), **values))
    except (OSError, ValueError) as err:
        print(f"tiny_checkpoint: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
