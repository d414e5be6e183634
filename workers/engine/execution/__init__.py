"""The execution of a step plan: from a plan to tensors, and from the model's logits to tokens."""
