"""`radixgate plan --explain`: the arithmetic of well-known figures, and of two published ones that are wrong.

Every number in the text is computed by the functions that `radixgate plan` uses.
"""

from collections.abc import Iterator
from dataclasses import replace

from workers.planning.capacity import Deployment, context_per_user, kv_bytes_per_token, seconds_per_token
from workers.planning.gpus import GPUS
from workers.planning.model_shape import read_shape

EIGHT_BILLION = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
"""A model of 8 billion parameters, by which prefill and decode are compared."""
PREFILL_SHARE, DECODE_SHARE = 0.5, 0.7
"""The shares of FLOP/s and bandwidth that `radixgate plan` assumes for estimates."""


def explain_arithmetic() -> str:
    """Return the text, with a paragraph for each figure."""
    return _kv_and_weights() + "\n\n" + "\n".join(_prefill_and_decode())


def _prefill_and_decode() -> Iterator[str]:
    """Yield the lines that compare the prefill of 1,000 tokens with decode steps."""
    eight = Deployment(shape=read_shape(EIGHT_BILLION), gpu=GPUS["h100"])
    estimate = replace(eight, flops_share=PREFILL_SHARE, bandwidth_share=DECODE_SHARE)
    prefill, step = eight.prefill_seconds(1000), eight.step_seconds(1, 1000)
    multiplied, read = eight.shape.multiplied / 1e9, eight.decode_bytes(1, 1000) / 1e9
    flops, bandwidth = eight.gpu.flops / 1e12, eight.gpu.bandwidth / 1e12
    alone, slower = prefill / step, estimate.prefill_seconds(1000) / estimate.step_seconds(1, 1000)
    batch = estimate.prefill_seconds(1000) / estimate.step_seconds(64, 4000)
    yield from (
        'Often said: "1,000 prompt tokens cost 5 to 10 decode steps"',
        "",
        f"  8 B parameters on an H100: {multiplied:.2f} B are multiplied for each token.",
        f"  Prefill, at least     1,000 x 2 x {multiplied:.2f} B / {flops:.0f} TFLOP/s + attention ="
        f" {prefill * 1e3:.1f} ms",
        f"  Decode step, at least {read:.1f} GB / {bandwidth:.2f} TB/s = {step * 1e3:.1f} ms",
        f"  That is {alone:.1f} steps; with {PREFILL_SHARE:.0%} of the FLOP/s and {DECODE_SHARE:.0%} of the"
        f" bandwidth it is {slower:.1f} steps.",
        "  The size of the model cancels out: with weights of 2 bytes it is about 1,000 x bandwidth / FLOP/s for",
        "  one stream, so it is a property of the GPU:",
    )
    for name in ("h20", "a100-80", "h200", "mi300x", "h100", "l4"):
        gpu = GPUS[name]
        yield (
            f"    {name:8} {1000 * gpu.bandwidth / gpu.flops:5.1f} steps at least,"
            f" {1000 * gpu.bandwidth * DECODE_SHARE / (gpu.flops * PREFILL_SHARE):5.1f} by these shares"
        )
    yield from (
        "  So 5 to 10 is true of an A100 or H200 with a few streams. It is not true of a full batch, where a step",
        "  reads keys and values as well: beside 64 streams of 4,000 tokens, 1,000 prompt tokens cost",
        f"  {batch:.1f} steps. And with a mixture of experts a step of many streams reads nearly all experts,",
        "  while prefill multiplies few of them.",
    )


def _kv_and_weights() -> str:
    """Return the paragraphs about KV bytes, contexts and weights, and about two published errors."""

    def kv(layers: int, kv_heads: int, dtype: str = "fp16") -> int:
        return kv_bytes_per_token(layers=layers, kv_heads=kv_heads, head_dim=128, dtype=dtype)

    h100 = GPUS["h100"]
    seventy, many, full, small = kv(80, 8), kv(96, 96), kv(32, 8), kv(32, 8, "int8")
    tokens = context_per_user(memory=320e9, weights=140e9, users=50, kv_bytes_per_token=seventy)
    needed = 50 * 110_000 * seventy
    step = seconds_per_token(bytes_read=140e9, bandwidth=h100.bandwidth)
    return f"""\
KV bytes per token = 2 (key, value) x layers x key-value heads x head size x bytes

  80 layers, 8 key-value heads, head 128, fp16    2 x 80 x 8 x 128 x 2 = {seventy:,} B
     4,096 tokens                                 {4096 * seventy / 1e9:.2f} GB
     the same with 64 key-value heads (no GQA)    {4096 * kv(80, 64) / 1e9:.1f} GB
  32 layers, 32 key-value heads                   {kv(32, 32):,} B
     4,096 tokens                                 {4096 * kv(32, 32) / 2**30:.0f} GiB
  32 layers, 8 key-value heads                    {full:,} B
     INT8, an fp16 scale per token and head       {small:,} B: {full / small:.2f} times less, not 2

Longest context = (memory - weights) / users / KV bytes per token

  (320 - 140) GB / 50 users / {seventy:,} B = {tokens:,} tokens for each
  A published text says 110,000. That would take 50 x 110,000 x {seventy:,} B = {needed / 1e9:,.0f} GB,
  and 180 GB are free: a decimal point has slipped.

Decode, at least = bytes read / bandwidth

  140 GB at {h100.bandwidth / 1e12:.2f} TB/s = {step * 1e3:.0f} ms a token, however fast the tensor cores are.

Published: "96 layers x 96 heads x 128 need 48 KB per token"

  2 x 96 x 128 x 2 = {kv(96, 1):,} B is the figure of one head: the number of heads was left out.
  With 96 of them it is 2 x 96 x 96 x 128 x 2 = {many:,} B, {many / 1e6:.1f} MB.
  48 KB would be right if all heads shared one key-value head (MQA); with 8 of them (GQA) it is
  {kv(96, 8) / 1e3:,.0f} KB.

Published: "an H100 computes 2,000 TFLOP/s in bf16"

  The data sheet's 1,979 is with 2:4 sparsity, where two of four weights are zero and skipped. Dense weights reach
  {h100.flops / 1e12:.0f}. A prefill estimate from the larger number promises half the time that physics needs.\
"""
