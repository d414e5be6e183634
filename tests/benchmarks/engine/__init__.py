"""What the embedded engine does in a second, beside transformers' `generate` on the same weights."""
