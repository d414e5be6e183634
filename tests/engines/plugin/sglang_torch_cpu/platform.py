"""TorchCpuPlatform: every fused operator goes to its `forward_native`."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """What SGLang asks of a platform."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_default_attention_backend(self):
        return "torch_native"

    def get_dispatch_key_name(self):
        return "native"

    def get_compile_backend(self, mode=None):
        return "eager"

    def is_pin_memory_available(self, device=None):
        return False

    def get_mha_kv_pool_cls(self):
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_mla_kv_pool_cls(self):
        from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

        return MLATokenToKVPool

    def get_paged_allocator_cls(self):
        from sglang_torch_cpu.allocator import new_allocator

        return new_allocator
