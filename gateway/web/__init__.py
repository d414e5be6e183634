"""The HTTP side of the gateway: its two listeners, the APIs that they serve, and the translation between them.

A request comes through `middleware` to a handler of tenant_app.py (the paths for tenants) or admin_app.py (the
paths for operators). An inference request becomes an exchange (inference_handlers.py, exchange_handler.py,
exchange.py), which the pipeline serves; a dialect (dialect.py, dialect_factory.py) translates between the called
API and the chat completions of workers.

- The APIs: `openai`, `anthropic`, `responses`; also model_list.py, token_count.py; of a tenant's own use:
  `own_usage`; path_spellings.py: the ways in which clients write a path
- Tools that no engine runs, such as web search: omitted_tools.py
- Request bodies: `bodies`
- Files, batches and responses that are stored for tenants: `stored`
- A client that does not read its answer: unread_watch.py
- A client that hangs up: `connection_lost` of direct/connection.py and `handler_cancellation` of
  gateway/runtime/listener_runner.py cancel its handler; `answer` of gateway/pipeline.py frees what it had reserved
- Errors and headers: error_response.py, request_identity.py, client_address.py, queue_headers.py
- Requests of another cell's tenant: cell_relay.py
- The OpenAPI document: `openapi`
- The operators' console: console.py, `console_files`, operator_views.py, live_views.py, playground.py
- GET /metrics: metrics_handler.py; metrics_merge.py joins the metrics of several processes
"""
