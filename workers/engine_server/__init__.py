"""The embedded engine as an HTTP worker: OpenAI's API, and SGLang's control endpoints for a gateway.

Read in this order: `options`, `main`, `serving`, `app`, `worker`, `generation`, `requests`, `prompt_tokenizer`,
`sampling`, `structured_outputs`, `tools`, `responses`, `choices`, `completion_formatters`, `logprobs`, `control`,
`served_models`, `errors`.
"""
