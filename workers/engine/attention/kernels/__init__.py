"""Triton kernels over the paged KV cache. Only the Triton backend imports them, and so triton.

paged_decode and paged_prefill are launched; both loop over keys by online_softmax, on queries in a tile, reading
stored_heads and multiplying by product.
"""
