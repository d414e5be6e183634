"""SGLang's paged allocator, its two Triton kernels replaced by operations of torch."""

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator, alloc_extend_naive
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator


class TorchPagedAllocator(PagedTokenToKVPoolAllocator):
    """Slots for the tokens of a step; None when there are too few pages."""

    def alloc_extend(
        self,
        prefix_lens,
        prefix_lens_cpu,
        seq_lens,
        seq_lens_cpu,
        last_loc,
        extend_num_tokens,
        num_new_pages=None,
    ):
        size = self.page_size
        if extend_num_tokens // size + len(prefix_lens) + 1 > len(self.free_pages):
            self.merge_and_sort_free()
        pages = (seq_lens_cpu + size - 1) // size - (prefix_lens_cpu + size - 1) // size
        needed = int(pages.sum())
        if needed > len(self.free_pages):
            return None
        slots = torch.empty((extend_num_tokens,), dtype=torch.int64, device=self.device)
        alloc_extend_naive(prefix_lens, seq_lens, last_loc, self.free_pages, slots, size, self.device)
        self.free_pages = self.free_pages[needed:]
        return slots

    def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):
        if len(seq_lens) > len(self.free_pages):
            self.merge_and_sort_free()
        begins_a_page = (seq_lens - 1) % self.page_size == 0
        needed = int(begins_a_page.sum())
        if needed > len(self.free_pages):
            return None
        slots = last_loc + 1
        slots[begins_a_page] = self.free_pages[:needed].to(slots.dtype) * self.page_size
        self.free_pages = self.free_pages[needed:]
        return slots.to(torch.int64)


def new_allocator(size, page_size, dtype, device, kvcache, need_sort):
    """The allocator for pages of this size."""
    common = {"dtype": dtype, "device": device, "kvcache": kvcache, "need_sort": need_sort}
    if page_size == 1:
        return TokenToKVPoolAllocator(size, **common)
    return TorchPagedAllocator(size, page_size=page_size, **common)
