"""Turns the prompt of a request into token ids (or canonical text) and those into hashed blocks.

Prompts of a model are encoded by prompt_encoders.py (a tokenizer of the gateway's own, or canonical text) or by
worker_tokens.py (the engine's `/tokenize`); prompt_hasher.py makes blocks of the result. Conversations become text
in chat_rendering.py or canonical_json.py. Where the work runs: encoder_threads.py, encoder_processes.py and
encoder_child.py. text_splitter.py says where a text can be cut, min_token_count.py how many tokens it has at least.
"""
