"""AWQ and GPTQ checkpoints give the tokens of a plain checkpoint with the same weights."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.unit.workers.engine.model.quantiser import Scheme, quantise
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.checkpoint.quantization_spec import QuantizationSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.model.linear import StackedLinear
from workers.engine.model.quantised_checkpoint import read_groups
from workers.engine.model.quantization import GroupedLinear
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

PROMPTS = [[5, 9, 200, 431, 77] * 3, [8], [400, 41, 42, 43] * 5]

SCHEMES = {
    "awq": Scheme(method="awq"),
    "awq-whole": Scheme(method="awq", group=-1),
    "gptq": Scheme(method="gptq"),
    "gptq-symmetric": Scheme(method="gptq", symmetric=True),
    "gptq-v2": Scheme(method="gptq", second_format=True),
    "gptq-desc-act": Scheme(method="gptq", shuffle=True, group=16),
    "gptq-desc-act-apart": Scheme(method="gptq", shuffle=True, shuffle_apart=True),
    "gptq-8": Scheme(method="gptq", bits=8),
    "gptq-8-whole": Scheme(method="gptq", bits=8, group=-1, symmetric=True),
    "awq-some-plain": Scheme(method="awq", plain=("v_proj", "down_proj")),
    "gptq-head": Scheme(method="gptq", head=True),
}


@pytest.fixture(scope="session")
def quantised(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, Path]]:
    """Packed and plain checkpoints of a scheme, made at the first use."""
    made: dict[tuple[str, str], tuple[Path, Path]] = {}

    def both(scheme: str, variant: str = "llama-gqa") -> tuple[Path, Path]:
        if (scheme, variant) not in made:
            target = tmp_path_factory.mktemp("quantised")
            made[scheme, variant] = quantise(checkpoint(variant), target, SCHEMES[scheme])
        return made[scheme, variant]

    return both


def requests() -> list[Request]:
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    return [Request(id=str(n), prompt=prompt, params=params) for n, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize(
    ("scheme", "variant"),
    [*((scheme, "llama-gqa") for scheme in SCHEMES), ("gptq-desc-act", "qwen2-mqa"), ("awq", "qwen3-gqa")],
)
def test_a_quantised_checkpoint_gives_the_tokens_of_transformers_on_the_same_weights(
    scheme: str, variant: str, quantised: Callable[..., tuple[Path, Path]], finish: Callable[..., Any]
) -> None:
    packed, plain = quantised(scheme, variant)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    engine = Engine.load(EngineConfig(model=packed, dtype="float32", chunk_tokens=8))
    answers = finish(engine, requests())
    for prompt, answer in zip(PROMPTS, answers.values(), strict=True):
        wanted = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=3,
        )
        assert wanted[0][len(prompt) :].tolist() == answer.tokens


def test_query_key_and_value_are_one_layer_where_their_groups_agree(
    quantised: Callable[..., tuple[Path, Path]],
) -> None:
    def first(scheme: str) -> Any:
        engine: Any = Engine.load(EngineConfig(model=quantised(scheme)[0], dtype="float32"))
        return engine._runner._decoder.layers[0]

    assert isinstance(first("gptq-desc-act").qkv, GroupedLinear)
    assert isinstance(first("gptq-desc-act-apart").qkv, StackedLinear)
    # One of the three was left plain.
    assert isinstance(first("awq-some-plain").qkv, StackedLinear)


def test_a_symmetric_weight_has_nothing_to_add(quantised: Callable[..., tuple[Path, Path]]) -> None:
    engine: Any = Engine.load(EngineConfig(model=quantised("gptq-symmetric")[0], dtype="float32"))
    layer = engine._runner._decoder.layers[0].qkv
    assert not layer.scale_and_middle[..., 1].any()


LIBRARIES = json.loads((Path(__file__).parent / "packed_weights.json").read_text())


@pytest.mark.parametrize("name", ["awq", "gptq4", "gptq8"])
def test_what_the_libraries_pack_is_read_as_it_was(name: str) -> None:
    """The vectors were packed by AutoAWQ 0.2.9 and AutoGPTQ 0.7.1."""
    given = LIBRARIES[name]
    steps = torch.tensor([*bytes.fromhex(given["steps"])]).view(32, 32)
    zeros, scales = torch.tensor(given["zeros"]), torch.tensor(given["scales_by_1024"]) / 1024
    group_of = torch.tensor(given.get("g_idx", [column // 16 for column in range(32)]))
    wanted = (steps - zeros[:, group_of]) * scales[:, group_of]
    tensors = {
        part: torch.tensor(given[part], dtype=torch.int32)
        for part in ("qweight", "qzeros", "g_idx")
        if part in given
    }
    tensors["scales"] = scales.t().half()

    def read(tensor: str, *shape: int) -> torch.Tensor:
        found = tensors[tensor.removeprefix("m.")]
        assert found.shape == shape
        return found

    spec = QuantizationSpec(
        method="awq" if name == "awq" else "gptq",
        bits=8 if name == "gptq8" else 4,
        group=16,
        zero_points_minus_one=name != "awq",
    )
    groups = read_groups(spec, read, "m", inputs=32, outputs=32)
    weight = GroupedLinear.build(groups, None, torch.float32).dequantised()
    if groups.order is not None:
        weight = torch.empty_like(weight).index_copy_(1, groups.order, weight)
    torch.testing.assert_close(weight, wanted, atol=0, rtol=1e-6)


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (AWQ, QuantizationSpec(method="awq", bits=4, group=32)),
        (AWQ | {"group_size": -1, "version": "GEMM"}, QuantizationSpec(method="awq", bits=4, group=None)),
        (GPTQ, QuantizationSpec(method="gptq", bits=4, group=32, zero_points_minus_one=True)),
        (
            GPTQ | {"checkpoint_format": "gptq_v2", "bits": 8},
            QuantizationSpec(method="gptq", bits=8, group=32),
        ),
    ],
)
def test_the_scheme_is_read_from_config_json(config: dict[str, Any], wanted: QuantizationSpec) -> None:
    assert ModelSpec.from_config(CONFIG | {"quantization_config": config}, {}).quantization == wanted


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"bits": 4}, "quant_method None"),
        ("awq", "must be an object"),
        (AWQ | {"bits": 8}, "bits of AWQ 8"),
        (AWQ | {"version": "gemv"}, "version of AWQ 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point"),
        (AWQ | {"group_size": None}, "group_size None"),
        (GPTQ | {"group_size": 0}, "group_size 0"),
        (GPTQ | {"bits": 3}, "bits of GPTQ 3"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'marlin'"),
        (GPTQ | {"is_marlin_format": True}, "checkpoint_format"),
        (GPTQ | {"dynamic": {"-:x": {}}}, "dynamic"),
        (GPTQ | {"pack_dtype": "int16"}, "int16"),
    ],
)
def test_other_schemes_are_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        ModelSpec.from_config(CONFIG | {"quantization_config": config}, {})


@pytest.fixture
def broken(quantised: Callable[..., tuple[Path, Path]], tmp_path: Path) -> Callable[..., Path]:
    """A packed GPTQ checkpoint with one tensor changed."""

    def change(name: str, tensor: torch.Tensor | None) -> Path:
        for file in quantised("gptq")[0].iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = load_file(tmp_path / "model.safetensors")
        weights.pop(name)
        save_file(weights | ({} if tensor is None else {name: tensor}), tmp_path / "model.safetensors")
        return tmp_path

    return change


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("name", "tensor", "named"),
    [
        (f"{UP}.scales", None, "no tensor.*up_proj.scales"),
        (f"{UP}.qzeros", torch.zeros(2, 11, dtype=torch.int32), r"qzeros.*\(2, 11\).*\(2, 12\)"),
        (f"{UP}.qweight", torch.zeros(8, 96), "int32"),
        (f"{UP}.g_idx", torch.tensor([0] * 40 + [1] * 24, dtype=torch.int32), "g_idx"),
        (f"{UP}.g_idx", torch.tensor([0] * 32 + [7] * 32, dtype=torch.int32), "g_idx"),
        (f"{UP}.qweight", None, "no tensor.*up_proj.weight"),
    ],
)
def test_damage_is_named(
    name: str, tensor: torch.Tensor | None, named: str, broken: Callable[..., Path]
) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        Engine.load(EngineConfig(model=broken(name, tensor)))


def test_groups_that_do_not_divide_the_inputs_are_refused() -> None:
    for inputs, outputs in itertools.product((64, 80), (96, 100)):
        if (inputs, outputs) != (64, 96):
            with pytest.raises(CheckpointInvalid, match="whole groups of 32"):
                read_groups(
                    QuantizationSpec(method="gptq", bits=4, group=32),
                    lambda *_: torch.zeros(1),
                    "m",
                    inputs=inputs,
                    outputs=outputs,
                )


def test_a_quantised_checkpoint_is_not_quantised_again(quantised: Callable[..., tuple[Path, Path]]) -> None:
    with pytest.raises(ConfigInvalid, match=r"int8 was asked for.*awq"):
        Engine.load(EngineConfig(model=quantised("awq")[0], quantization="int8"))
