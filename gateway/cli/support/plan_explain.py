"""`radixgate plan --explain`: the arithmetic of well-known figures, and of two published ones that are wrong.

Every number in the text is computed by the functions that `radixgate plan` uses.
"""

from workers.planning.capacity import context_per_user, kv_bytes_per_token, seconds_per_token
from workers.planning.gpus import GPUS


def explain_arithmetic() -> str:
    """Return the text, with a paragraph for each figure."""

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
