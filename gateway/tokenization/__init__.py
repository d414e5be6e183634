"""Turns the prompt of a request into token ids (or canonical text), and these into hashed blocks.

Read prompt_hasher.py first: it calls an encoder with the prompt; EncodedPrompt.hashes (gateway/domain/model.py)
then cuts the tokens into blocks and hashes them by BlockHasher of radix_cache/blocks.py. tokenizer_encoder.py
encodes with a tokenizer in the gateway, worker_tokens.py with the engine's `/tokenize` (both by token_cache.py),
text_encoder.py as canonical text. Conversations become text in chat_rendering.py or canonical_json.py.
piecewise_encoder.py calls the tokenizer, on the event loop or in encoder_threads.py, encoder_processes.py and
encoder_child.py. text_splitter.py decides where a text can be cut; tokenizer_file.py reads a tokenizer, once for
all requests of a model (called by `_encoder` of gateway/models/catalogue.py); min_token_count.py computes a lower
bound of its tokens. context_bounds.py refuses prompts that the context has no room for, and bounds the answer.
"""
