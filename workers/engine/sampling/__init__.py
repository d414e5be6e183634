"""Sampling: from the logits of the model to tokens, for any mixture of requests in one batch.

sampling_params       the parameters of a request; sampling_row: at one position
processors            change logits: masks, penalties, biases
distribution          temperature, top-k, top-p, min-p; sampler draws from it, by random_numbers
rejection_sampling    verifies draft tokens
logprobs              log probabilities for clients
"""
