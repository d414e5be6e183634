"""From logits to tokens: `params`, `row`, `processors`, `distribution`, `sampler`, `logprobs`, `rng`."""
