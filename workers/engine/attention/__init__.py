"""Attention over the paged KV cache: the interface of a backend, and a backend that runs on any device."""
