"""The planner's arithmetic, held to figures that were worked out by hand or published."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.workers.planning.published_configs import PUBLISHED
from workers.planning.capacity import (
    Deployment,
    DoesNotFit,
    InvalidFigure,
    context_per_user,
    kv_bytes_per_token,
    prefill_flops,
    seconds_per_token,
)
from workers.planning.gpus import GPUS
from workers.planning.layer_attention import kv_heads_per_gpu
from workers.planning.model_shape import read_shape

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_2_7B = LLAMA_8B | {
    "intermediate_size": 11008,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
SEVENTY = {"layers": 80, "kv_heads": 8, "head_dim": 128}


def deployment(config: dict[str, Any] = LLAMA_8B, gpu: str = "h100", **settings: Any) -> Deployment:
    return Deployment(shape=read_shape(config), gpu=GPUS[gpu], **settings)


def test_a_70b_model_with_eight_kv_heads_keeps_4096_tokens_in_1_34_gb():
    per_token = kv_bytes_per_token(**SEVENTY, dtype="fp16")
    assert (per_token, 4096 * per_token) == (327_680, 1_342_177_280)


def test_the_same_without_grouped_queries_takes_10_7_gb():
    assert 4096 * kv_bytes_per_token(layers=80, kv_heads=64, head_dim=128, dtype="fp16") == 10_737_418_240


def test_32_layers_of_32_heads_keep_4096_tokens_in_two_gibibytes():
    assert 4096 * kv_bytes_per_token(layers=32, kv_heads=32, head_dim=128, dtype="fp16") == 2 * 2**30


def test_180_gb_for_fifty_users_are_11_000_tokens_each_and_not_110_000():
    tokens = context_per_user(memory=320e9, weights=140e9, users=50, kv_bytes_per_token=327_680)
    assert tokens == 10_986
    # 110,000 tokens for each of fifty would take ten times the memory that is left.
    needed = 50 * 110_000 * 327_680
    assert needed / 180e9 == pytest.approx(10.0, abs=0.02)


def test_140_gb_of_weights_at_3_35_tb_s_are_42_ms_per_token():
    assert seconds_per_token(bytes_read=140e9, bandwidth=GPUS["h100"].bandwidth) == pytest.approx(
        0.0418, abs=1e-4
    )


def test_int8_keys_and_values_are_1_97_times_smaller_with_their_scales():
    full, small = (kv_bytes_per_token(layers=32, kv_heads=8, head_dim=128, dtype=d) for d in ("bf16", "int8"))
    assert (full, small) == (131_072, 66_560)
    assert full / small == pytest.approx(1.97, abs=0.005)


@pytest.mark.parametrize(("head_dim", "expected"), [(128, 36_864), (64, 18_432), (96, 30_720), (32, 10_240)])
def test_int4_adds_a_scale_and_a_minimum_for_each_group_of_64(head_dim: int, expected: int):
    assert kv_bytes_per_token(layers=32, kv_heads=8, head_dim=head_dim, dtype="int4") == expected


def test_96_heads_are_4_7_mb_per_token_and_48_kib_is_the_figure_of_one_head():
    shape = {"layers": 96, "head_dim": 128, "dtype": "fp16"}
    assert kv_bytes_per_token(kv_heads=96, **shape) == 4_718_592
    assert kv_bytes_per_token(kv_heads=8, **shape) == 393_216
    assert kv_bytes_per_token(kv_heads=1, **shape) == 49_152 == 48 * 1024


def test_an_h100_has_990_dense_teraflops_and_no_gpu_is_listed_with_sparsity():
    assert GPUS["h100"].flops == pytest.approx(990e12, rel=0.01)
    # Twice the dense rate stands in every source, beside the word.
    for gpu in GPUS.values():
        assert "sparsity" in gpu.source or "dense" in gpu.source


@pytest.mark.parametrize(
    ("kv_heads", "parallel", "held"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (3, 2, 2), (1, 4, 1)]
)
def test_tensor_parallelism_divides_kv_heads_but_not_below_one(kv_heads: int, parallel: int, held: int):
    assert kv_heads_per_gpu(kv_heads, parallel) == held


def test_beyond_its_kv_heads_a_model_gains_no_kv_memory_from_more_gpus():
    eight, sixteen = (
        deployment(LLAMA_70B, gpus=n, tensor_parallel=n).kv_bytes_per_token_per_gpu for n in (8, 16)
    )
    assert eight == sixteen == 327_680 // 8
    alone = deployment(LLAMA_8B)
    assert alone.kv_bytes_per_token == alone.kv_bytes_per_token_per_gpu == 131_072


def test_weights_are_two_bytes_a_parameter_and_quantised_ones_spare_embedding_and_head():
    shape = read_shape(LLAMA_8B)
    assert deployment().weights == 2 * 8_030_261_248
    int8 = deployment(weight_dtype="int8")
    assert int8.weights == shape.linear + 2 * (shape.embedding + shape.head + shape.small)
    assert deployment(weight_dtype="int4").weights < 0.6 * int8.weights + 1e9


def test_decode_reads_the_weights_once_without_an_embedding_that_is_only_looked_up():
    one = deployment(gpu="h200")
    assert one.decode_bytes(1, 0) == 2 * (8_030_261_248 - 128256 * 4096)
    # 15.0 GB at 4.8 TB/s, as published rooflines of this model have it.
    assert one.decode_tokens_per_second(1, 1024) == pytest.approx(317, abs=1)
    assert one.decode_tokens_per_second(32, 1024) == pytest.approx(7960, rel=0.01)
    assert one.decode_tokens_per_second(256, 4096) == pytest.approx(8060, rel=0.01)
    tied = deployment(LLAMA_8B | {"tie_word_embeddings": True}, gpu="h200")
    assert tied.decode_bytes(1, 0) == tied.weights


def test_a_large_enough_batch_is_bound_by_compute():
    one = deployment(gpu="h200")
    few, many = (one.step_seconds(batch, 0) for batch in (1, 4096))
    assert few == one.decode_bytes(1, 0) / one.gpu.bandwidth
    assert many > 1.5 * one.decode_bytes(4096, 0) / one.gpu.bandwidth


def test_prefill_takes_two_flop_a_parameter_and_token_and_attention_grows_with_the_square():
    shape = read_shape(LLAMA_8B)
    assert prefill_flops(shape, 1000) == pytest.approx(
        2 * shape.linear * 1000 + 2 * 32 * 4096 * 1000**2 + 2 * 128256 * 4096
    )
    whole = prefill_flops(shape, 1000)
    parts = prefill_flops(shape, 600) + prefill_flops(shape, 400, cached=600)
    # Two chunks cost what one does, but for a second row of scores.
    assert parts - whole == pytest.approx(2 * 128256 * 4096)


def test_ttft_is_queue_and_uncached_prefill_and_a_step():
    one = deployment()
    assert one.ttft_seconds(4096, cached=4000, queue_seconds=0.1) == pytest.approx(
        0.1 + one.prefill_seconds(96, 4000) + one.step_seconds(1, 4096)
    )
    # A whole hit still computes its last token.
    assert one.ttft_seconds(4096, cached=4096) > one.step_seconds(1, 4096)


@pytest.mark.parametrize(
    ("config", "gpu", "gpus", "users", "tokens"),
    [
        (LLAMA_8B, "h200", 1, 32, 29_800),
        (LLAMA_2_7B, "a100-80", 1, 16, 7_900),
        (LLAMA_70B, "h100", 2, 8, 7_200),
    ],
)
def test_the_longest_context_is_what_memory_leaves(
    config: dict[str, Any], gpu: str, gpus: int, users: int, tokens: int
):
    plan = deployment(config, gpu, gpus=gpus, tensor_parallel=gpus)
    assert plan.context_max(users) == pytest.approx(tokens, rel=0.01)
    by_hand = context_per_user(
        memory=gpus * plan.gpu.memory_bytes,
        weights=plan.weights,
        users=users,
        kv_bytes_per_token=plan.kv_bytes_per_token,
    )
    assert by_hand - 2 * plan.block_size < plan.context_max(users) <= by_hand


def test_users_and_context_are_inverse_to_a_block():
    plan = deployment(LLAMA_70B, gpus=8, tensor_parallel=4)
    for users in (1, 2, 7, 100):
        context = plan.context_max(users)
        assert plan.users_max(context) >= users > plan.users_max(context + plan.block_size)


def test_two_replicas_hold_twice_the_users_of_one():
    one, two = (deployment(gpus=n) for n in (1, 2))
    assert (one.replicas, two.replicas) == (1, 2)
    assert two.users_max(8192) == 2 * one.users_max(8192)
    assert two.decode_tokens_per_second(8, 1024) == 2 * one.decode_tokens_per_second(8, 1024)


def test_layers_with_a_window_keep_its_blocks_and_one_more():
    mistral = LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096, "vocab_size": 32000}
    plan, full = deployment(mistral), deployment(mistral | {"sliding_window": None})
    assert plan.sequence_bytes(4096) == full.sequence_bytes(4096)
    assert plan.sequence_bytes(100_000) == full.sequence_bytes(4096 + 16)
    assert plan.decode_bytes(1, 100_000) == full.decode_bytes(1, 4096)


def test_a_mixture_reads_more_experts_the_more_sequences_there_are():
    mixtral = LLAMA_8B | {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    }
    shape = read_shape(mixtral)
    assert shape.experts_read(1) == shape.experts / 4
    assert shape.experts_read(2) == pytest.approx(shape.experts * 7 / 16)
    assert shape.experts_read(1000) == pytest.approx(shape.experts)
    assert shape.multiplied == shape.linear + shape.experts / 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"config": LLAMA_70B}, "141.1 GB of weights"),
        ({"gpus": 3, "tensor_parallel": 2}, "3 GPUs"),
        ({"gpus": 3, "tensor_parallel": 3}, "32 heads"),
        ({"reserve_bytes": 70e9}, "no room"),
        ({"utilisation": 0.15}, "no room"),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_the_figures(settings: dict[str, Any], named: str):
    with pytest.raises(DoesNotFit, match=named):
        deployment(**settings)


@pytest.mark.parametrize("figure", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "name", ["gpus", "tensor_parallel", "block_size", "utilisation", "flops_share", "bandwidth_share"]
)
def test_what_is_no_figure_of_a_deployment_is_refused_by_its_name(name: str, figure: float):
    with pytest.raises(InvalidFigure, match=f"^{name} must be .*, not {figure}$"):
        deployment(**{name: figure})


@pytest.mark.parametrize("figure", [0, -1, float("inf"), float("nan")])
def test_a_gpu_without_memory_bandwidth_or_speed_is_refused(figure: float):
    for name in ("memory_bytes", "bandwidth", "flops"):
        with pytest.raises(InvalidFigure, match=name):
            replace(deployment(), gpu=replace(GPUS["h100"], **{name: figure}))
    with pytest.raises(InvalidFigure, match="bandwidth"):
        seconds_per_token(bytes_read=1.0, bandwidth=figure)
    with pytest.raises(InvalidFigure, match="users"):
        context_per_user(memory=2.0, weights=1.0, users=figure, kv_bytes_per_token=1.0)  # type: ignore[arg-type]


def test_a_sequence_that_does_not_fit_leaves_no_users_and_no_context():
    tight = deployment(reserve_bytes=63.9e9)
    assert (tight.users_max(131_072), tight.context_max(1000)) == (0, 0)


def test_the_pool_in_tokens_is_whole_blocks_less_one():
    plan = deployment(reserve_bytes=60e9)
    assert plan.kv_tokens % 16 == 0
    assert 0 < plan.kv_room - plan.kv_tokens * 131_072 <= 2 * 16 * 131_072


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 x layers x key-value heads x head size x 2 bytes
        ("Gemma-2-9B", 2 * 42 * 8 * 256 * 2),
        ("Gemma-2-27B", 2 * 46 * 16 * 128 * 2),
        ("Gemma-3-12B", 2 * 48 * 8 * 256 * 2),
        ("Gemma-3-27B", 2 * 62 * 16 * 128 * 2),
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),
        ("gpt-oss-120b", 2 * 36 * 8 * 64 * 2),
        ("Llama-4-Scout", 2 * 48 * 8 * 128 * 2),
        ("Llama-4-Maverick", 2 * 48 * 8 * 128 * 2),
        ("GLM-4.5", 2 * 92 * 8 * 128 * 2),
        ("GLM-4.5-Air", 2 * 46 * 8 * 128 * 2),
        ("Mixtral-8x7B", 2 * 32 * 8 * 128 * 2),
        ("Mixtral-8x22B", 2 * 56 * 8 * 128 * 2),
        ("Qwen3-30B-A3B", 2 * 48 * 4 * 128 * 2),
        ("Qwen3-235B-A22B", 2 * 94 * 4 * 128 * 2),
        # One vector of 512 and a rotated key of 64 for all heads.
        ("DeepSeek-V3", 61 * (512 + 64) * 2),
        ("Kimi-K2", 61 * (512 + 64) * 2),
        # Every fourth layer caches keys and values, with 2 heads of 256.
        ("Qwen3-Next-80B-A3B", 12 * 2 * 2 * 256 * 2),
    ],
)
def test_published_models_cache_the_bytes_worked_out_by_hand(name: str, expected: int):
    large = replace(GPUS["b300"], memory_bytes=4e12)
    plan = Deployment(shape=read_shape(PUBLISHED[name]), gpu=large)
    assert plan.kv_bytes_per_token == expected


@pytest.mark.parametrize(
    ("name", "context", "expected"),
    [
        # 21 layers see all of 8,192 tokens, 21 see 4,096 and keep a block more.
        ("Gemma-2-9B", 8192, 21 * 8192 * 8192 + 21 * (4096 + 16) * 8192),
        # Layers 6, 12 .. 60 see all, 52 see 1,024.
        ("Gemma-3-27B", 32768, 10 * 32768 * 8192 + 52 * (1024 + 16) * 8192),
        # 8 of 48 layers see all.
        ("Gemma-3-12B", 32768, 8 * 32768 * 8192 + 40 * (1024 + 16) * 8192),
        ("gpt-oss-120b", 131072, 18 * 131072 * 2048 + 18 * (128 + 16) * 2048),
        # 12 of 48 layers see all, the others a chunk of 8,192.
        ("Llama-4-Scout", 65536, 12 * 65536 * 4096 + 36 * (8192 + 16) * 4096),
        # 36 states of 32 x 128 x 128 in float32, and 3 past inputs of 8,192 channels in 16 bits.
        ("Qwen3-Next-80B-A3B", 8192, 8192 * 24576 + 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    ],
)
def test_a_sequence_takes_what_its_layers_keep_worked_out_by_hand(name: str, context: int, expected: int):
    plan = deployment(PUBLISHED[name], "b300", gpus=8)
    assert plan.sequence_bytes(context) == expected
    one = Deployment(shape=plan.shape, gpu=GPUS["b300"], weight_dtype="int4", gpus=1)
    room = one.kv_room - 16 * one.kv_bytes_per_token
    assert one.users_max(context) == int(room // expected)


def test_weights_of_the_published_mxfp4_checkpoints_take_their_published_bytes():
    # The model card says 12.8 and 60.8 GiB.
    for name, gibibytes in (("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)):
        plan = deployment(PUBLISHED[name], weight_dtype="mxfp4")
        assert plan.weights / 2**30 == pytest.approx(gibibytes, abs=0.05)


def test_a_latent_cache_is_whole_on_every_gpu():
    one, eight = (
        deployment(PUBLISHED["DeepSeek-V3"], "b300", gpus=8, tensor_parallel=n, weight_dtype="int4")
        for n in (2, 8)
    )
    assert one.kv_bytes_per_token_per_gpu == eight.kv_bytes_per_token_per_gpu == 61 * 576 * 2
    # An eighth of the weights, and the projections to the vector that all eight compute.
    copied = 7 * 61 * 7168 * 576 * (0.5 + 2.5 / 128)
    assert eight.weights_per_gpu == pytest.approx((eight.weights + copied) / 8)


def test_a_mixture_reads_the_experts_that_its_batch_chose():
    plan = deployment(PUBLISHED["Qwen3-30B-A3B"], "h200")
    shape = plan.shape
    alone = 2 * (shape.linear + shape.experts * 8 / 128 + shape.head + shape.small)
    assert plan.decode_bytes(1, 0) == pytest.approx(alone)
    assert plan.decode_bytes(1, 0) == pytest.approx(2 * shape.active, rel=0.001)
    assert plan.decode_bytes(1000, 0) == pytest.approx(plan.weights - 2 * shape.embedding)


def test_a_window_shortens_prefill_and_decode():
    whole = read_shape(PUBLISHED["Gemma-2-9B"])
    flops = prefill_flops(whole, 8192) - prefill_flops(whole, 1) * 8192
    heads = 16 * 256
    # 21 layers over a triangle of 8,192; 21 over one of 4,096 and a band of 4,096 rows behind it.
    attention = 21 * 4 * heads * (8192**2 / 2 + 4096**2 / 2 + 4096 * 4096)
    alone = 42 * 4 * heads / 2 * 8192
    rows = 2 * 256000 * 3584 * (1 - 8192)
    assert flops == pytest.approx(attention - alone + rows, rel=1e-6)


def test_the_kv_that_continues_a_sequence_elsewhere_is_within_the_windows():
    plan = deployment(PUBLISHED["Gemma-2-9B"], "b300")
    assert plan.transferred_bytes(8192) == 21 * 8192 * 8192 + 21 * 4096 * 8192
    hybrid = deployment(PUBLISHED["Qwen3-Next-80B-A3B"], "b300")
    assert hybrid.transferred_bytes(1000) == 1000 * 24576 + hybrid.state_bytes


@pytest.mark.parametrize(
    ("gpu", "gigabytes", "bandwidth", "teraflops"),
    [
        ("l4", 24, 0.3e12, 121),
        ("l40s", 48, 0.864e12, 362),
        ("a10", 24, 0.6e12, 125),
        ("h20", 96, 4.0e12, 148),
        ("rtx5090", 32, 1.792e12, 209.5),
        ("b200", 180, 7.7e12, 2250),
        ("b300", 288, 8.0e12, 2250),
        ("mi300x", 192, 5.3e12, 1307.4),
        ("mi355x", 288, 8.0e12, 2516.6),
    ],
)
def test_gpus_have_the_figures_of_their_data_sheets(
    gpu: str, gigabytes: float, bandwidth: float, teraflops: float
):
    known = GPUS[gpu]
    assert (known.memory_bytes, known.bandwidth, known.flops) == (
        gigabytes * 1e9,
        bandwidth,
        teraflops * 1e12,
    )
