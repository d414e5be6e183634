"""The HTTP side of the gateway: its two listeners, the APIs that they serve, and the translation between them.

A request comes through `middleware` to a handler of tenant_app.py (the paths for tenants) or admin_app.py (the
paths for operators). An inference request becomes an exchange (exchange.py), which the pipeline serves; a dialect
(dialect.py) translates between the called API and the chat completions of workers.

- The APIs: `openai`, `anthropic`, `responses`; also models.py, usage.py, token_count.py
- Request bodies: `bodies`
- Files, batches and responses that are stored for tenants: `stored`
- Errors and headers: error_response.py, request_identity.py, client_address.py, queue_headers.py
- The OpenAPI document: `openapi`; the operators' dashboard: console.py, `console_files`
"""
