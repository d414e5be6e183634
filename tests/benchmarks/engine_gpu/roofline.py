"""The most decode tokens per second that the memory of a device can deliver.

    bytes of a step    weights, once for the whole batch  +  batch * context * bytes of one token's keys and values
    ceiling            batch * measured copy bandwidth / bytes of a step

The bandwidth is measured by copying, reads and writes counted: it is less than the datasheet says, and no program
reads faster. The row of the embedding that a token needs is not counted, nor are activations.
"""

import statistics
import time
from dataclasses import dataclass

import torch

COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What one decode step reads, and how fast the device can read."""

    weight_bytes: int
    kv_bytes_per_token: int
    bandwidth: float
    """Bytes per second."""

    def bytes_of_step(self, batch: int, context: float) -> float:
        """Return the bytes that a step of `batch` sequences with `context` tokens each reads."""
        return self.weight_bytes + batch * context * self.kv_bytes_per_token

    def ceiling(self, batch: int, context: float) -> float:
        """Return the tokens per second that the memory can deliver."""
        return batch * self.bandwidth / self.bytes_of_step(batch, context)

    def share(self, tokens_per_second: float, batch: int, context: float) -> float:
        """Return the part of the ceiling that was reached."""
        return tokens_per_second / self.ceiling(batch, context)


def copy_bandwidth(device: str) -> float:
    """Return the bytes per second that a copy on the device reads and writes, the median of some rounds."""
    source = torch.ones(COPIED_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(1 + ROUNDS):
        _finish(device)
        began = time.perf_counter()
        target.copy_(source)
        _finish(device)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / statistics.median(seconds[1:])


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
