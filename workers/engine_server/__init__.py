"""The embedded engine as an HTTP worker: OpenAI's API, and beside it what SGLang offers a gateway.

Read in this order: `options`, `main`, `app`, `worker`, `generation`, `requests`, `prompts`, `sampling`,
`structured`, `tools`, `sending`, `said`, `answers`, `control`, `errors`.
"""
