"""From logits to tokens: `params` says how, `rng` is the chance, `sampler` draws."""
