"""Text to tokens by the checkpoint's `tokenizer`, and back by `detokenizer`, from each token's `token_bytes`."""
