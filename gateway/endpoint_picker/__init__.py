"""The gateway as endpoint picker of Envoy: the Gateway API Inference Extension's protocol over Envoy's ext_proc.

Envoy transfers the bytes, and calls the gateway about each request over gRPC. A request passes the same pipeline as
any other (gateway/pipeline.py); only its exchange and its transport to the worker are Envoy's. Read
envoy_request.py first.
"""
