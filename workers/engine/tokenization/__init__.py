"""Text to tokens with the checkpoint's tokenizer, and tokens back to text while they are generated."""
