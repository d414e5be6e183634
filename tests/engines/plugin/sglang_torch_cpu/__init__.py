"""A platform for SGLang, by its own entry point: any CPU, with plain PyTorch operators and no kernel library."""


def activate() -> str:
    """The class of the platform, as SGLang asks for it."""
    return "sglang_torch_cpu.platform.TorchCpuPlatform"
