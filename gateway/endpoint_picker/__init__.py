"""The gateway as endpoint picker of Envoy: the Gateway API Inference Extension's protocol over Envoy's ext_proc.

Envoy carries the bytes, and asks the gateway about each request over gRPC. A request takes the same road as any
other (gateway/pipeline.py): only its exchange and its way to the worker are Envoy's. Read envoy_request.py first.
"""
