"""Attention over the paged KV cache: the interface of a backend, and two backends.

attention_backend    the interface; choice chooses a backend, store_backend is what both have in common
sdpa_backend         any device: gathers blocks (batching cuts the batches) and calls torch
triton_backend       CUDA: kernels/ that read the KV cache in place; their index tensors are in step_index (tiles)
                     and fixed_decode, their arguments in layer_cache and workspace
"""
