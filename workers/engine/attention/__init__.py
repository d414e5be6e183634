"""Attention over paged KV: the promise in `base`, and `sdpa`, which gathers and runs anywhere."""
