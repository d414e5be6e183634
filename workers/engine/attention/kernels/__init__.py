"""Triton kernels over the paged KV cache. Only the Triton backend imports them, and so triton."""
