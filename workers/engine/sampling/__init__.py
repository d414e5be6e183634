"""Sampling: from the logits of the model to tokens, for any mixture of requests in one batch."""
