"""The embedded engine as an HTTP worker: OpenAI's API, and SGLang's control endpoints for a gateway.

process      options; main runs the process, serving starts and stops the worker, app lists its URLs
state        engine_worker: what all handlers share; live_requests: the requests in progress; served_models
requests     api_key; requests: the bodies; prompt_tokenizer, sampling, structured_outputs and tools read them
generation   submits a request to the engine and sends its answer; a client that hangs up cancels it, which aborts
             its sequences
answers      responses, choices, completion_formatters, logprobs; embeddings; errors
gateway      control: health, load, aborts, flushes; metrics; kv_events
handoff      bootstrap and disaggregation: KV from one worker to another
"""
