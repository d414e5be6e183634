"""The speed of the embedded engine beside transformers' `generate` on the same weights."""
