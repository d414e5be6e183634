"""The capture of an engine's decode steps as CUDA graphs when it starts."""

import logging
import time
from collections.abc import Sequence

import torch

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.attention.choice import BackendName
from workers.engine.attention.fixed_decode import FixedDecode
from workers.engine.config.engine_config import EngineConfig
from workers.engine.execution.cuda_capture import CudaCapture
from workers.engine.execution.decode_graphs import DecodeGraphs, IndexedAttention, bucket_sizes
from workers.engine.model.decoder import Decoder

_log = logging.getLogger("radixgate.engine")


def graph_rows(config: EngineConfig, backend: BackendName, device: torch.device) -> tuple[int, ...]:
    """Return the numbers of rows of decode steps to capture; none where there are no CUDA graphs."""
    if backend != "triton" or device.type != "cuda" or not config.cuda_graphs:
        return ()
    return bucket_sizes(config.running_max)


def capture_decode(
    decoder: Decoder,
    attention: AttentionBackend,
    rows: Sequence[int],
    *,
    context_length: int,
    block_size: int,
    device: torch.device,
) -> DecodeGraphs | None:
    """Capture decode steps of so many rows; None without rows.

    Raises:
        ConfigInvalid: a step cannot be captured.
    """
    if not rows or not isinstance(attention, IndexedAttention):
        return None
    began, free = time.monotonic(), torch.cuda.mem_get_info(device)[0]
    spec = decoder.spec
    fixed = FixedDecode(
        rows=max(rows),
        context_length=context_length,
        block_size=block_size,
        group=spec.heads // spec.kv_heads,
        kv_heads=spec.kv_heads,
        device=device,
    )
    graphs = DecodeGraphs(decoder, attention, fixed, rows, CudaCapture(), device)
    # The memory that the runs before the captures have left allocated.
    torch.cuda.empty_cache()
    _log.info(
        "captured CUDA graphs of %d decode steps in %.1f s; they take %.1f MB",
        len(rows),
        time.monotonic() - began,
        (free - torch.cuda.mem_get_info(device)[0]) / 1e6,
    )
    return graphs
