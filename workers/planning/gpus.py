"""The memory, bandwidth and dense bfloat16 rate of GPUs, from their data sheets.

Makers print tensor rates "with sparsity": twice the dense rate, reached only if two of every four weights are zero.
Language models are not stored in that form, so every rate here is dense: 989 TFLOP/s for an H100, not 1,979. Memory
and bandwidth are decimal, as on the data sheet. A card has a little more memory than in its name (an H200 reports
140 GiB, which is 151 GB), so what fits by this table fits.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes per second."""
    flops: float
    """Dense bfloat16 FLOP per second."""
    source: str
    """The source of these values."""


def _gpu(name: str, gigabytes: float, terabytes_a_second: float, teraflops: float, source: str) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=gigabytes * 1e9,
        bandwidth=terabytes_a_second * 1e12,
        flops=teraflops * 1e12,
        source=source,
    )


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("h100", 80, 3.35, 989.4, "NVIDIA H100 data sheet, SXM: 1,979 with sparsity"),
        _gpu("h100-pcie", 80, 2.0, 756, "NVIDIA H100 data sheet, PCIe: 1,513 with sparsity"),
        _gpu("h200", 141, 4.8, 989.4, "NVIDIA H200 data sheet, SXM: 1,979 with sparsity"),
        _gpu(
            "b200", 180, 7.7, 2250, "NVIDIA HGX B200 data sheet, an eighth of the board: 36,000 with sparsity"
        ),
        _gpu(
            "b300", 288, 8.0, 2250, "NVIDIA HGX B300 data sheet, an eighth of the board: 36,000 with sparsity"
        ),
        _gpu("h20", 96, 4.0, 148, "NVIDIA H20 data sheet: 148 dense"),
        _gpu("a100-80", 80, 2.039, 312, "NVIDIA A100 80GB data sheet, SXM: 624 with sparsity"),
        _gpu("a100-40", 40, 1.555, 312, "NVIDIA A100 40GB data sheet: 624 with sparsity"),
        _gpu("l40s", 48, 0.864, 362, "NVIDIA L40S data sheet: 733 with sparsity"),
        _gpu("l4", 24, 0.3, 121, "NVIDIA L4 data sheet: 242 with sparsity"),
        _gpu("a10", 24, 0.6, 125, "NVIDIA A10 data sheet: 250 with sparsity"),
        _gpu(
            "rtx5090",
            32,
            1.792,
            209.5,
            "NVIDIA RTX Blackwell architecture paper: 419 with sparsity, fp32 accumulation",
        ),
        _gpu(
            "rtx4090", 24, 1.008, 165.2, "NVIDIA Ada architecture paper: 330 with sparsity, fp32 accumulation"
        ),
        _gpu(
            "rtx3090", 24, 0.936, 71, "NVIDIA GA102 architecture paper: 142 with sparsity, fp32 accumulation"
        ),
        _gpu("mi300x", 192, 5.3, 1307.4, "AMD Instinct MI300X data sheet: 2,615 with sparsity"),
        _gpu("mi355x", 288, 8.0, 2516.6, "AMD Instinct MI355X data sheet: 5,033 with sparsity"),
    )
}
