"""OpenAI's APIs: inference requests, chat completions of workers, audio forms, files and batches.

- How is a request decoded, and which of its fields are removed? inference_requests.py, with body_fields.py
  and prompts.py; audio_forms.py
- How does an OpenAI request pass through the gateway? dialect.py; Azure's paths: deployments.py
- What is read of a worker's chat completion, to translate it? chat_completions.py
- How are files and batches managed? files.py, batches.py

OpenAI's Responses API is in gateway/web/responses.
"""
