"""Starts SGLang where torch has no CUDA: `python sglang_on_cpu.py OPTIONS OF sglang.launch_server`.

The torchvision that is to be had is linked to CUDA and cannot register its operators; with two of them declared
the part of it that is Python can be imported, and more is not needed.
"""

import runpy

import torch

for operator in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
