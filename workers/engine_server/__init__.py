"""The embedded engine as an HTTP worker: OpenAI's API, and SGLang's control endpoints for a gateway.

Read in this order: `options`, `main`, `serving`, `app`, `api_key`, `engine_worker`, `live_requests`, `generation`,
`requests`, `prompt_tokenizer`, `sampling`, `structured_outputs`, `tools`, `responses`, `choices`,
`completion_formatters`, `logprobs`, `embeddings`, `control`, `metrics`, `kv_events`, `served_models`, `errors`;
then, for handoffs of KV between two workers, `bootstrap` and `disaggregation`.
"""
