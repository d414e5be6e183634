"""The choice of the attention backend: by the setting, or by what the device and the installation can do.

sdpa     any device: gathers blocks and calls torch; the reference
triton   CUDA: kernels that read the KV cache in place; on the CPU only under Triton's interpreter, for tests
"""

import importlib.util
import os
from typing import Literal

import torch

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import AttentionName, KvLayout
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.kv_store import KVStore

BackendName = Literal["sdpa", "triton"]
CAPABILITY_MIN = (8, 0)
"""The oldest compute capability that the kernels are compiled for."""


def choose_backend(name: AttentionName, *, device: torch.device, kv_layout: KvLayout) -> BackendName:
    """Return the backend of the setting `name`; "auto" takes triton on CUDA where it can run.

    Raises:
        ConfigInvalid: triton was chosen and cannot run here.
    """
    if name == "sdpa" or (name == "auto" and device.type != "cuda"):
        return "sdpa"
    reason = triton_obstacle(device, kv_layout)
    if reason is None:
        return "triton"
    if name == "triton":
        raise ConfigInvalid(f"attention_backend triton {reason}")
    return "sdpa"


def triton_obstacle(device: torch.device, kv_layout: KvLayout) -> str | None:
    """Return why the Triton backend cannot run, as the end of a sentence; None where it can."""
    if importlib.util.find_spec("triton") is None:
        return "needs the package triton, which is not installed"
    if kv_layout == "none":
        return "reads keys and values from the KV cache, and kv_layout none keeps none"
    if device.type != "cuda":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return f"needs a CUDA device, not {device.type} (for tests: Triton's interpreter, TRITON_INTERPRET=1)"
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY_MIN:
        return (
            f"needs compute capability {_dotted(CAPABILITY_MIN)}, and this device has {_dotted(capability)}"
        )
    return None


def attention_backend(name: BackendName, store: KVStore, spec: ModelSpec) -> AttentionBackend:
    """Return the backend `name` over a KVStore, for the model that its keys and values belong to."""
    if name == "sdpa":
        return SdpaBackend(store, spec)
    # Here, so that triton is imported only where it computes.
    from workers.engine.attention.triton_backend import TritonBackend

    return TritonBackend(store, spec)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
