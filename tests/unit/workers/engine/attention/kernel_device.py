"""The device that the kernels run on in tests: a CUDA device, else the CPU under Triton's interpreter.

Triton decides when it is imported, so this module is imported before any module with kernels.
"""

import os
import sys

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    assert "triton" not in sys.modules, (
        "something else has imported triton before its interpreter was asked for"
    )
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is for Linux only")
