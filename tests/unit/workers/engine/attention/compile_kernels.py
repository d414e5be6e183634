"""Compiles the kernels for a CUDA device with Triton's own compiler, which needs no device.

    python -m tests.unit.workers.engine.attention.compile_kernels [CAPABILITY]     for example 80, 90

It prints a line for each: the kernel, its codecs, shared memory in bytes.
"""

import sys
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from workers.engine.attention.kernels.paged_decode import decode_kernel, merge_kernel
from workers.engine.attention.kernels.paged_prefill import prefill_kernel
from workers.engine.attention.triton_backend import DECODE_OPTIONS, PREFILL_OPTIONS

STORED = {0: "bf16", 1: "i8", 2: "u8"}
SHARED_BYTES_MAX = 99 << 10
"""What a program may use on the smallest devices of compute capability 8.0 and later."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    kernel: Any
    key_codec: int = 0
    value_codec: int = 0
    options: dict[str, Any]
    constants: dict[str, Any]

    def compiled(self, target: GPUTarget) -> int:
        """The bytes of shared memory of the compiled kernel."""
        shapes: dict[str, Any] = {
            "KEY_CODEC": self.key_codec,
            "VALUE_CODEC": self.value_codec,
            "BLOCK_SIZE": 16,
            "KV_HEADS": 8,
            "GROUP": 4,
            "HEAD_DIM": 128,
            "SCALE_GROUP": 64,
            "COLUMNS": 128,
            "KEYS": 64,
            "WINDOW": 0,
            "ROWS": 16,
            **self.constants,
        }
        names = self.kernel.arg_names
        constants = {name: value for name, value in shapes.items() if name in names}
        signature = {name: "constexpr" if name in constants else self._type(name) for name in names}
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=target, options=self.options)
        assert "cubin" in made.asm
        return int(made.metadata.shared)

    def _type(self, name: str) -> str:
        types = {"output": "*bf16", "query": "*bf16", "partial": "*fp32", "logs": "*fp32", "scale": "fp32"}
        types |= dict.fromkeys(("tiles", "positions", "tree_bits", "blocks"), "*i64")
        types |= {"keys": f"*{STORED[self.key_codec]}", "values": f"*{STORED[self.value_codec]}"}
        types |= dict.fromkeys(("key_scales", "key_minima", "value_scales", "value_minima"), "*fp16")
        return types.get(name, "i32")


VARIANTS = (
    Variant(kernel=decode_kernel, options=DECODE_OPTIONS, constants={"TREE": False, "SPLIT": True}),
    Variant(
        kernel=decode_kernel,
        key_codec=1,
        value_codec=2,
        options=DECODE_OPTIONS,
        constants={"TREE": True, "SPLIT": False, "ROWS": 64, "WINDOW": 4096},
    ),
    Variant(kernel=prefill_kernel, options=PREFILL_OPTIONS, constants={"ROWS": 64}),
    Variant(kernel=merge_kernel, options={}, constants={}),
)


def main() -> None:
    target = GPUTarget("cuda", int(sys.argv[1]) if len(sys.argv) > 1 else 90, 32)
    for variant in VARIANTS:
        shared = variant.compiled(target)
        print(f"{variant.kernel.__name__} {variant.key_codec} {variant.value_codec}: {shared}", flush=True)
        assert shared <= SHARED_BYTES_MAX


if __name__ == "__main__":
    main()
