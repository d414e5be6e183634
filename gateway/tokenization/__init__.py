"""Turns the prompt of a request into token ids (or canonical text), and these into hashed blocks.

prompt_encoders.py encodes prompts with a tokenizer in the gateway, or as canonical text; worker_tokens.py encodes
them with the engine's `/tokenize`. prompt_hasher.py makes blocks of the result. Conversations become text in
chat_rendering.py or canonical_json.py. The work runs in encoder_threads.py, encoder_processes.py and
encoder_child.py, for very long texts by piecewise_encoding.py. text_splitter.py decides where a text can be cut;
min_token_count.py computes a lower bound of its tokens.
"""
