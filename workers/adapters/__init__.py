"""Adapters for the kinds of workers: one module per kind, and the HTTP code that they share.

Read ../adapter.py first (the interface), then http.py (the shared part) and openai.py (the simplest kind).

kinds       vllm, sglang, llamacpp, lmdeploy, ollama, tgi, trtllm (the last ones over metered); provider for paid
            services; registry finds them by name; disaggregation runs a request on two workers
HTTP        connection, connection_pool, client_tls, body_buffers, multipart, retry_after
requests    `body` of each kind makes the request's body, with the common fields of openai.py;
            request_fields: the fields that workers get; tokenize_endpoint: token ids in place of text
"""
